"""GGL (generative gradient leakage): a search over a generator's latent that does to its candidates
what the defense did.

    min over z of ‖T(∇L(G(z), y)) − ĝ‖² / ‖ĝ‖² + β (‖z‖² / k − 1)²

    by CMA-ES, 500 rounds of 50 candidates

T is read from the update (`traces`): the clip bound is the received norm, pruning's pattern and
Soteria's columns are its zeros. No derivative is taken, so that T may be anything. The label comes
from the sign of the bias gradient, which these defenses leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unsum.errors import UnsumError, needed, optional
from unsum.files.writing import write_pictures
from unsum.match.engine import LOOKS, UNTRIED, Matched
from unsum.match.many import Many
from unsum.match.method import MatcherNeeds, matcher
from unsum.match.plug import Generator, load_generator
from unsum.match.problem import Problem
from unsum.match.traces import Traces
from unsum.running.deadline import out_of_time


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
    search = _LatentSearch(problem, loaded, traces, Many(problem), prior)
    with search.many.ready(), torch.no_grad():
        found = [search.run(steps, population, restart) for restart in range(restarts)]
        losses = torch.tensor([value for value, _, _ in found], dtype=torch.float64)
        best = found[int(losses.argmin())]
        images = loaded(best[2]).clamp(0, 1)
    targets = needed(problem.targets, "The labels of the batch")
    notes = (
        ["Candidates' gradients were compared as they are."]
        if traces is None
        else [*traces.notes, *_told(traces)]
    )
    columns = torch.tensor(search.rows, dtype=torch.float64).T
    history = dict(zip(("step", "loss", "match"), columns, strict=True))
    return Matched(
        images,
        targets,
        best[0],
        best[1],
        losses,
        steps,
        history,
        notes,
        [best[2]],
        photos=loaded.photos,
    )


def _told(traces: Traces) -> list[str]:
    """What was done to candidates, in a sentence."""
    held_back = sum(int((mask == 0).sum()) for mask in traces.masks if mask is not None)
    entries = f" and without the {held_back} entries that came empty" if held_back else ""
    return [
        (
            "Candidates' gradients were compared at no more than the received norm, "
            f"{float(traces.length):.3g}{entries}."
        )
    ]


@dataclass(frozen=True)
class _LatentSearch:
    problem: Problem
    generator: Generator
    traces: Traces | None
    many: Many
    prior: float
    rows: list[list[float]] = field(default_factory=list)  # how the first restart's losses fell

    def losses(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) losses and (N,) distances of gradients for (N, B, *latent) candidates."""
        found = self.many(torch.stack([self.generator(latent).clamp(0, 1) for latent in latents]))
        if self.traces is not None:
            found = self.traces.clipped(self.traces.masked(found))
        sent = list(self.problem.sent.values())
        apart = torch.stack(
            [(g - s).flatten(1).square().sum(1) for g, s in zip(found, sent, strict=True)]
        ).sum(0)
        matches = apart / torch.stack([s.square().sum() for s in sent]).sum()
        return matches + self.prior * (latents.flatten(2).square().mean(2) - 1).square().mean(
            1
        ), matches

    def run(self, steps: int, population: int, restart: int) -> tuple[float, float, Tensor]:
        """(loss, distance of gradients, latents) of the best candidate of one CMA-ES."""
        problem, shape = self.problem, (self.problem.batch_size, *self.generator.latent)
        optimizer = _cma(shape, steps, population, problem.seed + 7919 * restart)
        best = (float("inf"), float("inf"), torch.zeros(shape))
        look_every = max(1, steps // LOOKS)
        for step in range(steps):
            asked = [optimizer.ask() for _ in range(population)]
            latents = torch.from_numpy(np.stack([candidate.value for candidate in asked])).to(
                problem.zero
            )
            parts = [self.losses(some) for some in latents.split(self.many.at_once)]
            totals, matches = (torch.cat(column) for column in zip(*parts, strict=True))
            for candidate, value in zip(asked, totals.tolist(), strict=True):
                optimizer.tell(candidate, value)
            first = int(totals.argmin())
            if float(totals[first]) < best[0]:
                best = (float(totals[first]), float(matches[first]), latents[first].clone())
            over = out_of_time(UNTRIED)
            if restart == 0 and (step % look_every == 0 or step == steps - 1 or over):
                self.rows.append([step + 1, *best[:2]])
                problem.progress.step(step + 1, *best[:2])
                if problem.preview is not None:
                    write_pictures(problem.preview, self.generator(best[2]))
            if over:
                break
        return best


def _cma(shape: tuple[int, ...], steps: int, population: int, seed: int) -> Any:
    nevergrad = optional("nevergrad", "matching", "'ggl' needs nevergrad's CMA-ES")
    latents = nevergrad.p.Array(shape=shape)
    latents.random_state.seed(seed)
    family = nevergrad.families.ParametrizedCMA(popsize=population)
    return family(latents, budget=steps * population, num_workers=population)
