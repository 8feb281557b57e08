"""From a name on the command line to a model, and the size of the photos it takes."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from unsum.errors import UnsumError, unknown_name
from unsum.head import find_head
from unsum.models.built import RANDOM, USUAL_SIZE, Built
from unsum.models.from_file import build_from_file
from unsum.models.from_hugging_face import build_hugging_face
from unsum.models.from_program import build_from_program, refuse_torchscript
from unsum.models.from_timm import build_timm
from unsum.models.from_torchvision import build_torchvision
from unsum.models.small_resnet import INPUT_SIZE, REDUCTION, SmallResNet
from unsum.models.weights_file import load_weights

DEFAULT_MODEL = "default"
MLP, _MLP_SIZE = "mlp", 64


@dataclass(frozen=True)
class LoadedModel:
    """A model, the name it goes by in reports, and the side of the square photos it takes."""

    model: nn.Module
    name: str
    image_size: int
    random: bool = False  # weights that nobody trained


def load_model(
    spec: str,
    *,
    classes: int,
    seed: int = 0,
    weights: str | Path | None = None,
    size: int | None = None,
    download: bool = False,
) -> LoadedModel:
    """A model by name, with a head for `classes` classes:

        default, mlp                  embedded; `mlp` with random weights
        torchvision:NAME              random weights
        torchvision:NAME:WEIGHTS      published ones (IMAGENET1K_V1, DEFAULT), out of torch.hub's folder
        timm:NAME                     random weights (extra `timm`)
        hf:PATH                       a Hugging Face folder: image classifier or causal language model (extra `hf`)
        path/to/file.py:factory       one's own; the file is run, and its factory called with `num_classes` if it takes that
        path/to/model.pt2             one's own, as torch.export saved it

    `seed` fixes random weights. Photos go in as they are, in [0, 1]; published torchvision weights and Hugging Face folders
    bring the normalization along that they were trained with.

    Args:
        weights: a `.safetensors`, `.pt` or `.npz` state dict for the model; a head of another shape is passed over, and the
            name of the model then says that its head is fresh.
        size: the side of the photos, instead of the usual one: 224, or the `image_size` of one's own model.
        download: fetch published torchvision weights that are not on this disk.
    """
    built = _build(spec, classes, seed, size, download)
    if size is not None and size != built.size and not built.any_size:
        raise UnsumError(f"The model {spec!r} takes photos of {built.size}²; leave size={size} out.")
    if size is not None and size < 1:
        raise UnsumError(f"Photos need a side of at least one pixel, not {size}.")
    origin = built.origin
    if weights is not None:
        filled = load_weights(built.model, Path(weights))
        origin = f"weights of {Path(weights).name}" + ("" if filled else " under a fresh head")
    side = size or built.size
    built.model.image_size = side  # type: ignore[assignment] # travels with the model, for attacks that draw pictures
    name = ", ".join(filter(None, [built.kind, origin, f"{side}²" if side else ""]))
    return LoadedModel(built.model, name, side, random=origin == RANDOM)


def _build(spec: str, classes: int, seed: int, size: int | None, download: bool) -> Built:
    if spec == DEFAULT_MODEL:
        side = INPUT_SIZE if size is None else size
        return Built(default_model(classes=classes, seed=seed, size=side), "embedded small ResNet", side, origin="")
    if spec == MLP:
        return Built(_plain_network(classes, seed), "fully connected", _MLP_SIZE)
    source, _, name = spec.partition(":")
    if source == "torchvision":
        return build_torchvision(name, classes, seed, download=download)
    if source == "timm":
        return build_timm(name, classes, seed)
    if source == "hf":
        return build_hugging_face(Path(name), classes, seed)
    file, _, factory = spec.rpartition(":") if not spec.endswith(".py") else (spec, "", "")
    if file.endswith(".py"):
        return _own_model(Path(file), factory, classes, seed)
    if spec.endswith(".pt2"):
        return build_from_program(Path(spec), classes)
    if spec.endswith((".pt", ".pth")):
        raise refuse_torchscript(Path(spec))
    known = [DEFAULT_MODEL, MLP, "torchvision:resnet18", "torchvision:mobilenet_v2", "timm:NAME", "hf:PATH"]
    raise unknown_name("model", spec, [*known, "path/to/file.py:factory", "path/to/model.pt2"])


def _own_model(path: Path, factory: str, classes: int, seed: int) -> Built:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_from_file(path, factory, classes)
    made = find_head(model)[1].out_features
    if made < classes:
        raise UnsumError(
            f"{factory!r} of {path.name!r} makes {made} classes of the {classes} needed; let it take num_classes."
        )
    size = getattr(model, "image_size", USUAL_SIZE)
    if not isinstance(size, int) or size < 1:
        raise UnsumError(f"`image_size` of the model in {path.name!r} must be the side of its photos, not {size!r}.")
    return Built(model, f"{factory} of {path.name}", size, any_size=True)


def default_model(*, classes: int, seed: int = 0, size: int = INPUT_SIZE) -> SmallResNet:
    """The embedded backbone under a head that is fresh from its initialization, as in the first round of fine-tuning."""
    if size < 2 * REDUCTION or size % REDUCTION:
        raise UnsumError(
            f"The default model takes photos of a multiple of {REDUCTION} from {2 * REDUCTION}², not {size}²."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SmallResNet(classes, size)
    with as_file(files("unsum.models") / "weights" / "default-backbone.safetensors") as path:
        weights = load_file(path)
    model.backbone.load_state_dict({name: w.float() if w.is_floating_point() else w for name, w in weights.items()})
    return model


def _plain_network(classes: int, seed: int) -> nn.Sequential:
    """A network of the kind that gives its inputs away entirely."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(3 * _MLP_SIZE**2, 1024),
            nn.ReLU(),
            nn.Linear(1024, 512),
            nn.ReLU(),
            nn.Linear(512, classes),
        )
