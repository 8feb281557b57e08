"""All samples of a batch in the space of maps: with statistics that are known, or in rounds that
find them too."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from unsum.engine.budget import Budget
from unsum.engine.descend import Descent, descend
from unsum.engine.found import FoundPoints
from unsum.engine.hunt import Hunt
from unsum.running.deadline import out_of_time
from unsum.running.progress import Progress
from unsum.spans.maps.condition import Affine, Among, MapCondition
from unsum.spans.maps.search import SAME, apart, beside
from unsum.spans.maps.zeros import BegunMaps, begin, has_zeros, sparsest, starts

# With known statistics roots are reached within twenty steps. Chosen by: arbitrary budget.
_START = Budget(steps=25, damping=0.1, refusals=5)
# [steps] with the statistics of one round. Chosen by: arbitrary budget.
_FIRST_ROUND, _ROUND, _STEP = (replace(_START, steps=steps) for steps in (3, 6, 1))
# from an end, with all equations. Chosen by: arbitrary budget.
_END = Budget(steps=4, damping=1e-6)
# [starts] for each sample, and of a round at least. Chosen by: arbitrary budget.
_STARTS, _FEWEST = 4, 32
# [equations] of a search, for each sample and at least; the last steps use all.
# Chosen by: arbitrary budget.
_EQUATIONS, _FEWEST_EQUATIONS = 64, 2048
# [rounds] of statistics. Chosen by: arbitrary budget.
_ROUNDS = 12
# Roots are reached by most starts, so that a round without a new sample says little.
# Chosen by: arbitrary budget.
_HUNT = Budget(rounds=13, barren=13, idle=math.inf, same=SAME)
# [rounds] with the statistics of all starts, before any sample stands out; and at most in the end.
# Chosen by: arbitrary budget.
_FIRST_ROUNDS, _LAST = 5, 60
# [relative change] of all samples below which the last rounds, with all equations, begin; and
# below which they end. Chosen by: arbitrary margin.
_SETTLED, _FIXED = 1e-3, 1e-9
# [relative distance] of a start's end from a sample, before statistics had settled.
# Chosen by: arbitrary margin.
_NEAR = 5e-2
# [distance of directions] within which zeros led to the same sample: two samples are farther
# apart. Chosen by: arbitrary margin.
_ALIKE = 1e-2
# [misfit] of a root: always below the first; below the third, if it is no more than the second
# times the lowest one. Chosen by: arbitrary margin.
_ROOT, _BEST, _NEVER = 1e-3, 1e3, 3e-2


@dataclass(frozen=True)
class FoundMaps(FoundPoints):
    """Samples as mixtures s (R, k), their predicted errors, misfits, and how many starts came to
    each; `sign` of the origin."""

    condition: MapCondition
    sign: int = 1

    def fitting(self) -> FoundMaps:
        """Those that fit the next convolution's space."""
        return self[self.misfits < _NEVER]


def solve_known(condition: MapCondition, samples: int, seed: int, progress: Progress) -> FoundMaps:
    """With the norm known: starts until every sample is found twice, then a few steps with all
    equations."""
    generator = torch.Generator().manual_seed(seed)
    few = narrowed(condition, samples, generator)
    hunt = _MapHunt(samples, _HUNT, "further starts of the maps", progress, few, generator)
    found = hunt.run(FoundPoints.none(condition.c.new_zeros(0, condition.unknowns)))
    plain = condition.norm is None and not condition.homogeneous and has_zeros(condition, samples)
    if plain and len(found) < samples:  # zeros lead to samples that no start came to
        found = hunt.joined(found, hunt.ends(starts(condition, samples, generator)))
    return _confirmed(_finished(condition, found, samples), generator)


@dataclass
class _MapHunt(Hunt[FoundPoints]):
    """Random mixtures at first, then starts beside the samples that were found."""

    few: MapCondition
    generator: torch.Generator

    def round(self, found: FoundPoints, barren: int) -> FoundPoints:  # noqa: ARG002
        if not len(found):
            number = max(_FEWEST, _STARTS * self.wanted)
            return self.ends(_starts(self.few, number, self.generator))
        number = max(_FEWEST, 2 * self.wanted) // 2
        return self.ends(beside(_sure(found, self.wanted).points, number, self.generator))

    def ends(self, s: Tensor) -> FoundPoints:
        """Where starts end. Where no length is told all have one: else one sample would be found as
        many."""
        ends = descend(self.few, s, _START)
        s = F.normalize(ends.s) if self.few.homogeneous else ends.s
        return FoundPoints.of(s, torch.zeros_like(ends.cost), ends.misfit)

    def joined(self, found: FoundPoints, new: FoundPoints) -> FoundPoints:
        """Both, as far as they are roots beside the best of them."""
        both = found.stacked(new)
        best = float(both.misfits.min()) if len(both) else 0.0
        limit = min(_NEVER, max(_ROOT, _BEST * best))
        return both[both.misfits < limit].distinct(self.budget.same)


