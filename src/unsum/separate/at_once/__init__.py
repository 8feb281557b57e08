"""Many gradients of one head at once: the exact solver's usual way, in algebra that is batched over updates.

The usual way is a batch with hard labels, a bias and nothing but rounding in its gradient: noise and rank, the regression that
counts labels, two starts, and all the evidence for a claim. It is the same computation as `separate.exact`, stage by stage;
whoever leaves that way at any stage gets no answer here and is for `separate.exact`.

- `gradients`: noise, rank, factors; `labels`: the regression and the starts; `solving`: the equation;
- `evidence`: predicted errors and doubts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.certify.claim import Evidence, grant
from unsum.certify.counted import count
from unsum.equation.levenberg import SMALL
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.at_once.evidence import noise_weights, weigh
from unsum.separate.at_once.gradients import Observations, observe_at_once
from unsum.separate.at_once.labels import fit_lines, start_points
from unsum.separate.at_once.solving import ManyEquations, Points, solve_at_once
from unsum.separate.exact.proposals import ITERATIONS
from unsum.separate.exact.search import SAME_SOLUTION
from unsum.separate.method import working_type

_CROWDED = 4  # times as many classes as samples, below which the regression must be told which rows are labels
_BYTES = 1 << 29  # of the largest arrays
_POLISHED = 20  # iterations with the weights of the noise model, as in `certify.candidate`


def exact_at_once(head: Head, grad_W: Tensor, grad_b: Tensor, sizes: list[int | None], seed: int) -> list[Leak | None]:
    """The answer to each gradient (N, C, H), (N, C) of the `head` that is certain; None for those to be solved by themselves.

    `sizes` are the batch sizes that are known. All are means over their batch, of cross-entropy.
    """
    answers: list[Leak | None] = [None] * len(grad_W)
    if head.classes <= 2:  # a sample and its negative may look alike: the solver of one asks
        return answers
    for seen in observe_at_once(head, grad_W, grad_b, sizes):
        rank = seen.K.shape[1]
        if _CROWDED * rank < head.classes and rank**2 <= SMALL and len(seen.place) > 0:
            for part in torch.arange(len(seen.place), device=seen.place.device).split(_fitting(rank, head.classes)):
                _answer(head, seen.take(part), sizes, seed, answers)
    return answers


def _fitting(rank: int, classes: int) -> int:
    """How many of them: every pair of samples has two changes of the residual, which are the most that is in memory."""
    return max(1, _BYTES // (8 * rank**2 * classes * (rank + 1)))


def _answer(head: Head, seen: Observations, sizes: list[int | None], seed: int, answers: list[Leak | None]) -> None:
    b = seen.K.new_zeros(head.classes) if head.b is None else head.b.double()
    lines = fit_lines(seen, b)
    usual = lines.fits.nonzero()[:, 0]
    if len(usual) == 0:
        return
    lines, seen = lines.take(usual), seen.take(usual)
    Y = torch.nn.functional.one_hot(lines.labels, head.classes).double()
    U = torch.cat([seen.U, (seen.beta[:, None] * seen.grad_b)[..., None]], dim=2)
    equations = ManyEquations(seen.K, b, U, seen.weight, seen.beta, Y)
    generator = torch.Generator().manual_seed(seed)
    starts = torch.cat([start_points(lines, Y, generator) for _ in range(2)])
    each = torch.arange(len(Y), device=Y.device)
    first, second = solve_at_once(equations.take(each.repeat(2)), starts, ITERATIONS).chunk(2)
    equations = equations.with_rows(noise_weights(head, seen, equations, first))
    T = solve_at_once(equations, first, _POLISHED)
    apart = torch.cdist(T, second).amin(2) / T.norm(dim=2).clamp_min(1e-300)
    errors, sure = weigh(head, seen, equations, T)
    kept = (sure & (apart.amax(1) < SAME_SOLUTION)).nonzero()[:, 0]
    _write(head, seen.take(kept), Points(equations.take(kept), T[kept]), errors[kept], sizes, answers)


def _write(
    head: Head, seen: Observations, here: Points, errors: Tensor, sizes: list[int | None], answers: list[Leak | None]
) -> None:
    """The claims, and the answers in the attacker's own order."""
    logits = here.T @ here.equations.K + here.equations.b
    features = (here.T @ seen.A).to(working_type(head))
    missed = (here.equations.alpha * here.G.mT @ here.T - seen.U).norm(dim=(1, 2)) / seen.U.norm(dim=(1, 2))
    residuals, told = missed.tolist(), errors.cpu()
    for n, place in enumerate(seen.place.tolist()):
        Y, known = here.equations.Y[n], Knowledge(batch_size=sizes[place])
        counted = count(here.T[n], Y.argmax(1), errors[n], known)
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
            counted=claim.counted,
            notes=claim.notes,
        )
