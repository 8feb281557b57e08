"""Checks of the model alone."""

from __future__ import annotations

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unsum.doctor.finding import Finding, ok, warning, will_not_work
from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.invert import load_inverse
from unsum.invert.layout import feature_layout

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def head(model: nn.Module) -> Finding:
    try:
        name, linear = find_head(model)
    except UnsumError as error:
        return will_not_work("head", str(error))
    classes, features = linear.weight.shape
    return ok(
        "head", f"The last linear layer is {name or 'the model itself'!r}: {classes} classes, {features:,} features."
    )


def trainable_head(model: nn.Module) -> Finding:
    name, linear = find_head(model)
    if not linear.weight.requires_grad:
        return will_not_work(
            "training", f"The head {name!r} is frozen, so no update holds its gradient; clients must train it."
        )
    return ok("training", "The head is trained, so updates hold its gradient.")


def bias(model: nn.Module) -> Finding:
    if find_head(model)[1].bias is None:
        return warning(
            "bias",
            "The head has no bias: the exact attack works without one, but fgla, phong and most label rules do not.",
        )
    return ok("bias", "The head has a bias, which every attack can use.")


def features(model: nn.Module, size: int) -> Finding:
    """How much of a picture the features can hold."""
    try:
        layout = feature_layout(model, size)
    except Exception as error:  # the model's own forward
        reason = (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
        return will_not_work("features", f"The model does not take one picture of {size}²: {reason}.")
    shape = " × ".join(str(side) for side in layout.shape)
    if layout.kind == "vector":
        return warning(
            "features",
            f"The head reads a pooled vector of {shape}: labels and features leak, pictures come back poorly.",
        )
    kind = "a map" if layout.kind == "map" else "tokens"
    return ok("features", f"The head reads {kind} of {shape}: places are kept, and pictures can come back.")


def batch_norm(model: nn.Module, train: bool) -> Finding:
    fixed = _exported_modes(model)
    if fixed:
        mode = "train" if fixed[0] else "eval"
        say = ok if fixed[0] == train else warning
        return say(
            "BatchNorm", f"{len(fixed)} layers whose mode was fixed at the export: {mode} mode, whatever is asked for."
        )
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not layers:
        return ok("BatchNorm", "There is none, so train and eval mode give the same features.")
    if not train:
        return ok("BatchNorm", f"{len(layers)} layers with running statistics (eval mode), as a client seldom trains.")
    return warning(
        "BatchNorm",
        f"{len(layers)} layers with the batch's own statistics (train mode): features depend on the whole batch; the attack "
        "takes that as it is, but an inverse must have been trained for it.",
    )


def _exported_modes(model: nn.Module) -> list[bool]:
    """The `training` flag of every batch_norm in a graph that torch.export made."""
    if not isinstance(model, fx.GraphModule):
        return []
    nodes = [node for node in model.graph.nodes if node.target is torch.ops.aten.batch_norm.default]
    return [bool(node.args[5]) for node in nodes]


def dropout(model: nn.Module, train: bool) -> Finding:
    rates = [module.p for module in model.modules() if isinstance(module, _DROPOUTS) and module.p > 0]
    if not rates or not train:
        return ok("dropout", "There is none to reckon with." if not rates else "Switched off in eval mode.")
    return warning(
        "dropout",
        f"{len(rates)} layers drop up to {max(rates):.0%} in train mode: features come back as they were after dropping, and "
        "pictures of them are worse.",
    )


def precision(model: nn.Module) -> Finding:
    kinds = {p.dtype for p in model.parameters()}
    names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
    if kinds & {torch.float16, torch.bfloat16}:
        return warning("precision", f"Weights are {names}: gradients of half precision hide samples that hardly count.")
    if len(kinds) > 1:
        return warning("precision", f"Weights are of several kinds ({names}).")
    return ok("precision", f"Weights are {names}.")


def finite_weights(model: nn.Module) -> Finding:
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return will_not_work("weights", f"The weights {name!r} hold NaN or Inf; load others.")
    return ok("weights", "All are finite.")


def inverse(model: nn.Module, path: str | None) -> Finding:
    try:
        found = load_inverse(model, path)
    except UnsumError as error:
        if path is not None:
            return will_not_work("inverse", str(error))
        return warning(
            "inverse", f"{error} Train one with `unsum train-inverse` for pictures; labels and features leak without."
        )
    return ok("inverse", f"There is one for this backbone, for photos of {found.card['size']}².")
