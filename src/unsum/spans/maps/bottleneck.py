"""The answer for bottlenecks: labels and G from what pooling gives away (`pooled`), features from
the head, all played again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from unsum.certify.claim import FALSE_ERROR, Claim, Evidence, grant
from unsum.certify.counted import count, each_is_one
from unsum.certify.doubts.replay import doubt_unexplained
from unsum.certify.question import name_some
from unsum.engine.replay import Replay, tolerance
from unsum.engine.twins import FAR, Passed, SentLayers, drawn, largest, outside
from unsum.equation.noise import unit_of
from unsum.head import Head, orthonormal_rows
from unsum.knowledge import Knowledge
from unsum.losses import PLAIN
from unsum.network.activations import Activation
from unsum.network.conv_pair import ConvLayer, ConvPair
from unsum.peel.dense import SPARE
from unsum.peel.method import MARGIN
from unsum.spans.judge import doubt_number, doubt_reading
from unsum.spans.maps.asked import Asked
from unsum.spans.maps.batch import MapBatch
from unsum.spans.maps.judge import at_least
from unsum.spans.maps.pooled import Above, Normed, read_above
from unsum.spans.maps.solve import FoundMaps
from unsum.spans.maps.tail import shared_sizes
from unsum.spans.maps.twins import assumed, doubt_samples
from unsum.spans.targets import LossReading, read_targets
from unsum.update import Update

# of G's largest singular value: rows whose smallest is below depend on each other
_INDEPENDENT = 1e-9


@dataclass(frozen=True)
class BottleneckAnswer:
    """Samples of a bottleneck: maps of the pair's first convolution, what the head says, and what
    all of it leaves."""

    maps: Tensor
    hits: Tensor
    features: Tensor
    logits: Tensor
    errors: Tensor
    reading: LossReading
    above: Above
    replay: Replay
    missing: int
    sent: SentLayers
    W: Tensor  # of the head
    head_left: Tensor  # of its gradient

    @property
    def readable(self) -> bool:
        """Whether what the last convolution sends is what pooling sends back."""
        return math.isfinite(self.replay.unexplained)


def answer_bottleneck(
    asked: Asked, batch: MapBatch, found: FoundMaps, maps: Tensor
) -> BottleneckAnswer:
    """From maps (B, C, h, w) of the first convolution."""
    head, update, pair, train = asked.head, asked.update, batch.pair, batch.train
    read = found.condition.read(found.points)  # (B, C', P) by the second one
    second = pair.second
    rows = read.mT.flatten(0, 1)  # (B · P, C')
    delta = sent_behind(second, read, train=train)
    norm = second.batch_norm
    assert norm is not None
    written = rows @ second.conv.weight.detach().to(rows).flatten(1).T
    normed = Normed.of(written, norm, train=train)
    E = normed.sent(
        delta,
        *(
            _grad(update, f"{second.norm_name}.{part}", rows, len(delta.T))
            for part in ("weight", "bias")
        ),
    )
    above = read_above(normed, E, head, len(maps))
    features, errors = _features(head, above.G)
    logits = (
        features @ head.W.double().T
        if head.b is None
        else features @ head.W.double().T + head.b.double()
    )
    reading = read_targets(
        above.G, logits, asked.loss, asked.knowledge.loss == PLAIN, head.reduction
    )
    sums = _PooledSum(head, pair, above, reading, features, train)
    out = sums.written(maps)
    played, passed = sums.play(maps, out)
    known = (name for name in played if name in update.gradients)
    received = {name: update.gradients[name].to(maps) for name in known}
    left = {name: gradient - played[name] for name, gradient in received.items()}
    limit = tolerance(head.grad_W.dtype)
    replay = Replay.within(received, left, shared_sizes(received), limit)
    rest = {name: largest(left[f"{name}.weight"].flatten(1)) for name in passed}
    sent = SentLayers(maps.float(), passed, rest, lambda moved: sums.play(moved, out)[1])
    return BottleneckAnswer(
        maps,
        found.hits,
        features,
        logits,
        errors,
        reading,
        above,
        replay,
        batch.missing,
        sent,
        head.W.to(maps),
        left[f"{head.name}.weight"],
    )


def sent_behind(layer: ConvLayer, read: Tensor, *, train: bool) -> Tensor:
    """(B · P, channels) δ at what a 1×1 convolution wrote, from its gradient and what it read, (B,
    C, P)."""
    rows = read.mT.flatten(0, 1)
    centered = rows - rows.mean(0) if train else rows
    return torch.linalg.pinv(centered).T @ layer.grad.to(rows).flatten(1).T


def _features(head: Head, G: Tensor) -> tuple[Tensor, Tensor]:
    """(F (B, H) with ∇W = Gᵀ F, relative errors (B,)): least squares, every class in units of its
    own rounding.

    Infinite errors where G's rows depend on each other, or where there are no equations to spare.
    """
    grad = head.grad_W.double()
    B, H = len(G), grad.shape[1]
    features = torch.linalg.pinv(G.T) @ grad
    values = torch.linalg.svdvals(G)
    if len(grad) < B + SPARE or not float(values[-1]) > _INDEPENDENT * float(values[0]):
        return features, torch.full_like(G[:, 0], torch.inf)
    for _ in range(2):  # rows err by their rounding, or by what G errs
        rows = (grad - G.T @ features).norm(dim=1) / H**0.5
        unit = torch.maximum(
            unit_of(head.grad_W) * grad.norm(dim=1) / H**0.5, rows.median()
        ).clamp_min(1e-300)
        Q, R = torch.linalg.qr((G / unit).T)
        right = grad / unit[:, None]
        features = torch.linalg.solve_triangular(R, Q.T @ right, upper=True)
    left = ((right - (G / unit).T @ features).square().sum() / ((len(grad) - B) * H)).sqrt()
    inverse = torch.linalg.solve_triangular(R, torch.eye(B).to(R), upper=True)
    return features, inverse.norm(dim=1) * left.clamp_min(1.0) * H**0.5 / features.norm(
        dim=1
    ).clamp_min(1e-300)


def _grad(update: Update, name: str, like: Tensor, size: int) -> Tensor:
    gradient = update.gradients.get(name)
    return like.new_zeros(size) if gradient is None else gradient.to(like)


@dataclass(frozen=True)
class _PooledSum:
    """Everything from the pair's first convolution to the logits, but for what stands beside it."""

    head: Head
    pair: ConvPair
    above: Above
    reading: LossReading
    features: Tensor
    train: bool

    @cached_property
    def sums(self) -> Tensor:
        """(B, P, channels) sums before the last relu: drawn, with the gates and the features that
        are known."""
        gates = self.above.gates
        count, size = gates.sum(1), self.features.abs()
        size = size.clamp_min(1e-6 * float(size.mean())) * gates.shape[1] / count.clamp_min(1)
        # where all are off nothing tells how near they are
        size = torch.where(count > 0, size, torch.inf)
        drawn = (
            torch.randn(gates.shape, generator=torch.Generator().manual_seed(0))
            .to(size)
            .abs()
            .clamp_min(1e-6)
        )
        return torch.where(gates, 1, -1) * drawn * (torch.pi / 2) ** 0.5 * size[:, None]

    def written(self, maps: Tensor) -> Tensor:
        """(B, P, channels) what is added to what stands beside."""
        with torch.no_grad():
            return self._forward(maps, Noted()).flatten(2).mT

    def play(self, maps: Tensor, out: Tensor) -> tuple[dict[str, Tensor], dict[str, Passed]]:
        """Gradients of all parameters, and what the convolutions read and sent; features and gates
        move with what is written, from `out`. What stands beside stays: two samples that are alike
        differ in it as well, and show all the more."""
        noted, reading = Noted(), self.reading
        with torch.enable_grad():
            end = self._forward(maps, noted)
            sums = self.sums.to(maps)
            moved = sums + end.detach().flatten(2).mT - out.to(maps)
            gates = moved > 0
            features = self.features.to(maps) + (moved.relu() - sums.relu()).mean(1)
            W = self.head.W.to(maps)
            logits = (
                features @ W.T if self.head.b is None else features @ W.T + self.head.b.to(maps)
            )
            G = (
                reading.loss.gradient(logits, reading.Y.to(maps))
                * reading.weights.to(maps)[:, None]
            )
            E = gates * (G @ W / gates.shape[1])[:, None]
            wanted = [*noted.parameters.values(), *noted.written]
            found = torch.autograd.grad(end, wanted, E.mT.contiguous().view(end.shape))
        played = dict(zip(noted.parameters, found, strict=False))
        played[f"{self.head.name}.weight"], played[f"{self.head.name}.bias"] = (
            G.T @ features,
            G.sum(0),
        )
        layers, deltas = (self.pair.first, self.pair.second), found[len(noted.parameters) :]
        passed = {
            layer.name: Passed.of(layer.conv, read, delta)
            for layer, read, delta in zip(layers, noted.read, deltas, strict=True)
        }
        return played, passed

    def _forward(self, maps: Tensor, noted: Noted) -> Tensor:
        hidden = played_layer(self.pair.first, self.pair.activation, maps, noted, train=self.train)
        return played_layer(self.pair.second, None, hidden, noted, train=self.train)


