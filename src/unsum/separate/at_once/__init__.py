"""Many gradients of one head at once: the exact solver's usual way, in algebra that is batched over
updates.

The usual way is a batch with hard labels, a bias and nothing but rounding in its gradient: noise
and rank, the regression that counts labels, two starts, and all the evidence for a claim. It is the
same computation as `separate.exact`, stage by stage; whoever leaves that way at any stage gets no
answer here and is for `separate.exact`.

- `gradients`: noise, rank, factors; `labels`: the regression and the starts; `evidence`: predicted
  errors and doubts.

The equation, its solver and the doubts' figures are those of one update, with a dimension more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.certify.candidate import polishing
from unsum.certify.claim import Evidence, grant
from unsum.certify.counted import count
from unsum.certify.doubts.network import doubt_network
from unsum.equation.equation import Equation, Linearized, Unknowns, solve
from unsum.equation.levenberg import SMALL
from unsum.equation.observation import noise_weights
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.at_once.evidence import weigh
from unsum.separate.at_once.gradients import Observations, observe_at_once
from unsum.separate.at_once.labels import fit_lines, start_points
from unsum.separate.exact.proposals import ITERATIONS
from unsum.separate.exact.search import SAME_SOLUTION
from unsum.separate.method import working_type

# times as many classes as samples, below which the regression must be told which rows are labels
_CROWDED = 4
_BYTES = 1 << 29  # of the largest arrays


def exact_at_once(
    head: Head, grad_W: Tensor, grad_b: Tensor, sizes: list[int | None], seed: int
) -> list[Leak | None]:
    """The answer to each gradient (N, C, H), (N, C) of the `head` that is certain; None for those
    to be solved by themselves.

    `sizes` are the batch sizes that are known. All are means over their batch, of cross-entropy.
    """
    answers: list[Leak | None] = [None] * len(grad_W)
    # the solver of one update says which doubts
    if head.classes <= 2 or doubt_network(head, "exact", "cross-entropy"):
        return answers
    for seen in observe_at_once(head, grad_W, grad_b, sizes):
        rank = seen.K.shape[1]
        if _CROWDED * rank < head.classes and rank**2 <= SMALL and len(seen.place) > 0:
            for part in torch.arange(len(seen.place), device=seen.place.device).split(
                _fitting(rank, head.classes)
            ):
                _answer(head, seen.take(part), sizes, seed, answers)
    return answers


def _fitting(rank: int, classes: int) -> int:
    """How many of them: every pair of samples has two changes of the residual, which are the most
    that is in memory."""
    return max(1, _BYTES // (8 * rank**2 * classes * (rank + 1)))


def _answer(
    head: Head, seen: Observations, sizes: list[int | None], seed: int, answers: list[Leak | None]
) -> None:
    b = seen.K.new_zeros(head.classes) if head.b is None else head.b.double()
    lines = fit_lines(seen, b)
    usual = lines.fits.nonzero()[:, 0]
    if len(usual) == 0:
        return
    lines, seen = lines.take(usual), seen.take(usual)
    Y = torch.nn.functional.one_hot(lines.labels, head.classes).double()
    U = torch.cat([seen.U, (seen.beta[:, None] * seen.grad_b)[..., None]], dim=2)
    equations, alpha = Equation(seen.K, b, U, seen.weight, seen.beta, Y), 1 / Y.shape[1]
    generator = torch.Generator().manual_seed(seed)
    starts = torch.cat([start_points(lines, Y, generator) for _ in range(2)])
    twice, both = (
        equations.take(torch.arange(len(Y), device=Y.device).repeat(2)),
        Unknowns.of(starts, alpha),
    )
    first, second = solve(twice, both, ITERATIONS, in_noise_units=True).T.chunk(2)
    precision, at = torch.finfo(head.W.dtype).eps / 2, Unknowns.of(first, alpha)
    weight = noise_weights(equations, at, seen.level, head.row_norms(head.W), precision)
    equations = equations.with_rows(weight)
    at = solve(equations, at, polishing(equations), in_noise_units=True)
    apart = torch.cdist(at.T, second).amin(2) / at.T.norm(dim=2).clamp_min(1e-300)
    errors, sure = weigh(head, seen, Linearized(equations, at))
    kept = (sure & (apart.amax(1) < SAME_SOLUTION)).nonzero()[:, 0]
    here = Linearized(equations.take(kept), Unknowns.of(at.T[kept], alpha))
    _write(head, seen.take(kept), here, errors[kept], sizes, answers)


def _write(
    head: Head,
    seen: Observations,
    here: Linearized,
    errors: Tensor,
    sizes: list[int | None],
    answers: list[Leak | None],
) -> None:
    """The claims, and the answers in the attacker's own order."""
    T, targets = here.at.T, here.equation.targets(here.at)
    logits, features = here.equation.logits(T), (T @ seen.A).to(working_type(head))
    missed = ((here.at.alpha[..., None] * here.G).mT @ T - seen.U).norm(dim=(1, 2)) / seen.U.norm(
        dim=(1, 2)
    )
    residuals, told = missed.tolist(), errors.cpu()
    for n, place in enumerate(seen.place.tolist()):
        Y, known = targets[n], Knowledge(batch_size=sizes[place])
        counted = count(T[n], Y.argmax(1), errors[n], known)
        # Nobody doubts: `evidence` has asked everybody.
        claim = grant(Evidence(told[n], explained=True, confirmations=1, counted=counted))
        answers[place] = Leak(
            method="exact",
            targets=Y,
            logits=logits[n],
            features=features[n],
            residual=residuals[n],
            predicted_error=claim.predicted_error,
            exact=claim.exact,
            predicts=claim.predicts,
            counted=claim.counted,
            notes=claim.notes,
        )
