"""One client in several rounds, on the same data: more equations for the same features.

Every round r gives  α_r T̃ᵀ (softmax(T K_r + b_r) − Y) = U_rᵀ  with weights W_r of its own, and one T for all of them if the
features are the same: A spans the rows of all gradients together. Noise is averaged, and what one round leaves open another may
decide. Features move with the body of the network; where they moved by more than the noise, the rounds do not fit together, and
that shows in the misfit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unsum.equation.observation import Observation, observe
from unsum.equation.threads import few_threads
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.exact.solver import exact
from unsum.update import Update

_EXPLAINED = 4.0  # misfit of a solution, in units of the noise
_TRUSTED_ERROR = 1e-3
_ITERATIONS = 40


def separate_rounds(
    rounds: Sequence[tuple[nn.Module, Update]],
    *,
    labels: Tensor | None = None,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> Leak:
    """`separate` for a client that trained on the same batch in several rounds. Only for data that are known to repeat.

    Args:
        rounds: for each round the model with the weights that were sent, and the update that came back.
        labels, batch_size, device, seed: as for `separate`.

    Returns:
        One `Leak` for all rounds, or the best of the single ones, with a note, where the rounds do not fit together.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> inputs, labels = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> updates = [unsum.capture(model, inputs, labels, defenses=unsum.Noise(1e-4)) for _ in range(4)]
        >>> leak = unsum.separate_rounds([(model, update) for update in updates])
        >>> sorted(leak.labels.tolist()), leak.notes[0][:31]
        ([1, 4, 4], '4 rounds were solved together; ')
    """
    if not rounds:
        raise UnsumError("No round was given; pass a list of (model, update), one for each round.")
    start = time.perf_counter()
    knowledge = Knowledge(labels=labels, batch_size=batch_size, repeated_rounds=len(rounds))
    heads = [Head.of(model, update, device) for model, update in rounds]
    odd = next((head for head in heads if head.W.shape != heads[0].W.shape), None)
    if odd is not None:
        shapes = f"{tuple(heads[0].W.shape)} and {tuple(odd.W.shape)}"
        raise UnsumError(f"The rounds are of different models: their heads have the shapes {shapes}.")
    single = [exact(head, knowledge, seed=seed) for head in heads]
    best = min(single, key=lambda leak: leak.predicted_error)
    leak = best if len(heads) == 1 else _together(heads, single, best)
    return replace(leak, knowledge=knowledge, seconds=time.perf_counter() - start)


def _together(heads: list[Head], single: list[Leak], best: Leak) -> Leak:
    starts = [leak for leak in single if leak.batch_size == best.batch_size]
    joint = _Joint.of(heads, single, best.batch_size)
    with few_threads(heads[0].classes * best.batch_size):
        answers = [joint.solve(leak) for leak in starts]
    answer = min(answers, key=lambda found: found.misfit)
    if answer.misfit > _EXPLAINED:
        reason = f"The rounds do not fit together ({answer.misfit:.1e} times their noise): features moved, or the data differ."
        place = next(place for place, leak in enumerate(single, 1) if leak is best)
        return replace(best, notes=[f"{reason} The answer is of round {place} of {len(heads)} alone.", *best.notes])
    P = torch.softmax(answer.T @ joint.parts[0].K + joint.parts[0].b, dim=1)
    explained = joint.alphas[0] * (P - answer.Y).T @ answer.T
    predicted = float(answer.errors.max())
    return Leak(
        method="exact",
        targets=answer.Y,
        logits=answer.T @ joint.parts[0].K + joint.parts[0].b,
        features=(answer.T @ joint.parts[0].A).to(best.features.dtype),
        residual=float((explained - joint.parts[0].U).norm() / joint.parts[0].U.norm()),
        predicted_error=predicted,
        exact=predicted < _TRUSTED_ERROR and len(starts) > 1 and joint.agree(answers),
        scale=best.scale,
        notes=[f"{len(heads)} rounds were solved together; one round alone predicted {best.predicted_error:.1e}."],
    )


@dataclass(frozen=True)
class _Answer:
    T: Tensor
    Y: Tensor
    misfit: float
    errors: Tensor


@dataclass(frozen=True)
class _Joint:
    """All rounds in one basis A."""

    parts: list[Observation]
    alphas: list[float]

    @classmethod
    def of(cls, heads: list[Head], single: list[Leak], B: int) -> _Joint:
        seen = [observe(head, B) for head in heads]
        # Rows in units of their noise, so that a loud round does not turn the basis.
        rows = [head.grad_W.double() / part.noise.level[:, None] for head, part in zip(heads, seen, strict=True)]
        basis = torch.linalg.svd(torch.cat([part.U / part.noise.level[:, None] for part in seen]), full_matrices=False)[
            0
        ]
        stacked = torch.cat(rows)
        rank = min(B, max(part.rank for part in seen))
        A = torch.linalg.svd(basis[:, : basis.shape[1]].T @ stacked, full_matrices=False)[2][:rank]
        A = torch.linalg.svd((stacked @ A.T).T @ stacked, full_matrices=False)[2][
            :rank
        ]  # one power step averages noise out
        parts = [
            replace(part, A=A, U=head.projected(A), K=head.logits(A)) for head, part in zip(heads, seen, strict=True)
        ]
        alphas = [part.alpha(leak.scale, B) for part, leak in zip(parts, single, strict=True)]
        return cls(parts, alphas)

    def solve(self, start: Leak) -> _Answer:
        """Gauss–Newton with Levenberg's damping on the residuals of all rounds."""
        T, Y = start.features.double() @ self.parts[0].A.T, _hardened(start.targets.double())
        at, damping = T.flatten(), 1e-3
        shape = T.shape
        r = self._residual(at, shape, Y)
        for _ in range(_ITERATIONS):
            J = torch.func.jacfwd(lambda point: self._residual(point, shape, Y))(at)
            N, g = J.T @ J, J.T @ r
            while damping < 1e10:
                step = torch.linalg.solve(N + damping * torch.diag(N.diagonal() + 1e-300), -g)
                new = self._residual(at + step, shape, Y)
                if float(new.square().sum()) < float(r.square().sum()):
                    break
                damping *= 4
            gained = 1 - float(new.square().sum()) / max(float(r.square().sum()), 1e-300)
            if gained <= 0:
                break
            at, r, damping = at + step, new, max(damping / 5, 1e-14)
            if gained < 1e-4:
                break
        return self._certified(at, shape, Y, r)

    def agree(self, answers: list[_Answer]) -> bool:
        """Whether another round's start led to the same features."""
        best, other = sorted(answers, key=lambda found: found.misfit)[:2]
        distance = torch.cdist(best.T, other.T).amin(1) / best.T.norm(dim=1).clamp_min(1e-300)
        return float(distance.max()) < _TRUSTED_ERROR

    def _residual(self, at: Tensor, shape: torch.Size, Y: Tensor) -> Tensor:
        T, every = at.view(shape), []
        for part, alpha in zip(self.parts, self.alphas, strict=True):
            E = alpha * (torch.softmax(T @ part.K + part.b, dim=1) - Y)
            every.append(part.weight[:, None] * (E.T @ T - part.U))
            if part.grad_b is not None:
                every.append(part.weight[:, None] * part.beta * (E.sum(0) - part.grad_b)[:, None])
        return torch.cat(every, dim=1).flatten()

    def _certified(self, at: Tensor, shape: torch.Size, Y: Tensor, r: Tensor) -> _Answer:
        T = at.view(shape)
        J = torch.func.jacfwd(lambda point: self._residual(point, shape, Y))(at)
        equations = len(r) - len(r) // len(Y[0]) - at.numel()
        misfit = float((r.square().sum() / max(equations, 1)).sqrt())
        spread, size = max(misfit, 1.0) ** 2, T.norm(dim=1).clamp_min(1e-300)
        prior = size.pow(-2).repeat_interleave(shape[1]) * spread
        inverse = torch.linalg.inv(J.T @ J + torch.diag(prior))
        variance = inverse.diagonal().view(shape).sum(1) * spread + self._outside(T, Y)
        return _Answer(T, Y, misfit, (variance.clamp_min(0).sqrt() / size).nan_to_num(nan=torch.inf))

    def _outside(self, T: Tensor, Y: Tensor) -> Tensor:
        """(B,) noise of A itself, which the features pass on: that of a least-squares solution over the rows of all rounds."""
        columns = [
            alpha * (torch.softmax(T @ part.K + part.b, dim=1) - Y).T / part.noise.level[:, None]
            for part, alpha in zip(self.parts, self.alphas, strict=True)
        ]
        inverse: Tensor = torch.linalg.pinv(torch.cat(columns)).square().sum(1) * self.parts[0].A.shape[1]
        return inverse


def _hardened(Y: Tensor) -> Tensor:
    """Hard labels where all of them nearly are."""
    hard = torch.nn.functional.one_hot(Y.argmax(1), Y.shape[1]).double()
    return hard if float((Y - hard).abs().max()) < 0.1 else Y