def _sure(seen: FoundPoints, samples: int) -> FoundPoints:
    """Where there are enough, those that several starts ended in, if there are any."""
    return seen[seen.hits > 1] if len(seen) >= samples and seen.twice else seen


def _confirmed(found: FoundMaps, generator: torch.Generator) -> FoundMaps:
    """With the starts that zeros lead to the same samples, where one start alone did: these use no
    norm and no first layer."""
    condition = found.condition
    if bool((found.hits > 1).all()) or len(found) < 2 or not has_zeros(condition, len(found)):
        return found
    assert isinstance(condition.space, Among)
    other = sparsest(condition.space.rows, len(found), generator)
    zeros = replace(FoundPoints.unranked(F.normalize(other.y)), hits=other.hits)
    read = FoundPoints.unranked(F.normalize(condition.read(found.points).flatten(1)))
    return replace(found, hits=found.hits + read.confirmed_by(zeros, _ALIKE).hits - read.hits)


def solve_rounds(condition: MapCondition, samples: int, seed: int, progress: Progress) -> FoundMaps:
    """With the batch's own statistics unknown: by the zeros that relu leaves, or in rounds."""
    begun = begin(condition, samples, seed)
    if begun is None:
        return _rounds(condition, samples, seed, progress)
    found = _from_begun(
        replace(condition, c=begun.sign * condition.c), begun, samples, seed, progress
    )
    if len(found) == samples and float(found.misfits.max()) < _NEVER:
        return found
    other = _rounds(condition, samples, seed, progress)
    return other if len(other) >= len(found) else found


def _from_begun(
    condition: MapCondition, begun: BegunMaps, samples: int, seed: int, progress: Progress
) -> FoundMaps:
    """The samples that zeros told, or, where some are missing, all that fit the norm that these
    show."""
    hits = begun.hits
    if len(begun.s) < samples:
        found = solve_known(replace(condition, affine=begun.affine), samples, seed, progress)
        if len(found) < samples:
            return replace(found, sign=begun.sign)
        begun, hits = begun._replace(s=found.points), found.hits
    progress.part(samples, samples)
    found = settled(condition, begun.s, begun.s)
    nearest = found.nearest(FoundPoints.unranked(begun.s))
    return replace(found, sign=begun.sign, hits=hits[nearest])


def _rounds(condition: MapCondition, samples: int, seed: int, progress: Progress) -> FoundMaps:
    """Solve, take the statistics of what was found, and again.

    Linear algebra does not tell the origin from its negative; the activation does.
    """
    both = [
        _first_rounds(replace(condition, c=sign * condition.c), samples, seed) for sign in (1, -1)
    ]
    sign = 1 if float(both[0][0].misfit.median()) < float(both[1][0].misfit.median()) else -1
    (ends, few), condition = (
        both[0] if sign > 0 else both[1],
        replace(condition, c=sign * condition.c),
    )
    generator = torch.Generator().manual_seed(seed + 1)
    chosen, before = ends.s, ends.s
    for _ in range(_ROUNDS):
        few = few.normed_by(chosen)
        ends = descend(few, ends, _ROUND)
        seen = apart(ends)
        if condition.unknowns and (len(seen) < samples or seen.twice < len(seen)):
            fresh = beside(_sure(seen, samples).points, max(_FEWEST, samples), generator)
            ends = Descent.joined([ends, descend(few, fresh, _START)])
            seen = apart(ends)
        before, chosen = chosen, _likeliest(seen, samples)
        progress.part(min(len(seen), samples), samples)
        settling = len(chosen) == samples == len(before) and _moved(before, chosen) < _SETTLED
        settling = settling and (len(seen) > samples or seen.twice == len(seen))
        if settling or out_of_time("further rounds of statistics"):
            break
    return replace(settled(condition, ends.s, chosen), sign=sign)


def _first_rounds(condition: MapCondition, samples: int, seed: int) -> tuple[Descent, MapCondition]:
    """Starts with the statistics of all of them, before any sample stands out, and the equations
    that they look at."""
    generator = torch.Generator().manual_seed(seed)
    few = narrowed(condition, samples, generator)
    ends = Descent.of(_spread(few, max(_FEWEST, _STARTS * samples), generator), _START.damping)
    for _ in range(_FIRST_ROUNDS):
        ends = descend(few.normed_by(ends.s), ends, _FIRST_ROUND)
    return ends, few


def settled(condition: MapCondition, ends: Tensor, chosen: Tensor) -> FoundMaps:
    """The last rounds, with all equations, from the samples that were chosen."""
    last, condition = last_rounds(condition, chosen, _LAST)
    found = _finished(condition, apart(last), len(last))
    starts = FoundPoints.unranked(ends)
    return replace(found, hits=0 * found.hits).confirmed_by(starts, _NEAR, most=_NEAR)


