"""The loss: how much the entries of ŷ(λ) differ that the augmentation makes equal.

    smoothing  (1 − ε) e_y + ε/C            all but the largest entry are ε/C:      1000 Var(the C − 1 smallest)
    mixup      w e_y + (1 − w) e_z          all but the two largest are 0:          1000 Var(the C − 2 smallest)

Var divides by the number of entries. A hard label is both. The loss is zero at λ*, and also falls to zero as |λ| → ∞, where
softmax saturates and u/λ vanishes: that is no label. A root is therefore a minimum with larger losses on either side.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.separate.soft.ray import Ray

FACTOR = 1000.0
DISTINCT = {"smoothing": 1, "mixup": 2}  # entries of a label that may differ from the rest
SUCCESS = 1e-9


class Spread:
    """The loss of one kind of label along one ray, for many λ at a time; counts its evaluations."""

    def __init__(self, ray: Ray, kind: str) -> None:
        self.ray = ray
        self.kind = kind
        self.equal = len(ray.u) - DISTINCT[kind]
        self.evaluations = 0

    def __call__(self, lengths: Tensor) -> Tensor:
        """(n,) losses at n lengths λ: one softmax over all of them."""
        self.evaluations += len(lengths)
        smallest = self.ray.labels(lengths).topk(self.equal, dim=1, largest=False, sorted=False).values
        return FACTOR * smallest.var(dim=1, unbiased=False)

    def at(self, length: float) -> float:
        return float(self(self.ray.u.new_tensor([length])))

    def with_slope(self, length: float) -> tuple[float, float]:
        """The loss and its derivative: dŷ_i/dλ = p_i (k_i − Σ_j p_j k_j) + u_i/λ²."""
        self.evaluations += 1
        ray = self.ray
        P = torch.softmax(length * ray.k + ray.b, dim=0)
        Y = P - ray.u / length
        change = P * (ray.k - P @ ray.k) + ray.u / length**2
        chosen = Y.topk(self.equal, largest=False, sorted=False).indices
        from_mean = Y[chosen] - Y[chosen].mean()
        value, slope = from_mean @ from_mean, 2 * from_mean @ change[chosen]
        return FACTOR / self.equal * float(value), FACTOR / self.equal * float(slope)

    def noise_floor(self, length: float) -> float:
        """The loss that the gradient's noise alone leaves at λ: in u, and through the logits λ k in p."""
        ray = self.ray
        P = torch.softmax(length * ray.k + ray.b, dim=0).topk(self.equal, largest=False, sorted=False).values
        return FACTOR * ((ray.noise_u / length) ** 2 + float((P * length * ray.noise_k).square().mean()))
