"""From a name on the command line to a model with a fresh head, and the size of the photos it takes."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files

import torch
import torchvision
from safetensors.torch import load_file
from torch import nn

from unsum.errors import UnsumError, unknown_name
from unsum.models.small_resnet import INPUT_SIZE, SmallResNet

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


def load_model(spec: str, *, classes: int, seed: int = 0) -> LoadedModel:
    """`default`, `mlp` or `torchvision:NAME`, with a fresh head for `classes` classes; `seed` fixes what is random.

    `mlp` and torchvision models come with random weights: nothing is downloaded.
    """
    if spec == DEFAULT_MODEL:
        return LoadedModel(default_model(classes=classes, seed=seed), "embedded small ResNet, 128²", INPUT_SIZE)
    if spec == MLP:
        return LoadedModel(_plain_network(classes, seed), f"fully connected, random weights, {_MLP_SIZE}²", _MLP_SIZE)
    source, _, name = spec.partition(":")
    if source != "torchvision":
        raise unknown_name("model", spec, [DEFAULT_MODEL, MLP, "torchvision:resnet18", "torchvision:mobilenet_v2"])
    return _torchvision_model(name, classes, seed)


def default_model(*, classes: int, seed: int = 0) -> SmallResNet:
    """The embedded backbone under a head that is fresh from its initialisation, as in the first round of fine-tuning."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SmallResNet(classes)
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


def _torchvision_model(name: str, classes: int, seed: int) -> LoadedModel:
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
    size = _SIZES.get(name, _USUAL_SIZE)
    return LoadedModel(model, f"torchvision {name}, random weights, {size}²", size)
