"""Can the features that reach the head be negative? Read off the data flow in front of it.

ReLU, sigmoid and their like give non-negative values; pooling, flattening and dropout keep them so,
and so do sums and concatenations of them. Tanh, GELU, a normalization or another linear layer do
give negative values. Anything else is unknown.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from unsum.head import trace

# Modules, functions, and methods by name.
_NON_NEGATIVE: set[Any] = {
    nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Hardsigmoid, nn.Softplus, nn.Softmax,
    torch.relu, torch.relu_, torch.sigmoid, torch.softmax, torch.abs, torch.exp, torch.square,
    F.relu, F.relu6, F.sigmoid, F.softplus, F.softmax, F.hardsigmoid, "relu", "relu_", "sigmoid",
    "softmax", "abs", "exp", "square",
}  # fmt: skip
_SIGNED: set[Any] = {
    nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.SELU, nn.CELU, nn.LeakyReLU, nn.PReLU, nn.Hardswish,
    nn.Mish, nn.Softsign, nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d,
    nn.BatchNorm3d, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, torch.tanh, F.tanh, F.gelu, F.silu,
    F.elu, F.selu, F.leaky_relu, F.hardswish, F.mish, F.layer_norm, F.group_norm, F.batch_norm,
    F.linear, "tanh",
}  # fmt: skip
_KEEPING: set[Any] = {
    nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
    torch.flatten, torch.squeeze, torch.mean, torch.sum, torch.reshape, torch.amax,
    operator.getitem, F.dropout, F.avg_pool2d, F.max_pool2d, F.adaptive_avg_pool2d,
    F.adaptive_max_pool2d, "flatten", "squeeze", "mean", "sum", "view", "reshape", "contiguous",
    "float", "amax", "permute", "transpose",
}  # fmt: skip
_JOINING: set[Any] = {torch.add, torch.cat, operator.add, operator.iadd, "add", "add_"}


@dataclass(frozen=True)
class FeatureSign:
    """`non_negative` is None where the data flow does not tell; `source` names what decided."""

    non_negative: bool | None
    source: str = ""


_UNKNOWN = FeatureSign(None)


def feature_sign(model: nn.Module, head: str) -> FeatureSign:
    """The sign of what reaches the module named `head`."""
    try:
        graph = trace(model)
    except Exception:
        # tracing runs the user's own forward on proxies: any exception means "cannot be traced"
        return _UNKNOWN
    for node in graph.nodes:
        if node.op == "call_module" and node.target == head and isinstance(node.args[0], fx.Node):
            return _sign(node.args[0], model)
    return _UNKNOWN


def _sign(node: fx.Node, model: nn.Module) -> FeatureSign:
    module = type(model.get_submodule(str(node.target))) if node.op == "call_module" else None
    kinds: set[Any] = {node.target} if module is None else set(module.__mro__)
    if kinds & (_NON_NEGATIVE | _SIGNED):
        name = getattr(node.target if module is None else module, "__name__", str(node.target))
        return FeatureSign(bool(kinds & _NON_NEGATIVE), name)
    if kinds & _KEEPING and isinstance(node.args[0], fx.Node):
        return _sign(node.args[0], model)
    return _joined(node, model) if kinds & _JOINING else _UNKNOWN


def _joined(node: fx.Node, model: nn.Module) -> FeatureSign:
    """A sum or concatenation is non-negative if all its parts are; otherwise one part may outweigh
    another."""
    parts = node.args[0] if isinstance(node.args[0], (list, tuple)) else node.args
    if all(isinstance(part, fx.Node) and _sign(part, model).non_negative for part in parts):
        return FeatureSign(True, "non-negative parts")
    return _UNKNOWN
