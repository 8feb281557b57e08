"""Whether a sample would be seen in the residual of a replay, and two samples that look like one.

Two samples x ± d of one label send, besides what their mean sends, ½ (δ₊ − δ₋)ᵀ ½ (x₊ − x₋) to a
layer that reads x and writes z, δ = ∂loss/∂z. Of that, no other answer of as many samples explains
the part outside the span of all x and outside the span of all δ. Random d of a given length are
sent through the model. Where that part does not stand far above the residual of any layer, one
sample cannot be told from two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unsum.head import orthonormal_rows

# [residuals] what a sample, or the difference of two, must stand above.
# Chosen by: as many as eight samples share a direction.
FAR = 10.0
_MOVED = 1e-3  # [of an input's norm] change that is sent. Chosen by: small, for a derivative.
_POWERS = 8  # [steps] of power iteration. Chosen by: arbitrary budget.


@dataclass(frozen=True)
class Passed:
    """What a layer read at each of P places, (B, P, n), and ∂loss/∂(what it wrote), (B, P, m)."""

    patches: Tensor
    delta: Tensor

    @classmethod
    def of(cls, conv: nn.Module, read: Tensor, sent: Tensor) -> Passed:
        """From maps (B, C, h, w) and (B, O, h, w)."""
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(conv.padding, tuple)
        patches = F.unfold(read, conv.kernel_size, padding=conv.padding).mT
        return cls(patches, sent.flatten(2).mT)

    @property
    def size(self) -> Tensor:
        """(B,) ‖Σ over places of δ ⊗ patch‖, by Gram matrices of the places."""
        if self.delta.shape[1] == 1:
            return self.delta[:, 0].norm(dim=1) * self.patches[:, 0].norm(dim=1)
        squares = (self.delta @ self.delta.mT) * (self.patches @ self.patches.mT)
        return squares.sum((1, 2)).clamp_min(0).sqrt()

    def spans(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Orthonormal rows of all patches, and of all δ."""
        parts = (part.flatten(0, 1).double() for part in (self.patches, self.delta))
        patches, delta = (orthonormal_rows(part).to(dtype) for part in parts)
        return patches, delta

    def beyond(self, other: Passed, spans: tuple[Tensor, Tensor]) -> Tensor:
        """(B,) size of half the difference from `other`, outside the spans of patches and δ."""
        halves = (self.patches - other.patches) / 2, (self.delta - other.delta) / 2
        return Passed(*map(outside, halves, spans)).size


@dataclass(frozen=True)
class SentLayers:
    """Inputs (B, …) with what layers read and were sent, and the largest singular value of what is
    `left` of each one's gradient. `play` gives the former for other inputs."""

    inputs: Tensor  # in a precision that a difference of a hundredth needs
    at: Mapping[str, Passed]
    left: Mapping[str, float]
    play: Callable[[Tensor], Mapping[str, Passed]]

    def contributions(self) -> Tensor:
        """(B,) what a sample sends, in residuals of the layer that shows it least."""
        return torch.stack([self.at[name].size / left for name, left in self.left.items()]).amin(0)

    def twins(self, share: float, draws: int, seed: int) -> Tensor:
        """(B,) how far two samples, `share` of an input from their mean, stand above the residual.

        The layer counts that shows the two best, in the one of `draws` directions that shows them
        least.
        """
        generator, shown = torch.Generator().manual_seed(seed), []
        spans = {name: self.at[name].spans(self.inputs.dtype) for name in self.left}
        for _ in range(draws):
            d = drawn(self.inputs, share, generator)
            plus, minus = self.play(self.inputs + d), self.play(self.inputs - d)
            beyond = {name: plus[name].beyond(minus[name], spans[name]) for name in spans}
            shown.append(torch.stack([beyond[name] / self.left[name] for name in spans]).amax(0))
        return torch.stack(shown).amin(0)


def amplification(
    features: Callable[[Tensor], Tensor], inputs: Tensor, draws: int, generator: torch.Generator
) -> Tensor:
    """(B,) how much larger relative errors of features are than those of inputs, at least 1."""
    here = features(inputs)
    worst = torch.ones(len(inputs), dtype=torch.float64, device=inputs.device)
    for _ in range(draws):
        change = features(inputs + drawn(inputs, _MOVED, generator)) - here
        relative = change.norm(dim=1) / here.norm(dim=1).clamp_min(1e-30)
        worst = torch.maximum(worst, relative.double() / _MOVED)
    return worst


def drawn(inputs: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Random changes of inputs (B, …), each as long as a `share` of its input."""
    u = torch.randn(inputs.shape, generator=generator, dtype=torch.float64).to(inputs).flatten(1)
    lengths = share * inputs.flatten(1).norm(dim=1, keepdim=True)
    return (u / u.norm(dim=1, keepdim=True) * lengths).view_as(inputs)


def outside(rows: Tensor, basis: Tensor) -> Tensor:
    """What of the rows lies outside the span of a basis of orthonormal rows."""
    rest: Tensor = rows - (rows @ basis.T) @ basis
    return rest - (rest @ basis.T) @ basis  # the second pass removes what the first one rounded


def largest(matrix: Tensor) -> float:
    """The largest singular value by power iteration: a lower bound, which is close for noise."""
    least = torch.finfo(matrix.dtype).tiny
    v = torch.ones_like(matrix[0]) / matrix.shape[1] ** 0.5
    v = v + matrix[0] / matrix[0].norm().clamp_min(least)
    size = matrix.new_zeros(())
    for _ in range(_POWERS):
        u = matrix @ (v / v.norm().clamp_min(least))
        size = u.norm()
        v = matrix.T @ u
    return max(float(size), least)
