"""From a name on the command line to a model, and the size of the photos it takes."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import torch
import torchvision
from safetensors.torch import load_file
from torch import nn

from unsum.errors import UnsumError, unknown_name
from unsum.head import find_head
from unsum.models.from_file import build_from_file
from unsum.models.small_resnet import INPUT_SIZE, REDUCTION, SmallResNet
from unsum.models.weights_file import load_weights

DEFAULT_MODEL = "default"
MLP, _MLP_SIZE = "mlp", 64
_SIZES = {"inception_v3": 299}
_USUAL_SIZE = 224


@dataclass(frozen=True)
class LoadedModel:
    """A model, the name it goes by in reports, and the side of the square photos it takes."""

    model: nn.Module
    name: str
    image_size: int


@dataclass(frozen=True)
class _Built:
    """A model before any weights of the user's: what it is, where its weights come from, and its photos' side."""

    model: nn.Module
    kind: str
    size: int
    origin: str = "random weights"
    any_size: bool = False


def load_model(
    spec: str, *, classes: int, seed: int = 0, weights: str | Path | None = None, size: int | None = None
) -> LoadedModel:
    """`default`, `mlp`, `torchvision:NAME` or `path/to/file.py:factory`, with a head for `classes` classes.

    `mlp`, torchvision models and one's own come with random weights, which `seed` fixes: nothing is downloaded. A file is
    run, as Python would run it, and its factory called with `num_classes=classes` if it takes that.

    Args:
        weights: a `.safetensors` or `.pt` state dict for the model; a head of another shape is passed over, and the
            name of the model then says that its head is fresh.
        size: the side of the photos, instead of the usual one: 224, or the `image_size` of one's own model.
    """
    built = _build(spec, classes, seed, size)
    if size is not None and size != built.size and not built.any_size:
        raise UnsumError(f"The model {spec!r} takes photos of {built.size}²; leave size={size} out.")
    if size is not None and size < 1:
        raise UnsumError(f"Photos need a side of at least one pixel, not {size}.")
    origin = built.origin
    if weights is not None:
        filled = load_weights(built.model, Path(weights))
        origin = f"weights of {Path(weights).name}" + ("" if filled else " under a fresh head")
    side = size or built.size
    return LoadedModel(built.model, ", ".join(filter(None, [built.kind, origin, f"{side}²"])), side)


def _build(spec: str, classes: int, seed: int, size: int | None) -> _Built:
    if spec == DEFAULT_MODEL:
        side = INPUT_SIZE if size is None else size
        return _Built(default_model(classes=classes, seed=seed, size=side), "embedded small ResNet", side, origin="")
    if spec == MLP:
        return _Built(_plain_network(classes, seed), "fully connected", _MLP_SIZE)
    file, _, factory = spec.rpartition(":") if not spec.endswith(".py") else (spec, "", "")
    if file.endswith(".py"):
        return _own_model(Path(file), factory, classes, seed)
    source, _, name = spec.partition(":")
    if source != "torchvision":
        known = [DEFAULT_MODEL, MLP, "torchvision:resnet18", "torchvision:mobilenet_v2", "path/to/file.py:factory"]
        raise unknown_name("model", spec, known)
    return _torchvision_model(name, classes, seed)


def _own_model(path: Path, factory: str, classes: int, seed: int) -> _Built:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_from_file(path, factory, classes)
    made = find_head(model)[1].out_features
    if made < classes:
        raise UnsumError(
            f"{factory!r} of {path.name!r} makes {made} classes of the {classes} needed; let it take num_classes."
        )
    size = getattr(model, "image_size", _USUAL_SIZE)
    if not isinstance(size, int) or size < 1:
        raise UnsumError(f"`image_size` of the model in {path.name!r} must be the side of its photos, not {size!r}.")
    return _Built(model, f"{factory} of {path.name}", size, any_size=True)


def default_model(*, classes: int, seed: int = 0, size: int = INPUT_SIZE) -> SmallResNet:
    """The embedded backbone under a head that is fresh from its initialisation, as in the first round of fine-tuning."""
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


def _torchvision_model(name: str, classes: int, seed: int) -> _Built:
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise unknown_name("torchvision model", name, known)
    options = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = torchvision.models.get_model(name, weights=None, num_classes=classes, **options)
    except (ValueError, RuntimeError) as error:
        raise UnsumError(f"torchvision cannot build {name!r}: {error}.") from error
    return _Built(model, f"torchvision {name}", _SIZES.get(name, _USUAL_SIZE), any_size=True)
