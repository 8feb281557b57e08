"""What RGLA minimizes over the logits Ŷ (B×C), with its gradient by hand; `reference` has the same
in plain autograd.

With targets Y, P = softmax(Ŷ), D = (P − Y)/B and Z = Ŷ − b,

    L_w = ‖M − DᵀZ‖²,  M = ∇W Wᵀ       Proposition 1: ∇W = Gᵀ F and F Wᵀ = logits − b, so M = DᵀZ at
                                       the true logits
    L_b = ‖∇b − Dᵀ1‖²
    L_loss = (CE(Ŷ, y) − l̂)²           l̂ of `estimated_loss`

D depends on Ŷ and is differentiated: for ∂D and ∂Z the partial derivatives of a term,

    ∂Ŷ = ∂Z + P∘(∂D − rowsum(P∘∂D))/B,      L_w: ∂Z = 2 D R, ∂D = 2 Z Rᵀ with R = DᵀZ − M,
    L_b: ∂D = 2·1(Dᵀ1 − ∇b)ᵀ,               L_loss: ∂Ŷ = 2 (CE − l̂) D.

With `constant_D` the part through ∂D is left out, as the authors' released code does: L_b then has
no effect.

**Many batches at once.** Every tensor may have leading dimensions: (N, B, C) logits are N batches
that know nothing of each other, and one step moves them all (`stacked`).

**Without C×C matrices.** M = Gᵀ F Wᵀ has rank B. Write M = Q K, Q (C×R) with orthonormal columns,
and split D = S Qᵀ + E with S = D Q. Then R = Q V + EᵀZ with V = SᵀZ − K, the two parts are
orthogonal, and

    L_w = ‖V‖² + ‖EᵀZ‖²,    ∂Z = 2 (S V + E Eᵀ Z),    ∂D = 2 (Z Vᵀ Qᵀ + Z Zᵀ E):

B²C products instead of BC², the same numbers, and no difference of large ones. A noisy gradient has
full rank: then Q = 1, E = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.head import Head

WEIGHTS = {"w": 1e4, "b": 1.0, "loss": 100.0}
_SPARE = 8  # columns of Q beyond B
_NEGLIGIBLE = 3e-6  # part of M outside of Q: what rounding alone puts there in float32


@dataclass(frozen=True)
class LogitObjective:
    """α_w L_w + α_b L_b + α_loss L_loss; a weight of zero drops its term."""

    Q: Tensor | None  # (…, C, R) orthonormal columns, None where R = C
    K: Tensor  # (…, R, C) with M = Q K
    b: Tensor  # (…, C)
    grad_b: Tensor  # (…, C) of the mean loss
    Y: Tensor  # (…, B, C) one-hot
    loss: Tensor  # (…) l̂
    weights: dict[str, float]
    constant_D: bool = False

    @classmethod
    def of(
        cls,
        head: Head,
        labels: Tensor,
        objectives: Collection[str],
        dtype: torch.dtype,
        weights: Mapping[str, float] = WEIGHTS,
    ) -> LogitObjective:
        b, sent = head.of_bias
        B = len(labels)
        to_mean = 1 if head.reduction == "mean" else 1 / B
        M = _product(head, dtype) * to_mean
        Q, K = _low_rank(M, B)
        grad_b = sent.to(dtype) * to_mean
        Y = torch.nn.functional.one_hot(labels, head.classes).to(dtype)
        kept = {name: weight if name in objectives else 0.0 for name, weight in weights.items()}
        return cls(Q, K, b.to(dtype), grad_b, Y, estimated_loss(grad_b, labels), kept)

    def losses(self, logits: Tensor) -> Tensor:
        """(…, 3) L_w, L_b and L_loss without their weights, dropped terms too."""
        D = self.difference(logits.softmax(-1))
        Z = self.without_bias(logits)
        _S, E, V = self._split(D, Z)
        outside = 0 if E is None else ((E @ E.mT) * (Z @ Z.mT)).sum((-2, -1)).clamp_min(0)  # ‖EᵀZ‖²
        bias = (D.sum(-2) - self.grad_b).square().sum(-1)
        loss = (self._entropy(logits) - self.loss).square()
        return torch.stack([V.square().sum((-2, -1)) + outside, bias, loss], -1)

    def total(self, losses: Tensor) -> Tensor:
        """(…) the weighted sum of what `losses` returns."""
        weighted = [
            weight * loss
            for weight, loss in zip(self.weights.values(), losses.unbind(-1), strict=True)
            if weight
        ]
        return torch.stack(weighted).sum(0)

    def gradient(self, logits: Tensor) -> Tensor:
        """(…, B, C) the derivative of the weighted sum; every operation is a fixed kernel, so that
        it can be recorded."""
        P = logits.softmax(-1)
        D = self.difference(P)
        result = torch.zeros_like(P)
        wrt_D = None if self.constant_D else result
        if self.weights["w"]:
            Z = self.without_bias(logits)
            S, E, V = self._split(D, Z)
            result = S @ V if E is None else S @ V + (E @ E.mT) @ Z
            result = result.mul_(2 * self.weights["w"])
            if wrt_D is not None:
                wrt_D = Z @ V.mT
                if self.Q is not None and E is not None:
                    wrt_D = wrt_D @ self.Q.mT + (Z @ Z.mT) @ E
                wrt_D = wrt_D.mul_(2 * self.weights["w"])
        if wrt_D is not None:
            if self.weights["b"]:
                wrt_D = wrt_D + (D.sum(-2) - self.grad_b)[..., None, :] * (2 * self.weights["b"])
            result = result + self.through_softmax(P, wrt_D)
        if self.weights["loss"]:
            result = (
                result
                + D
                * ((self._entropy(logits) - self.loss) * (2 * self.weights["loss"]))[
                    ..., None, None
                ]
            )
        return result

    def curvature(self, logits: Tensor) -> Callable[[Tensor], Tensor]:
        """x ↦ JᵀJ x for directions (B, C), J the Jacobian of the weighted residuals at `logits`:
        Gauss–Newton's Hessian, halved.

        For dZ = x and dD = P∘(dZ − rowsum(P∘dZ))/B the residual moves by dR = dDᵀZ + DᵀdZ, and D dR
        and Z dRᵀ again need no C×C matrix.
        """
        P = logits.softmax(1)
        D, Z = self.difference(P), self.without_bias(logits)
        gram_D, gram_Z = D @ D.T, Z @ Z.T
        a_w, a_b, a_loss = self.weights.values()

        def product(dZ: Tensor) -> Tensor:
            dD = self.through_softmax(P, dZ)
            wrt_Z = D @ dD.T @ Z + gram_D @ dZ
            wrt_D = a_w * (gram_Z @ dD + Z @ dZ.T @ D) + a_b * dD.sum(0)
            return a_w * wrt_Z + self.through_softmax(P, wrt_D) + a_loss * (D * dZ).sum() * D

        return product

    def difference(self, P: Tensor) -> Tensor:
        """D = (P − Y)/B."""
        return (P - self.Y) / P.shape[-2]

    def without_bias(self, logits: Tensor) -> Tensor:
        """Z = Ŷ − b."""
        return logits - self.b[..., None, :]

    def through_softmax(self, P: Tensor, wrt_D: Tensor) -> Tensor:
        """The softmax's Jacobian over B, which is symmetric: dŶ → dD and ∂D → ∂Ŷ alike."""
        return P * (wrt_D - (P * wrt_D).sum(-1, keepdim=True)) / P.shape[-2]

    def _split(self, D: Tensor, Z: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """S, E and V."""
        if self.Q is None:
            return D, None, D.mT @ Z - self.K
        S = D @ self.Q
        return S, D - S @ self.Q.mT, S.mT @ Z - self.K

    def _entropy(self, logits: Tensor) -> Tensor:
        return -(logits.log_softmax(-1) * self.Y).sum((-2, -1)) / logits.shape[-2]


def stacked(objectives: Sequence[LogitObjective]) -> LogitObjective:
    """One objective over (N, B, C) logits, whose N batches are those of the objectives given: same
    sizes, same weights."""
    first, low = objectives[0], all(one.Q is not None for one in objectives)
    Q = torch.stack([one.Q for one in objectives if one.Q is not None]) if low else None
    K = [one.K if low or one.Q is None else one.Q @ one.K for one in objectives]
    b, grad_b, Y, loss = (
        torch.stack([getattr(one, name) for one in objectives])
        for name in ("b", "grad_b", "Y", "loss")
    )
    return replace(first, Q=Q, K=torch.stack(K), b=b, grad_b=grad_b, Y=Y, loss=loss)


def _product(head: Head, dtype: torch.dtype) -> Tensor:
    """M = ∇W Wᵀ (C, C), converted block by block where the tensors are of another type."""
    if head.grad_W.dtype == head.W.dtype == dtype:
        return head.grad_W @ head.W.T
    M = torch.zeros(head.classes, head.classes, dtype=dtype, device=head.W.device)
    for columns in head.column_blocks():
        M.addmm_(head.grad_W[:, columns].to(dtype), head.W[:, columns].T.to(dtype))
    return M


def _low_rank(M: Tensor, B: int) -> tuple[Tensor | None, Tensor]:
    """Q and K with M = Q K to rounding; Q is None where M has not so few directions that it pays.

    Random combinations of the columns of M span its column space: a range finder, checked against M
    afterwards.
    """
    C, R = len(M), B + _SPARE
    if 2 * R > C:
        return None, M
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(C, R, generator=generator).to(M)
    Q = torch.linalg.qr(M @ mixing).Q.contiguous()
    K = Q.T @ M
    outside = (M - Q @ K).norm()
    return (Q, K) if bool(outside <= _NEGLIGIBLE * M.norm()) else (None, M)


def estimated_loss(grad_b: Tensor, labels: Tensor) -> Tensor:
    """l̂ (0-dim) from the bias gradient (C,) of a mean loss and hard labels (B,): Proposition 2 of
    RGLA.

    For a class y that n_y of the B samples carry, ∇b_y + n_y/B is the mean probability of y over
    the batch. Near initialization every sample's own probability is close to that mean, so that l̂
    = −mean_i ln(∇b_{y_i} + n_{y_i}/B) is close to the cross-entropy. Exact for one sample and
    wherever p_iy is the same for all; trained models move it away from the truth.

    Where noise made ∇b_y + n_y/B negative there is no logarithm: such samples are left out of the
    mean, and ln C stands for a batch of which nothing is left.

    >>> uniform = torch.full((4,), 1 / 4) - torch.tensor(  # two samples, p = 1/4 everywhere
    ...     [0.0, 0.5, 0.5, 0.0]
    ... )
    >>> round(float(estimated_loss(uniform, torch.tensor([1, 2]))), 4), round(math.log(4), 4)
    (1.3863, 1.3863)
    """
    counts = torch.bincount(labels, minlength=len(grad_b)).to(grad_b)
    mean_p = (grad_b + counts / len(labels))[labels]
    usable = mean_p > 0
    logarithms = torch.where(usable, mean_p, 1).log()
    uniform = grad_b.new_tensor(math.log(len(grad_b)))
    return torch.where(usable.any(), -logarithms.sum() / usable.sum().clamp_min(1), uniform)
