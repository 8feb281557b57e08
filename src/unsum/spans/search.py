"""Rounds of starts until every direction has its sample; what was found is taken out of the
gradients on the way."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from unsum.engine.budget import Budget
from unsum.engine.descend import Descent
from unsum.engine.found import FoundPoints
from unsum.engine.hunt import Hunt
from unsum.equation.noise import unit_of
from unsum.running.progress import Progress
from unsum.spans.basis import LayerSpan
from unsum.spans.reflect import reflected, walkable
from unsum.spans.roots import ENDS, UNTRIED, Condition, descend, starts

WALKERS = 64  # [starts] of a round of reflections at least. Chosen by: arbitrary budget.
# [starts] for each sample that is sought: one start finds a fifth of them, and a GPU has room for
# more. Chosen by: arbitrary budget.
_CROWD = {"cpu": 1, "cuda": 4}
# [of what the layer writes] ends of reflections within it lead to one sample.
# Chosen by: arbitrary margin.
_ALIKE = 0.1
# [steps] of a reflection: at a third of the width 200 are enough, at 0.4 of it every second start
# needs more. Chosen by: arbitrary budget.
WALK = 2000
# [misfits that noise leaves] of a root at most; other ends are a thousand times higher.
# Chosen by: arbitrary margin.
SLACK = 30.0
# [misfit] of a root at most, however noisy the gradient is. Chosen by: arbitrary margin.
_MOST_MISFIT = 1e-2
# [predicted relative error] from which a point is one of many that fit.
# Chosen by: arbitrary margin.
VAGUE = 1e-2
# [starts] of a round of descents: for each sample that is sought, at least, and at most.
# Chosen by: arbitrary budget.
_PER_SAMPLE, _FEWEST, _LARGEST = 8, 64, 2048
BUDGET = Budget()  # of a search in rounds


def levels(condition: Condition, s: Tensor) -> Tensor:
    """(S,) the misfit that noise leaves at samples: it turns every direction of a span by noise
    over singular value."""
    reads = zip(condition.reads(s), condition.spans, strict=True)
    return torch.stack([level(a, span) for a, span in reads]).norm(dim=0)


def level(a: Tensor, span: LayerSpan) -> Tensor:
    """(S,) the misfit that noise leaves where a (S, m) is what a sample becomes."""
    a = span.extended(a)
    along = (a @ span.rows.T) / span.values
    share: Tensor = (
        span.noise * a.shape[1] ** 0.5 * along.norm(dim=1) / a.norm(dim=1).clamp_min(1e-300)
    )
    return share


def blurred(errors: Tensor, X: Tensor, span: LayerSpan) -> Tensor:
    """(R,) relative errors of samples, with what noise turns their own span by: the unknowns within
    it do not see that."""
    extended = (X.square().sum(1) + span.has_bias).sqrt() / X.norm(dim=1).clamp_min(1e-300)
    return torch.hypot(errors, level(X, span) * extended)


def search(
    condition: Condition, expected: int, seed: int, progress: Progress, *, most: bool
) -> tuple[FoundPoints, Tensor]:
    """(samples, points that fit and are no samples) from starts, round after round, until
    `expected` are found, each twice, or rounds bring nothing new. The points lie in families, which
    `settle` looks through.

    Where `most` are enough, the search ends with what a round gives: the rest is found sooner once
    these are taken out.
    """
    rounds = _Rounds(
        expected, BUDGET, UNTRIED, progress, condition, torch.Generator().manual_seed(seed), most
    )
    found = rounds.run(FoundPoints.none(condition.step.W))
    return found, torch.cat([found.points[:0], *rounds.vague])


@dataclass
class _Rounds(Hunt[FoundPoints]):
    """Rounds of starts for one condition, and the points that fit and are no samples."""

    condition: Condition
    generator: torch.Generator
    most: bool
    vague: list[Tensor] = field(default_factory=list)

    def round(self, found: FoundPoints, barren: int) -> FoundPoints:  # noqa: ARG002
        wanted, first = self.wanted - len(found), not self.vague
        ended = tried_starts(self.condition, wanted, self.generator, first=first)
        new, vague = roots_among(self.condition, ended)
        self.vague.append(vague)
        return new

    def complete(self, found: FoundPoints) -> bool:
        return (self.most and len(found) > 0) or super().complete(found)


def refined(condition: Condition, roots: FoundPoints) -> FoundPoints:
    """Roots of a deflated condition that are roots of the whole one, followed there where they are
    isolated there too: samples that were taken out left their errors behind."""
    s = condition.unknowns_of(roots.points)
    again, _ = roots_among(condition, descend(condition, s, ENDS))
    misfits = condition.misfit(s)
    fit = replace(roots, misfits=misfits)[misfits < allowed(condition, levels(condition, s))]
    return replace(again, hits=torch.zeros_like(again.hits)).joined(fit)


def tried_starts(
    condition: Condition, wanted: int, generator: torch.Generator, *, first: bool
) -> Descent:
    """One round of starts: reflections where the activation allows them, else descents alone."""
    if condition.unknowns and walkable(condition):
        number = max(WALKERS, _CROWD.get(condition.K.device.type, 1) * wanted)
        s = reflected(condition, starts(condition, number, generator, rows=first), WALK)
        return descend(condition, s[_few_alike(condition, s)], ENDS)
    number = min(
        _LARGEST, max(_FEWEST, _PER_SAMPLE * wanted, len(condition.step.W) if first else 0)
    )
    return descend(condition, starts(condition, number, generator, rows=first))


def _few_alike(condition: Condition, s: Tensor) -> Tensor:
    """(S,) which ends are followed: of those that are alike two, for one confirms the other."""
    _, groups = FoundPoints.unranked(s @ condition.K + condition.c).grouped(_ALIKE)
    few: Tensor = (groups[:, None] == groups).tril(-1).sum(1) < 2
    return few


def roots_among(
    condition: Condition, ends: Descent, slack: float = SLACK
) -> tuple[FoundPoints, Tensor]:
    """(samples, points beside which others fit as well) among the ends that leave only noise."""
    s, misfits = ends.s, ends.misfit
    expected = levels(condition, s)
    near = misfits < allowed(condition, expected, slack)
    s, misfits, expected = s[near], misfits[near], expected[near]
    if len(s) == 0:
        none = FoundPoints.none(condition.step.W)
        return none, none.points
    X = condition.inputs(s)
    errors = predicted_errors(condition, s, torch.maximum(misfits, expected)) / X.norm(
        dim=1
    ).clamp_min(1e-300)
    sure = errors < VAGUE
    return FoundPoints.of(X[sure], errors[sure], misfits[sure]), X[~sure]


def allowed(condition: Condition, expected: Tensor, slack: float = SLACK) -> Tensor:
    """(S,) the misfit up to which an end is a root: noise of the gradients, or the rounding of what
    the client's layers read, which sums over many thousand inputs make larger than noise in layers
    of thousands of units."""
    return (slack * expected.clamp_min(unit_of(condition.step.W))).clamp_max(_MOST_MISFIT)


def predicted_errors(condition: Condition, s: Tensor, misfits: Tensor) -> Tensor:
    """(S,) deviations of s: the condition's least-squares covariance at the noise that is left, or
    must be."""
    spare = max(1, condition.equations - condition.unknowns)
    errors = []
    few = condition.at_once
    for one, misfit in zip(s.split(few), misfits.split(few), strict=True):
        errors.append(spread(condition.linearize(one).matrix) * misfit / spare**0.5)
    return torch.cat(errors)


def spread(N: Tensor) -> Tensor:
    """(S,) √ of the trace of the inverse of N (S, k, k); infinite where it has none."""
    factor, singular = torch.linalg.cholesky_ex(N)
    eye = torch.eye(N.shape[1], dtype=N.dtype, device=N.device).expand_as(N)
    inverse = torch.linalg.solve_triangular(factor, eye, upper=False).flatten(1)
    return (
        inverse.norm(dim=1)
        .masked_fill(singular != 0, torch.inf)
        .nan_to_num(nan=torch.inf, posinf=torch.inf)
    )
