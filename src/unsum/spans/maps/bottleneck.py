"""The answer for bottlenecks: labels and G from what pooling gives away (`pooled`), features from the head, all played again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from unsum.certify.claim import Claim, Evidence, grant
from unsum.equation.noise import unit_of
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.losses import PLAIN, Loss
from unsum.peel.activations import Activation
from unsum.peel.dense import SPARE, rounding
from unsum.peel.method import MARGIN
from unsum.spans.judge import doubt_number, doubt_reading
from unsum.spans.maps.pair import ConvLayer, ConvPair
from unsum.spans.maps.pooled import Above, Normed, read_above
from unsum.spans.maps.tail import shared_sizes
from unsum.spans.targets import LossReading, read_targets
from unsum.update import Update

_INDEPENDENT = 1e-9  # of G's largest singular value: rows whose smallest is below depend on each other


@dataclass(frozen=True)
class BottleneckAnswer:
    """Samples of a bottleneck: maps of the pair's first convolution, what the head says, and what all of it leaves."""

    maps: Tensor
    hits: Tensor
    features: Tensor
    logits: Tensor
    errors: Tensor
    reading: LossReading
    above: Above
    unexplained: float
    worst: str
    missing: int


def answer_bottleneck(
    head: Head,
    pair: ConvPair,
    update: Update,
    maps: Tensor,
    read: Tensor,
    hits: Tensor,
    *,
    train: bool,
    missing: int,
    loss: Loss | None,
    knowledge: Knowledge,
) -> BottleneckAnswer:
    """From maps (B, C, h, w) of the first convolution and what the second one reads, (B, C', P)."""
    second = pair.second
    rows = read.mT.flatten(0, 1)  # (B · P, C')
    centered = rows - rows.mean(0) if train else rows
    grad = second.grad.to(rows).flatten(1)
    delta = torch.linalg.pinv(centered).T @ grad.T  # (B · P, channels)
    norm = second.batch_norm
    assert norm is not None
    written = rows @ second.conv.weight.detach().to(rows).flatten(1).T
    normed = Normed.of(written, norm, train=train)
    E = normed.sent(
        delta, *(_grad(update, f"{second.norm_name}.{part}", rows, len(delta.T)) for part in ("weight", "bias"))
    )
    above = read_above(normed, E, head, len(maps))
    features, errors = _features(head, above.G)
    logits = features @ head.W.double().T if head.b is None else features @ head.W.double().T + head.b.double()
    reading = read_targets(above.G, logits, loss, knowledge.loss == PLAIN, head.reduction)
    left = _left(head, pair, update, maps, above, reading, features, logits, train=train)
    worst = max(left, key=lambda name: left[name] if left[name] == left[name] else torch.inf)
    return BottleneckAnswer(maps, hits, features, logits, errors, reading, above, left[worst], worst, missing)


def _features(head: Head, G: Tensor) -> tuple[Tensor, Tensor]:
    """(F (B, H) with ∇W = Gᵀ F, relative errors (B,)): least squares, every class in units of its own rounding.

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
        unit = torch.maximum(unit_of(head.grad_W) * grad.norm(dim=1) / H**0.5, rows.median()).clamp_min(1e-300)
        Q, R = torch.linalg.qr((G / unit).T)
        right = grad / unit[:, None]
        features = torch.linalg.solve_triangular(R, Q.T @ right, upper=True)
    left = ((right - (G / unit).T @ features).square().sum() / ((len(grad) - B) * H)).sqrt()
    inverse = torch.linalg.solve_triangular(R, torch.eye(B).to(R), upper=True)
    return features, inverse.norm(dim=1) * left.clamp_min(1.0) * H**0.5 / features.norm(dim=1).clamp_min(1e-300)


def _grad(update: Update, name: str, like: Tensor, size: int) -> Tensor:
    gradient = update.gradients.get(name)
    return like.new_zeros(size) if gradient is None else gradient.to(like)


def _left(
    head: Head,
    pair: ConvPair,
    update: Update,
    maps: Tensor,
    above: Above,
    reading: LossReading,
    features: Tensor,
    logits: Tensor,
    *,
    train: bool,
) -> dict[str, float]:
    """Parameter → share of its gradient that the samples leave, played from the head down to the pair's first convolution."""
    G = reading.loss.gradient(logits, reading.Y) * reading.weights[:, None]
    E = above.gates * (G @ head.W.double() / above.gates.shape[1])[:, None]  # (B, P, channels)
    names: list[str] = []
    parameters: list[Tensor] = []
    with torch.enable_grad():
        out = maps
        for layer, activation in ((pair.first, pair.activation), (pair.second, None)):
            out = _layer(layer, activation, out, names, parameters, train=train)
        gradients = torch.autograd.grad(out, parameters, E.mT.contiguous().view(out.shape))
    played = dict(zip(names, gradients, strict=True))
    played[f"{head.name}.weight"], played[f"{head.name}.bias"] = G.T @ features, G.sum(0)
    sent = {name: update.gradients[name].to(maps) for name in played if name in update.gradients}
    sizes = shared_sizes(sent)
    return {name: float((g - played[name]).norm()) / sizes[name] for name, g in sent.items()}


def _layer(
    layer: ConvLayer,
    activation: Activation | None,
    x: Tensor,
    names: list[str],
    parameters: list[Tensor],
    *,
    train: bool,
) -> Tensor:
    """Convolution, BatchNorm and activation in float64, with their parameters noted."""
    norm = layer.batch_norm
    assert norm is not None
    held = {
        f"{layer.name}.weight": layer.conv.weight,
        f"{layer.norm_name}.weight": norm.weight,
        f"{layer.norm_name}.bias": norm.bias,
    }
    W, gamma, beta = (None if p is None else p.detach().to(x).requires_grad_() for p in held.values())
    names += [name for name, p in held.items() if p is not None]
    parameters += [p for p in (W, gamma, beta) if p is not None]
    assert W is not None
    z = F.conv2d(x, W, None if layer.conv.bias is None else layer.conv.bias.detach().to(x), padding=layer.conv.padding)
    mean, variance = (None if train or b is None else b.to(x) for b in (norm.running_mean, norm.running_var))
    y = F.batch_norm(z, mean, variance, gamma, beta, training=train, eps=norm.eps)
    return y if activation is None else activation.function(y)


def judge_bottleneck(answer: BottleneckAnswer, knowledge: Knowledge, dtype: torch.dtype) -> Claim:
    """The claim: every tensor from the head down to the pair is explained, by one loss, with gates that pooling shows."""
    limit = max(rounding(torch.float32), rounding(dtype))
    explained = answer.unexplained < limit
    doubts = [*doubt_reading(answer.reading, knowledge), *doubt_number(answer.reading, knowledge)]
    if not explained:
        doubts.append(
            f"Sent through the layers again, the samples leave {answer.unexplained:.0e} of the gradient of {answer.worst!r}."
        )
    return grant(
        Evidence(
            MARGIN * answer.errors,
            explained=explained,
            confirmations=int(answer.hits.min()) - 1,
            missing=answer.missing,
            doubts=doubts,
            assumed=[f"The claim stands on the declared loss: {answer.reading.loss.name}."] if knowledge.loss else [],
        )
    )
