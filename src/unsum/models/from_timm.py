"""timm's classifiers, with random weights: `timm:NAME`. Trained ones come from a file of the
user's."""

from __future__ import annotations

from unsum.errors import UnsumError, optional, unknown_name
from unsum.models.built import USUAL_SIZE, Built


def build_timm(name: str, classes: int) -> Built:
    timm = optional("timm", "timm", "Models called timm:NAME need timm")
    architecture = name.partition(".")[0]  # resnet18.a1_in1k: the tag names weights
    if architecture not in timm.list_models():
        raise unknown_name("timm model", name, timm.list_models())
    try:
        model = timm.create_model(name, pretrained=False, num_classes=classes)
    except (ValueError, RuntimeError, TypeError) as error:
        raise UnsumError(f"timm cannot build {name!r}: {error}.") from error
    size = (getattr(model, "pretrained_cfg", None) or {}).get(
        "input_size", (3, USUAL_SIZE, USUAL_SIZE)
    )[-1]
    return Built(model, f"timm {name}", int(size), any_size=True, guessed=True)
