"""GIAS (gradient inversion with generative image prior): the latent of a generator first, then the
generator's own weights.

    1.  min over z of 1 − cos(∇L(G_θ(z), y), ĝ) + α TV(G_θ(z))
        by Adam with step decay, several starts
    2.  min over θ of the same, from the latents that were found

The second stage reaches pictures that the generator has never learned to draw. The weights are
shared by the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from unsum.match.engine import Matched, solve
from unsum.match.method import MatcherNeeds, matcher
from unsum.match.objective import Objective
from unsum.match.optimizers import Adam
from unsum.match.plug import Generator, load_generator
from unsum.match.problem import Plan, Problem
from unsum.match.regularizers import TotalVariation
from unsum.match.unknown import Latent, Shape


@dataclass(frozen=True)
class Weights:
    """x = G_θ(z) for latents that stay: the unknown is θ."""

    generator: Generator
    latents: Tensor = field(repr=False)

    def start(self, count: int, shape: Shape, generator: torch.Generator) -> list[Tensor]:  # noqa: ARG002
        return [
            parameter.detach().cpu().clone() for parameter in self.generator.module.parameters()
        ]

    def pictures(self, leaves: Sequence[Tensor]) -> Tensor:
        names = [name for name, _ in self.generator.module.named_parameters()]
        return self.generator.drawn(self.latents, dict(zip(names, leaves, strict=True)))

    def project(self, leaves: Sequence[Tensor]) -> None:
        """Weights may be anything."""


@matcher(
    "gias",
    summary="gradient matching: a generator's latent, then its weights (GIAS)",
    needs=MatcherNeeds(rule="exact", extra="a generator"),
)
def gias(
    problem: Problem,
    *,
    generator: nn.Module | str = "",
    weights: str = "",
    steps: int = 1000,
    weight_steps: int = 1000,
    restarts: int = 4,
    rate: float = 0.03,
    weight_rate: float = 1e-3,
    total_variation: float = 1e-4,
) -> Matched:
    loaded = load_generator(problem, generator, weights)
    plan = Plan(
        Objective("cosine"),
        Adam(rate),
        steps,
        regularizers=(TotalVariation(total_variation),),
        unknown=Latent(loaded, loaded.latent),
        restarts=restarts,
        stage="latent",
    )
    latent = solve(problem, plan)
    plan = replace(
        plan, optimizer=Adam(weight_rate), steps=weight_steps, restarts=1, stage="weights"
    )
    found = solve(problem, replace(plan, unknown=Weights(loaded, latent.leaves[0])))
    note = (
        f"The generator's latents left a distance of gradients of {latent.match:.2g}, its weights "
        f"{found.match:.2g}."
    )
    return replace(
        found,
        restart_losses=latent.restart_losses,
        steps=latent.steps + found.steps,
        notes=[*latent.notes, *found.notes, note],
        photos=loaded.photos,
    )
