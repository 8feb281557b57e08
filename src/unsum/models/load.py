"""From a name on the command line to a model, and the size of the photos it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from unsum.errors import UnsumError, unknown_name
from unsum.head import find_head
from unsum.models.accepted_size import accepted_size, refusal
from unsum.models.built import FRESH, RANDOM, Built, dense_layers
from unsum.models.built import fresh_head as new_head
from unsum.models.from_file import build_from_file
from unsum.models.from_hugging_face import build_hugging_face
from unsum.models.from_program import build_from_program, refuse_torchscript
from unsum.models.from_timm import build_timm
from unsum.models.from_torchvision import build_torchvision
from unsum.models.language import is_language_model
from unsum.models.small_resnet import INPUT_SIZE, REDUCTION, SmallResNet
from unsum.models.weights_file import head_rows, load_weights
from unsum.running.declared import check_seed

DEFAULT_MODEL = "default"
MLP, _MLP_SIZE = "mlp", 64  # its pictures are small: the first layer has a weight for every pixel


@dataclass(frozen=True)
class LoadedModel:
    """A model, the name it goes by in reports, and the side of the square photos it takes."""

    model: nn.Module
    name: str
    image_size: int
    random: bool = False  # weights that nobody trained
    trained_head: bool = False  # whose classes have a meaning already


def load_model(
    spec: str,
    *,
    classes: int,
    seed: int = 0,
    weights: str | Path | None = None,
    size: int | None = None,
    likely_sizes: Sequence[int] = (),
    fresh_head: bool = False,
    fewer_will_do: bool = False,
    download: bool = False,
    any_input: bool = False,
) -> LoadedModel:
    """A model by name, with a head for `classes` classes, or with its own where that is trained:

        default, mlp                  embedded; `mlp` with random weights
        torchvision:NAME              random weights
        torchvision:NAME:WEIGHTS      published ones (IMAGENET1K_V1, DEFAULT), out of torch.hub's
                                      folder
        timm:NAME                     random weights (extra `timm`)
        hf:PATH                       a Hugging Face folder: image classifier or language model
                                      (extra `hf`)
        path/to/file.py:factory       one's own; the file is run, and its factory called with
                                      `num_classes` if it takes that
        path/to/model.pt2             one's own, as torch.export saved it

    `seed` fixes random weights. Photos go in as they are, in [0, 1]; published torchvision weights
    and Hugging Face folders bring the normalization along that they were trained with.

    Args:
        weights: a `.safetensors`, `.pt` or `.npz` state dict for the model, which then has as many
            classes as its head.
        size: the side of the photos, instead of the `image_size` of one's own model, or what is
            found by trying.
        likely_sizes: sides to try first where the model does not say what it takes, as those of the
            data.
        fresh_head: put a new head of `classes` classes on trained weights; it is never done
            unasked.
        fewer_will_do: take a model of one's own with fewer classes, too.
        download: fetch published torchvision weights that are not on this disk.
        any_input: take a model that reads no photos, too: its side is 0 then.
    """
    check_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = _build(spec, classes, seed, size, download, fresh_head)
        if weights is not None:
            built = _filled(spec, built, Path(weights), classes, seed, size, fresh_head)
    if size is not None and size != built.size and not built.any_size:
        raise UnsumError(
            f"The model {spec!r} takes photos of {built.size}²; leave size={size} out."
        )
    if size is not None and size < 1:
        raise UnsumError(f"Photos need a side of at least one pixel, not {size}.")
    if not fewer_will_do and not built.trained_head:
        _check_classes(built, classes)
    side = _side(built, size, likely_sizes, any_input=any_input)
    if side:
        built.model.image_size = side  # type: ignore[assignment] # travels with the model, for attacks that draw pictures
    name = ", ".join(filter(None, [built.kind, built.origin, f"{side}²" if side else ""]))
    return LoadedModel(
        built.model, name, side, random=built.origin == RANDOM, trained_head=built.trained_head
    )


def _check_classes(built: Built, needed: int) -> None:
    try:
        made = find_head(built.model)[1].out_features
    except UnsumError:  # the attacks refuse such a model themselves
        return
    # one output tells two classes apart, by binary cross-entropy
    if made < needed and (made, needed) != (1, 2):
        raise UnsumError(
            f"{built.kind} makes {made} classes of the {needed} needed; let it take num_classes."
        )


def _side(built: Built, size: int | None, likely: Sequence[int], *, any_input: bool) -> int:
    """As asked for; else the model's own; else the data's, where the model takes it; else one that
    it does take."""
    if size is not None:
        reason = refusal(built.model, size) if built.guessed else None
        if reason is not None:
            raise UnsumError(f"{built.kind} does not take photos of {size}²: {reason}.")
        return size
    if not built.guessed or (built.size and not likely):
        return built.size
    if is_language_model(built.model):  # whose inputs are tokens
        return 0
    try:
        if any_input:
            find_head(built.model)  # of what is no classifier, nothing is drawn
        return accepted_size(built.model, [*likely, *filter(None, [built.size])], built.kind)
    except UnsumError:
        if any_input:
            return 0
        raise


def _filled(
    spec: str, built: Built, path: Path, classes: int, seed: int, size: int | None, fresh: bool
) -> Built:
    """The model with the weights of a file, and with as many classes as they have, unless its head
    shall be fresh."""
    filled = load_weights(built.model, path)
    if not filled and not fresh:
        rows = head_rows(built.model, path)
        if rows is None:
            raise UnsumError(
                f"The weights in {path.name!r} hold no head; add --fresh-head to put a new one on "
                "them."
            )
        torch.manual_seed(seed)
        built = _build(spec, rows, seed, size, download=False, fresh=False)
        filled = load_weights(built.model, path)
    if not filled and not fresh:
        raise UnsumError(
            f"The head in {path.name!r} does not fit the model's; build the model for its "
            f"{head_rows(built.model, path)} classes, or add --fresh-head to put a new one on the "
            "other weights."
        )
    if fresh and filled:
        new_head(built.model, classes, seed)
    origin = f"weights of {path.name}" + (FRESH if fresh else "")
    return replace(built, origin=origin, trained_head=not fresh)


def _build(
    spec: str, classes: int, seed: int, size: int | None, download: bool, fresh: bool
) -> Built:
    if spec == DEFAULT_MODEL:
        side = INPUT_SIZE if size is None else size
        return Built(_default(classes, side), "embedded small ResNet", side, origin="")
    if spec == MLP:
        # Of the kind that gives its inputs away entirely.
        network = nn.Sequential(nn.Flatten(), *dense_layers(3 * _MLP_SIZE**2, 1024, 512, classes))
        return Built(network, "fully connected", _MLP_SIZE)
    source, _, name = spec.partition(":")
    if source == "torchvision":
        return build_torchvision(name, classes, seed, download=download, fresh=fresh)
    if source == "timm":
        return build_timm(name, classes)
    if source == "hf":
        return build_hugging_face(Path(name), classes, seed, fresh=fresh)
    file, _, factory = spec.rpartition(":") if not spec.endswith(".py") else (spec, "", "")
    if file.endswith(".py"):
        model, path = build_from_file(Path(file), factory, classes), Path(file)
        own = getattr(model, "image_size", None)
        if own is not None and (not isinstance(own, int) or own < 1):
            raise UnsumError(
                f"`image_size` of the model in {path.name!r} must be the side of its photos, not "
                f"{own!r}."
            )
        return Built(
            model, f"{factory} of {path.name}", own or 0, any_size=True, guessed=own is None
        )
    if spec.endswith(".pt2"):
        return build_from_program(Path(spec))
    if spec.endswith((".pt", ".pth")):
        raise refuse_torchscript(Path(spec))
    known = [
        DEFAULT_MODEL,
        MLP,
        "torchvision:resnet18",
        "torchvision:mobilenet_v2",
        "timm:NAME",
        "hf:PATH",
    ]
    raise unknown_name("model", spec, [*known, "path/to/file.py:factory", "path/to/model.pt2"])


def _default(classes: int, size: int) -> SmallResNet:
    """The embedded backbone under a head that is fresh from its initialization, as in the first
    round of fine-tuning."""
    if size < 2 * REDUCTION or size % REDUCTION:
        raise UnsumError(
            f"The default model takes photos of a multiple of {REDUCTION} from {2 * REDUCTION}², "
            f"not {size}²."
        )
    model = SmallResNet(classes, size)
    with as_file(files("unsum.models") / "weights" / "default-backbone.safetensors") as path:
        weights = load_file(path)
    model.backbone.load_state_dict(
        {name: w.float() if w.is_floating_point() else w for name, w in weights.items()}
    )
    return model