@dataclass(frozen=True)
class Noted:
    """Parameters, and what each convolution read and wrote, as they are met."""

    parameters: dict[str, Tensor] = field(default_factory=dict)
    read: list[Tensor] = field(default_factory=list)
    written: list[Tensor] = field(default_factory=list)


def played_layer(
    layer: ConvLayer, activation: Activation | None, x: Tensor, noted: Noted, *, train: bool
) -> Tensor:
    """Convolution, BatchNorm and activation in the precision of x, with their parameters noted."""
    norm = layer.batch_norm
    assert norm is not None
    held = {
        f"{layer.name}.weight": layer.conv.weight,
        f"{layer.norm_name}.weight": norm.weight,
        f"{layer.norm_name}.bias": norm.bias,
    }
    W, gamma, beta = (
        None if p is None else p.detach().to(x).requires_grad_() for p in held.values()
    )
    noted.parameters.update(
        {name: p for name, p in zip(held, (W, gamma, beta), strict=True) if p is not None}
    )
    assert W is not None
    z = F.conv2d(
        x,
        W,
        None if layer.conv.bias is None else layer.conv.bias.detach().to(x),
        padding=layer.conv.padding,
    )
    noted.read.append(x.detach())
    noted.written.append(z)
    mean, variance = (
        None if train or b is None else b.to(x) for b in (norm.running_mean, norm.running_var)
    )
    y = F.batch_norm(z, mean, variance, gamma, beta, training=train, eps=norm.eps)
    return y if activation is None else activation.function(y)


