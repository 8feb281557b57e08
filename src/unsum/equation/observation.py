"""What the head's gradient says once it is factored: the known side of the equation, with its
noise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from unsum.equation.equation import Equation, Unknowns
from unsum.equation.noise import Noise, factorize, measure_noise, rounding_of_an_entry
from unsum.head import Factors, Head
from unsum.losses import CrossEntropy, Loss
from unsum.running.sharing import once

_SHOWN = 3.0  # standard deviations of a column's root mean square from which it is no noise


@dataclass(frozen=True)
class Observation:
    """∇W = U A and K = A Wᵀ, all in float64 on the head's device."""

    U: Tensor  # (C, R)
    A: Tensor  # (R, H)
    K: Tensor  # (R, C)
    b: Tensor  # (C,) zeros where the head has none
    grad_b: Tensor | None  # (C,)
    noise: Noise
    weight: Tensor  # (C,) one over the standard deviation of an entry of U
    beta: float  # the constant feature's value that gives ∇b the same standard deviation as U
    reduction: str
    row_norms: Tensor  # (C,) of W
    client_precision: float  # relative error of one operation at the client
    loss: Loss = field(default_factory=CrossEntropy)  # that the client is taken to have minimized

    @property
    def rank(self) -> int:
        return self.A.shape[0]

    @property
    def classes(self) -> int:
        return len(self.b)

    @property
    def inputs(self) -> int:
        """How many of the head's H inputs the gradient shows: columns of ∇W above the noise. Relu
        leaves the others at zero."""
        weighted = self.weight[:, None] * self.U
        strength = (self.A * (weighted.T @ weighted @ self.A)).sum(
            0
        ) / self.classes  # of each column, in the noise's units
        return int((strength > _SHOWN**2).sum())

    def equation(self) -> Equation:
        """The unlabeled equation over all rows."""
        U = (
            self.U
            if self.grad_b is None
            else torch.cat([self.U, self.beta * self.grad_b[:, None]], dim=1)
        )
        return Equation(self.K, self.b, U, self.weight, self.beta, loss=self.loss)

    def weights_at(self, at: Unknowns, Y: Tensor) -> Tensor:
        """(C,) weights from the noise model at a solution."""
        equation = replace(self.equation(), Y=Y)
        return noise_weights(equation, at, self.noise.level, self.row_norms, self.client_precision)

    def alpha(self, scale: float, B: int) -> float:
        """The factor in front of G for a gradient of cross-entropy that was multiplied by
        `scale`."""
        return scale / B if self.reduction == "mean" else scale

    def plain_alpha(self, B: int, Y: Tensor | None) -> float:
        """The factor of a gradient that nothing has scaled, for B samples, of targets Y where they
        are whole."""
        if self.reduction != "mean":
            return 1.0
        return 1 / (float(B) if Y is None else self.loss.divisor(Y))


def noise_weights(
    equation: Equation, at: Unknowns, level: Tensor, row_norms: Tensor, precision: float
) -> Tensor:
    """(…, C) one over the deviation of a row of U: every sample's rounding, in proportion to its
    features, and `level` (…, C).

    The equation's targets are the whole ones. `row_norms` (C,) are W's, `precision` that of the
    client's operations.
    """
    assert equation.Y is not None
    sizes = at.T.norm(dim=-1, keepdim=True)
    rounding = equation.loss.rounding(equation.logits(at.T), equation.Y, sizes * row_norms)
    client = precision * (at.alpha[..., None] * rounding * sizes).square().sum(-2).sqrt()
    return torch.rsqrt(level.square() + client.square())


def observe(head: Head, batch_size: int | None, noise: Noise | None = None) -> Observation:
    """Measure the noise unless it is known, choose the rank and factor the gradient; a granted
    `batch_size` caps the rank."""
    noise = noise or measure_noise(head)
    return observed(head, factorize(head, noise, batch_size), noise, CrossEntropy())


def observed(head: Head, factors: Factors, noise: Noise, loss: Loss) -> Observation:
    """What factors and noise of a gradient say, for the loss that the client is taken to have
    minimized."""
    if type(loss) is not CrossEntropy:  # a loss of the user's own may hide what makes it another
        return _observed(head, factors, noise, loss)
    return once("observed", (head, factors, noise), lambda: _observed(head, factors, noise, loss))


def _observed(head: Head, factors: Factors, noise: Noise, loss: Loss) -> Observation:
    K = head.logits(factors.A)
    b = K.new_zeros(head.classes) if head.b is None else head.b.double()
    # Entries that were frozen or pruned away are zero although the same row of ∇W is not: such a ∇b
    # is not used.
    lost = head.grad_b is not None and bool(
        ((head.grad_b == 0) & (factors.U.norm(dim=1) > 0)).any()
    )
    grad_b = None if head.grad_b is None or lost else head.grad_b.double()
    # The client's own softmax, computed in W's precision, errs alike in every column: no averaging
    # over columns.
    client_precision = torch.finfo(head.W.dtype).eps / 2
    client = client_precision * factors.U.norm(dim=1)
    deviation = (noise.level.square() + client.square()).sqrt()
    beta = 1.0
    if grad_b is not None:
        added = float(noise.level.min()) if noise.added else 0.0
        precision = max(rounding_of_an_entry(head), client_precision)
        sent_b = grad_b if head.sent_b is None else head.sent_b.double()
        bias_deviation = (added**2 + (precision * sent_b).square()).sqrt()
        least = 1e-12 * bias_deviation.max() + 1e-300
        beta = float((deviation / bias_deviation.clamp_min(least)).median())
    row_norms, U, A = head.row_norms(head.W), factors.U, factors.A
    return Observation(
        U,
        A,
        K,
        b,
        grad_b,
        noise,
        1 / deviation,
        beta,
        head.reduction,
        row_norms,
        client_precision,
        loss,
    )
