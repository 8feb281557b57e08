"""GGL (generative gradient leakage): a search over a generator's latent that does to its candidates what the defense did.

    min over z of ‖T(∇L(G(z), y)) − ĝ‖² / ‖ĝ‖² + β (‖z‖² / k − 1)²        CMA-ES, 500 rounds of 50 candidates

T is read from the update (`traces`): the clip bound is the received norm, pruning's pattern and Soteria's columns are its zeros.
No derivative is taken, so that T may be anything. The label comes from the sign of the bias gradient, which these defenses leave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.match import preview
from unsum.match.engine import Matched
from unsum.match.many import Many
from unsum.match.method import MatcherNeeds, matcher
from unsum.match.plug import Generator, load_generator
from unsum.match.problem import Problem
from unsum.match.traces import Traces

_LOOKS = 40


@matcher(
    "ggl",
    summary="gradient matching: a generator's latent by CMA-ES, adapted to the defense (GGL)",
    needs=MatcherNeeds(rule="bias-sign", scale=True, extra="a generator, the extra 'matching'"),
)
def ggl(
    problem: Problem,
    *,
    generator: nn.Module | str = "",
    weights: str = "",
    steps: int = 500,
    population: int = 50,
    restarts: int = 1,
    adapt: bool = True,
    prior: float = 1e-3,
) -> Matched:
    if problem.checkpoint is not None:
        raise UnsumError("'ggl' keeps no checkpoint; leave checkpoint= out.")
    loaded = load_generator(problem, generator, weights)
    traces = Traces.of(problem) if adapt else None
    many = Many(problem)
    rows: list[list[float]] = []

    def loss(latents: Tensor) -> tuple[Tensor, Tensor]:
        return _losses(problem, loaded, traces, many, latents, prior)

    with many.ready(), torch.no_grad():
        found = [_search(problem, loaded, loss, steps, population, restart, rows) for restart in range(restarts)]
        losses = torch.tensor([value for value, _, _ in found], dtype=torch.float64)
        best = found[int(losses.argmin())]
        images = loaded(best[2]).clamp(0, 1)
    assert problem.targets is not None
    notes = ["Candidates' gradients were compared as they are."] if traces is None else [*traces.notes, *_told(traces)]
    columns = torch.tensor(rows, dtype=torch.float64).T
    history = dict(zip(("step", "loss", "match"), columns, strict=True))
    return Matched(
        images, problem.targets, best[0], best[1], losses, steps, history, notes, [best[2]], photos=loaded.photos
    )


def _told(traces: Traces) -> list[str]:
    """What was done to candidates, in a sentence."""
    held_back = sum(int((mask == 0).sum()) for mask in traces.masks if mask is not None)
    entries = f" and without the {held_back} entries that came empty" if held_back else ""
    return [
        f"Candidates' gradients were compared at no more than the received norm, {float(traces.length):.3g}{entries}."
    ]


Losses = Callable[[Tensor], tuple[Tensor, Tensor]]


def _losses(
    problem: Problem, generator: Generator, traces: Traces | None, many: Many, latents: Tensor, prior: float
) -> tuple[Tensor, Tensor]:
    """(N,) losses and (N,) distances of gradients for (N, B, *latent) candidates."""
    found = many(torch.stack([generator(latent).clamp(0, 1) for latent in latents]))
    if traces is not None:
        found = traces.clipped(traces.masked(found))
    sent = list(problem.sent.values())
    apart = torch.stack([(g - s).flatten(1).square().sum(1) for g, s in zip(found, sent, strict=True)]).sum(0)
    matches = apart / torch.stack([s.square().sum() for s in sent]).sum()
    return matches + prior * (latents.flatten(2).square().mean(2) - 1).square().mean(1), matches


def _search(
    problem: Problem,
    generator: Generator,
    losses: Losses,
    steps: int,
    population: int,
    restart: int,
    rows: list[list[float]],
) -> tuple[float, float, Tensor]:
    """(loss, distance of gradients, latents) of the best candidate of one CMA-ES."""
    shape = (problem.batch_size, *generator.latent)
    optimizer = _cma(shape, steps, population, problem.seed + 7919 * restart)
    best = (float("inf"), float("inf"), torch.zeros(shape))
    look_every = max(1, steps // _LOOKS)
    for step in range(steps):
        asked = [optimizer.ask() for _ in range(population)]
        latents = torch.from_numpy(np.stack([candidate.value for candidate in asked])).to(problem.zero)
        totals, matches = losses(latents)
        for candidate, value in zip(asked, totals.tolist(), strict=True):
            optimizer.tell(candidate, value)
        first = int(totals.argmin())
        if float(totals[first]) < best[0]:
            best = (float(totals[first]), float(matches[first]), latents[first].clone())
        if restart == 0 and (step % look_every == 0 or step == steps - 1):
            rows.append([step + 1, *best[:2]])
            problem.progress.step(step + 1, *best[:2])
            if problem.preview is not None:
                preview.show(problem.preview, generator(best[2]))
    return best


def _cma(shape: tuple[int, ...], steps: int, population: int, seed: int) -> Any:
    try:
        import nevergrad
    except ImportError as error:
        raise UnsumError("'ggl' needs nevergrad's CMA-ES; install it with: pip install 'unsum[matching]'.") from error
    latents = nevergrad.p.Array(shape=shape)
    latents.random_state.seed(seed)
    family = nevergrad.families.ParametrizedCMA(popsize=population)
    return family(latents, budget=steps * population, num_workers=population)
