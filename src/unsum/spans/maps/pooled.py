"""Bottlenecks: the pair's input does not lead to the logits alone, but what lies above is told by
gradients that are known.

out = relu(r + x), features = mean over places of out, logits = head(features). The samples' maps y
before the last convolution are known, so ∇W = δᵀ Y gives δ there, and BatchNorm's own gradients ∇β
= Σ E and ∇γ = Σ E ẑ turn δ into E = ∂loss/∂r. Pooling says what E is: at every place g_c / places
or, where relu is off, zero, with g = Wᵀ G. So gates and G are read off, for every sample by itself,
and x is not needed. The features follow from the head's gradient, ∇W = Gᵀ F.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from unsum.engine.conjugate import by_rows, least_squares
from unsum.head import Head
from unsum.network.conv_pair import ConvPair
from unsum.running.deadline import out_of_time

_ADD: set[Any] = {operator.add, operator.iadd, torch.add, "add", "add_"}
_RELU: set[Any] = {torch.relu, F.relu, "relu", "relu_"}
_POOL: set[Any] = {F.adaptive_avg_pool2d, torch.mean, "mean"}
_PASS: set[Any] = {torch.flatten, F.dropout, "flatten", "view", "reshape", "squeeze"}
_ROUNDS = 4  # of gates and G in turn
_ALIKE = 0.05  # relative spread of a channel's places that surely are on
_STEPS = 60  # [iterations] of conjugate gradients. Chosen by: arbitrary budget.
_TOLERANCE = 1e-12  # [of the residual at first]. Chosen by: near what float64 resolves.
_SHARE = 0.25  # of the places that must be on for a first look at a channel


def is_pooled_sum(model: nn.Module, pair: ConvPair, head: str) -> bool:
    """Whether relu(second's BatchNorm + something), averaged over all places, is what the head
    reads."""
    node = next(iter(pair.above.users))
    if pair.first.batch_norm is None or pair.second.batch_norm is None or not pair.second.placewise:
        return False
    wanted = [_is_add, _is_relu, _is_pool]
    while len(node.users) == 1:
        node = next(iter(node.users))
        module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(module, nn.Linear):
            return not wanted and node.target == head
        if wanted and wanted[0](node, module):
            wanted.pop(0)
        elif (
            not isinstance(module, nn.Flatten | nn.Dropout | nn.Identity)
            and node.target not in _PASS
        ):
            return False
    return False


def _is_add(node: fx.Node, _: nn.Module | None) -> bool:
    return node.target in _ADD


def _is_relu(node: fx.Node, module: nn.Module | None) -> bool:
    return isinstance(module, nn.ReLU) or node.target in _RELU


def _is_pool(node: fx.Node, module: nn.Module | None) -> bool:
    return isinstance(module, nn.AdaptiveAvgPool2d) or node.target in _POOL


@dataclass(frozen=True)
class Normed:
    """BatchNorm of rows (N, C) that are known: ẑ, and γ / σ of every channel; `train`: with their
    own statistics."""

    z: Tensor
    factor: Tensor
    train: bool

    @classmethod
    def of(cls, rows: Tensor, norm: nn.BatchNorm2d, *, train: bool) -> Normed:
        mean = rows.mean(0) if train or norm.running_mean is None else norm.running_mean.to(rows)
        variance = (
            (rows - mean).square().mean(0)
            if train or norm.running_var is None
            else norm.running_var.to(rows)
        )
        inverse = (variance + norm.eps).rsqrt()
        gamma = torch.ones_like(inverse) if norm.weight is None else norm.weight.detach().to(rows)
        return cls((rows - mean) * inverse, gamma * inverse, train)

    def sent(self, delta: Tensor, grad_gamma: Tensor, grad_beta: Tensor) -> Tensor:
        """E = ∂loss/∂(output), from δ = ∂loss/∂(input) (N, C); channels whose γ is 0 say
        nothing."""
        E = delta / torch.where(self.factor.abs() > 1e-12, self.factor, torch.inf)
        return E + (grad_beta + self.z * grad_gamma) / len(delta) if self.train else E


@dataclass(frozen=True)
class Above:
    """What the pooled sum gives away: G (B, C) at the logits, and gates (B, P, channels) of the
    last relu."""

    G: Tensor
    gates: Tensor
    misfit: float  # what two values a channel leave of E, relative, in units of δ


def read_above(normed: Normed, E: Tensor, head: Head, samples: int) -> Above:
    """G and gates in turn, from E (B · P, channels)."""
    E = E.unflatten(0, (samples, -1))  # (B, P, channels)
    P, W = E.shape[1], head.W.double()
    weight = normed.factor.abs()
    size = E.abs().amax(1, keepdim=True)
    gates = E.abs() > 0.5 * size
    count = gates.sum(1)
    value = (E * gates).sum(1) / count.clamp_min(1)
    spread = ((E - value[:, None]) * gates).square().sum(1).div(count.clamp_min(1)).sqrt()
    sure = (count >= _SHARE * P) & (spread < _ALIKE * value.abs())
    G = E.new_zeros(samples, len(W))
    for _ in range(_ROUNDS):
        G = _least(W, value * P, weight.square() * count * sure)
        value = G @ W / P
        gates = (E * value[:, None].sign() > value[:, None].abs() / 2) & (value[:, None] != 0)
        count = gates.sum(1)
        value = (E * gates).sum(1) / count.clamp_min(1)
        sure = count > 0
    fitted = gates * (G @ W / P)[:, None]
    left = ((E - fitted) * weight).norm() / (E * weight).norm().clamp_min(1e-300)
    return Above(G, gates, float(left))


def _least(W: Tensor, g: Tensor, weight: Tensor) -> Tensor:
    """G (B, C) that minimizes ‖(G W − g) ∘ √weight‖ for g and weights (B, H).

    All samples are solved for at once, preconditioned with the mean of their weights: a
    factorization for each sample would be expensive with a thousand classes.
    """
    mean = (W * weight.mean(0)) @ W.T
    mean.diagonal().add_(1e-12 * float(mean.diagonal().mean()) + 1e-300)
    factor, root = torch.linalg.cholesky_ex(mean)[0], weight.sqrt()
    G, _ = least_squares(
        lambda v: (v @ W) * root,
        lambda u: (u * root) @ W.T,
        (g * weight) @ W.T,
        _TOLERANCE,
        _STEPS,
        precondition=lambda v: torch.cholesky_solve(v.T, factor).T,
        dots=by_rows,
        over=partial(out_of_time, "further steps to what pooling sent back"),
    )
    return G.nan_to_num()
