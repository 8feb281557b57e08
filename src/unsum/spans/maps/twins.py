"""Doubts about single samples: who is drowned by what is left of a gradient, and who may be several that look like one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unsum.certify.claim import FALSE_ERROR
from unsum.certify.question import name_some
from unsum.deadline import out_of_time
from unsum.head import orthonormal_rows
from unsum.knowledge import Knowledge
from unsum.peel.walk import FAR

UNJUDGED = "a closer look at what may be claimed"
_DRAWS = 4  # directions in which two samples are set apart
_POWERS = 8  # steps to the largest singular value


@dataclass(frozen=True)
class Passed:
    """What a convolution read, place by place, (B, P, C k k), and ∂loss/∂(what it wrote), (B, P, O)."""

    patches: Tensor
    delta: Tensor

    @classmethod
    def of(cls, conv: nn.Module, read: Tensor, sent: Tensor) -> Passed:
        """From maps (B, C, h, w) and (B, O, h, w)."""
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(conv.padding, tuple)
        return cls(F.unfold(read, conv.kernel_size, padding=conv.padding).mT, sent.flatten(2).mT)

    @property
    def size(self) -> Tensor:
        """(B,) ‖Σ over places of δ ⊗ patch‖, through small Gram matrices."""
        squares = ((self.delta @ self.delta.mT) * (self.patches @ self.patches.mT)).sum((1, 2))
        return squares.clamp_min(0).sqrt()


@dataclass(frozen=True)
class SentMaps:
    """Maps (B, C, h, w), what convolutions make of them and leave of their gradients, and `play`, the same for other maps."""

    maps: Tensor
    passed: dict[str, Passed]
    left: dict[str, Tensor]  # convolution → gradient sent less gradient played
    play: Callable[[Tensor], dict[str, Passed]]  # in float32: enough for differences of a hundredth


def doubt_samples(sent: SentMaps, copies: Tensor | None, knowledge: Knowledge, seed: int) -> list[str]:
    """Samples that are drowned by what is left, or may be several that look like one."""
    if out_of_time(UNJUDGED):
        return ["Time was over before it was known whether a sample may be several that look like one."]
    left = {name: largest(rest.flatten(1)) for name, rest in sent.left.items()}
    shown = torch.stack([sent.passed[name].size / left[name] for name in left])
    faint = (~(shown.amin(0) > FAR)).nonzero()[:, 0].tolist()
    if faint:
        return [f"Sample {name_some(faint)} sends little more to some layer than is left unexplained there."]
    hidden = ~(_twins(sent, left, seed) > FAR)
    if knowledge.known_batch_size is not None:  # who counts once is one; who counts twice may be two that are alike
        hidden &= torch.ones_like(hidden) if copies is None else copies > 1
    several = hidden.nonzero()[:, 0].tolist()
    if several:
        return [
            f"Sample {name_some(several)} may be several whose maps differ by a few percent: these would look like one here"
            + ("." if knowledge.known_batch_size else "; say the batch size if it is known.")
        ]
    if knowledge.known_batch_size is None:
        # Beside a sample, a twin of 1e-4 of its weight sends less than rounding: only the number of samples tells of it.
        return ["A sample that weighs next to nothing may be missing beside these; say the batch size if it is known."]
    return []


def assumed(loss: str, knowledge: Knowledge) -> list[str]:
    """What a claim stands on."""
    return [f"The claim stands on the declared loss: {loss}."] if knowledge.loss else []


def drawn(maps: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Random changes of maps, each so long a share of its map."""
    u = torch.randn(maps.shape, generator=generator).to(maps).flatten(1)
    sized = u / u.norm(dim=1, keepdim=True) * (share * maps.flatten(1).norm(dim=1))[:, None]
    return sized.view_as(maps)


def _twins(sent: SentMaps, left: dict[str, float], seed: int) -> Tensor:
    """(B,) how far two samples, a hundredth from their mean, would stand above what is left, in the layer that shows them best.

    They send, besides what their mean sends, ½ (δ₊ − δ₋) ⊗ ½ (patch₊ − patch₋). What of it lies outside all known patches and
    all known δ, no other answer of as many samples can take up.
    """
    generator = torch.Generator().manual_seed(seed + 4)
    shown, maps = [], sent.maps.float()
    known = {
        name: tuple(orthonormal_rows(part.flatten(0, 1)).float() for part in (one.patches, one.delta))
        for name, one in sent.passed.items()
    }
    for _ in range(_DRAWS):
        d = drawn(maps, FALSE_ERROR, generator)
        plus, minus = sent.play(maps + d), sent.play(maps - d)
        each = []
        for name in left:
            halves = (plus[name].patches - minus[name].patches) / 2, (plus[name].delta - minus[name].delta) / 2
            beyond = (part - (part @ basis.T) @ basis for part, basis in zip(halves, known[name], strict=True))
            each.append(Passed(*beyond).size / left[name])
        shown.append(torch.stack(each).amax(0))
    return torch.stack(shown).amin(0)


def largest(matrix: Tensor) -> float:
    """The largest singular value, by a few powers: a lower bound that is close for noise, whose values are alike."""
    v = torch.ones_like(matrix[0]) / matrix.shape[1] ** 0.5 + matrix[0] / matrix[0].norm().clamp_min(1e-300)
    size = matrix.new_zeros(())
    for _ in range(_POWERS):
        u = matrix @ (v / v.norm().clamp_min(1e-300))
        size = u.norm()
        v = matrix.T @ u
    return max(float(size), 1e-300)