def last_rounds(condition: MapCondition, s: Tensor, rounds: int) -> tuple[Descent, MapCondition]:
    """(samples near the end, the condition with their statistics)."""
    last = Descent.of(s, _END.damping)
    for _ in range(rounds):
        condition = condition.normed_by(last.s)
        moved = descend(condition, last, _STEP)
        change = _moved(last.s, moved.s)
        last = moved
        if change < _FIXED:
            break
    return last, condition.normed_by(last.s)


def _likeliest(seen: FoundPoints, samples: int) -> Tensor:
    """Of too many ends those that are samples: of the two nearest to each other the worse one goes,
    again and again.

    Before statistics have settled, starts end here and there around one sample; two samples are far
    apart.
    """
    while len(seen) > samples:
        sizes = seen.points.norm(dim=1).clamp_min(1e-12)
        apart_by = torch.cdist(seen.points, seen.points) / torch.minimum(sizes[:, None], sizes)
        apart_by.fill_diagonal_(torch.inf)
        worse = max(divmod(int(apart_by.argmin()), len(seen)))  # the best one comes first
        seen = seen[[i for i in range(len(seen)) if i != worse]]
    return seen.points


def _moved(before: Tensor, after: Tensor) -> float:
    """The largest change; the order may differ."""
    if before.shape[1] == 0 or len(before) != len(after):
        return 0.0 if before.shape[1] == 0 else 1.0
    return float((torch.cdist(after, before).amin(1) / after.norm(dim=1).clamp_min(1e-12)).max())


def _finished(condition: MapCondition, seen: FoundPoints, samples: int) -> FoundMaps:
    """Each sample once, after steps with all equations, with its predicted error."""
    best = descend(condition, seen.points, _END)
    if len(seen) > samples:
        chosen = best.cost.argsort()[:samples]
        best, seen = best[chosen], seen[chosen]
    return FoundMaps(best.s, predicted(condition, best), best.misfit, seen.hits, condition)


def predicted(condition: MapCondition, ends: Descent) -> Tensor:
    """(R,) deviations of s: the condition's least-squares covariance at what is left."""
    if condition.unknowns == 0 or len(ends) == 0:
        return ends.misfit
    errors = []
    for one, misfit in zip(ends.s.split(1), ends.misfit, strict=True):
        values = torch.linalg.eigvalsh(condition.linearize(one).matrix).clamp_min(1e-300)
        errors.append(values.reciprocal().sum().sqrt() * misfit / condition.read_entries**0.5)
    return torch.stack(errors)


def narrowed(condition: MapCondition, samples: int, generator: torch.Generator) -> MapCondition:
    """With as many equations as a search needs: some channels, or, where channels belong together,
    some places."""
    C, P = condition.c.shape
    wanted = max(_FEWEST_EQUATIONS, _EQUATIONS * samples)
    if condition.norm is not None or wanted >= C * P:
        return condition
    if isinstance(condition.space, Among):
        some = torch.randperm(C, generator=generator)[: -(-wanted // P)].to(condition.c.device)
        rows = condition.space.rows.unflatten(1, (C, P))[:, some]
        affine, batch = condition.affine, condition.batch
        return replace(
            condition,
            K=condition.K[:, some],
            c=condition.c[some],
            space=Among.of(rows),
            affine=affine and Affine(affine.scale[some], affine.shift[some]),
            batch=batch and replace(batch, gamma=batch.gamma[some], beta=batch.beta[some]),
        )
    places = min(P, max(4, -(-wanted // len(condition.space.beyond))))
    some = torch.randperm(P, generator=generator)[:places].to(condition.c.device)
    return replace(
        condition, K=condition.K[:, :, some], c=condition.c[:, some], everywhere=condition
    )


def _starts(condition: MapCondition, number: int, generator: torch.Generator) -> Tensor:
    """Random mixtures: as large as the origin's output, or of the size that the norm expects, or of
    size 1."""
    s = _spread(condition, number, generator)
    size = (condition.written(s) - condition.c).square().mean((1, 2)).sqrt()
    wanted = float(condition.c.square().mean().sqrt())
    if wanted == 0:
        wanted = (
            1.0
            if condition.affine is None
            else float(condition.affine.scale.abs().reciprocal().median())
        )
    stretch = torch.exp(0.5 * torch.randn(number, generator=generator, dtype=torch.float64)).to(s)
    return s * (wanted * stretch / size.clamp_min(1e-300))[:, None]


def _spread(condition: MapCondition, number: int, generator: torch.Generator) -> Tensor:
    """Mixtures of length 1."""
    k = condition.unknowns
    return (
        torch.randn(number, k, generator=generator, dtype=torch.float64).to(condition.c)
        / max(k, 1) ** 0.5
    )