def judge_bottleneck(answer: BottleneckAnswer, knowledge: Knowledge, seed: int) -> Claim:
    """The claim: every tensor from the head down to the pair is explained, by one loss, with gates
    that pooling shows."""
    replay, explained = answer.replay, answer.replay.explains
    doubts = [*doubt_reading(answer.reading, knowledge), *doubt_number(answer.reading, knowledge)]
    doubts += doubt_unexplained(replay, "samples")
    if explained and not doubts and not answer.missing:
        doubts += doubt_samples(
            answer.sent, answer.reading.copies, knowledge, seed
        ) or _doubt_beside(answer, knowledge)
    if not bool(answer.errors.isfinite().all()):
        doubts.append(
            f"The {len(answer.W)} classes of the head do not determine the features of so many "
            "samples: features and logits here only explain its gradient, and may be far off; "
            "labels and maps do not need them."
        )
    errors = MARGIN * answer.errors
    return grant(
        Evidence(
            errors if explained else at_least(errors, replay.unexplained),
            explained=explained,
            confirmations=int(answer.hits.min()) - 1,
            missing=answer.missing,
            doubts=doubts,
            assumed=assumed(answer.reading.loss.name, knowledge),
            counted=count(
                answer.features,
                answer.reading.labels,
                errors,
                knowledge,
                copies=answer.reading.copies,
            ),
        )
    )


def _doubt_beside(answer: BottleneckAnswer, knowledge: Knowledge) -> list[str]:
    """Samples that may be several with equal maps, which differ in what stands beside alone: only
    the head shows these.

    Two whose features are a hundredth from their mean leave ½ (G₊ − G₋) ⊗ ½ (F₊ − F₋) of its
    gradient, and features that are solved for take up what of it lies in the span of G. Nothing is
    left where the softmax is saturated.
    """
    reading, F_mean = answer.reading, answer.features
    d = drawn(F_mean, FALSE_ERROR, torch.Generator().manual_seed(1))
    moved = d @ answer.W.T
    plus, minus = (
        reading.loss.gradient(answer.logits + sign * moved, reading.Y) for sign in (1, -1)
    )
    half = (plus - minus) / 2 * reading.weights[:, None]
    basis = orthonormal_rows(answer.above.G)
    shown = outside(half, basis).norm(dim=1) * d.norm(dim=1)
    hidden = ~(shown > FAR * largest(answer.head_left))
    if each_is_one(knowledge, reading.copies):
        hidden &= False
    several = hidden.nonzero()[:, 0].tolist()
    return (
        [f"Sample {name_some(several)} may be several with equal maps: the head does not tell."]
        if several
        else []
    )
