"""The search: starts in the order of their cost, until what one of them proposed explains the
gradient.

Starts only propose. Here their points are solved from, polished and confirmed, and here it is
decided what is enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.certify.candidate import EXPLAINED, Candidate, polish, runaways
from unsum.equation.equation import NoFactorError, solve
from unsum.equation.levenberg import seconds_per_iteration
from unsum.equation.observation import Observation
from unsum.running.deadline import out_of_time, trying
from unsum.separate.exact.hypotheses import HARD, SOFT, Known
from unsum.separate.exact.proposals import STARTS, TOGETHER, Proposal, Proposals, Start
from unsum.separate.exact.regression import fit_class_line

_LAST_RESORTS = ("lifted", "patient")  # only where nothing else explains the gradient
# What follows was measured on 1 592 of the certificate's cases, 1 105 of them recovered
# (start_costs.py of commit d5b3ef72). so many of the regression's ways with misfits so much alike
# end in one place, as others would
_AGREED, _LIKE = 3, 1.2
# Misfits of a gradient of full rank, beyond which zeros of features found no batch, and beyond
# which further points found none.
_NEAR, _VERY_NEAR = 5e3, 500.0
_LONG = 60.0  # estimated seconds of a start, beyond which it is not tried for a remainder
_MOST = 0.75  # of the samples
# further points that may confirm a solution; more where they are cheap
_CONFIRMATIONS, _MORE_CONFIRMATIONS = 4, 30
_CONFIRMATION_SECONDS = 2.0  # estimated; up to which they are
SAME_SOLUTION = 1e-3  # relative distance; another solution is much farther away
_FAILED = (torch.linalg.LinAlgError, NoFactorError)  # type: ignore[attr-defined]


def in_order(known: Known) -> list[Start]:
    """The starts that apply: quick ones first, sample by sample before labels where the regression
    misleads."""
    near, smoothed = known.near_classes, "extracted, smoothed"
    singly = ("extracted", "exchanged", "thinned") if near else ("extracted", "exchanged")
    if known.more_negative_than_labels:
        middle = (smoothed, *singly, *HARD, *SOFT)
    elif known.peaked:
        middle = (*singly, smoothed, *HARD, *SOFT)
    else:
        middle = (*HARD, *singly, *SOFT, smoothed)
    order = ("alone", "zeros", *middle) if near else ("alone", *middle, "zeros", "thinned")
    order += ("mixed", *_LAST_RESORTS)  # all pairs of classes: the slowest way
    return sorted(
        (start for start in STARTS if start.applies(known)),
        key=lambda start: order.index(start.name),
    )


@dataclass(frozen=True)
class Search:
    """One search: what it knows, and the seed of every start's random numbers."""

    known: Known
    seed: int

    @classmethod
    def over(
        cls, observation: Observation, targets: Tensor | None, batch_size: int | None, seed: int
    ) -> Search:
        return cls(Known(observation, fit_class_line(observation), targets, batch_size), seed)

    def best(self) -> Candidate | None:
        """The first candidate that is enough, or the one that comes closest."""
        best: Candidate | None = None
        waiting, misfits = in_order(self.known), dict[str, float]()
        total = len(waiting)
        while waiting:
            if best is not None and (self._suffices(best, waiting) or _agree(misfits)):
                break
            if best is not None and out_of_time("further hypotheses about the batch"):
                break
            start = waiting.pop(0)
            if best is not None and self._is_hopeless(start, best):
                continue
            closest = (
                "" if best is None else f"{best.certificate.misfit:.2g} standard deviations off"
            )
            trying(f"the start {start.name!r}", total - len(waiting), total, closest)
            candidate = self.led_to(start)
            if candidate is not None:
                misfits[start.name] = candidate.certificate.misfit
            if candidate is not None and candidate.better_than(best):
                best = candidate
        return best

    def _is_hopeless(self, start: Start, best: Candidate) -> bool:
        """Of a gradient of full rank: labels and exchanges find C − 1 samples, or come near them;
        samples one by one follow from there only, and for open targets hardly an equation is
        left."""
        if not self.known.full or best.explains:
            return False
        if start.name in ("thinned", "patient"):
            return best.certificate.misfit > (_NEAR if start.name == "thinned" else _VERY_NEAR)
        return start.name in (*SOFT, "mixed", "lifted")

    def _suffices(self, found: Candidate, waiting: list[Start]) -> bool:
        """Whether to look no further; where what waits takes minutes, with samples that stand on
        their own as well."""
        if waiting[0].name in _LAST_RESORTS:
            return found.explains
        if found.settles or max(start.cost(self.known) for start in waiting) < _LONG:
            return found.settles
        most = found.verified and len(found.at.T) >= _MOST * self.known.observation.rank
        return (found.explains and found.confirmations > 0) or most

    def led_to(self, start: Start) -> Candidate | None:
        """The best of what one start proposes."""
        return self.first_of(start.propose(self.known, start.generator(self.seed)))

    def first_of(self, proposals: Proposals) -> Candidate | None:
        """The first proposal that explains the gradient, or the one that comes closest."""
        best: Candidate | None = None
        while best is None or not best.explains:
            try:
                proposal = next(proposals, None)
                if proposal is None:
                    break
                if (
                    isinstance(proposal, Proposal)
                    and best is not None
                    and out_of_time("further starts")
                ):
                    continue
                candidate = self._candidate(proposal)
            except _FAILED:
                # a singular matrix or a negative scale: it failed, as other proposals do
                continue
            if candidate is not None and candidate.better_than(best):
                best = candidate
        return best

    def _candidate(self, proposal: Proposal | Candidate) -> Candidate | None:
        """Solved from the next point, polished, and marked with the second opinions that it has."""
        # read off something else: that the equation holds as well confirms it
        if isinstance(proposal, Candidate):
            return replace(proposal, confirmations=int(proposal.explains and proposal.read_off))
        at = next(proposal.points, None)
        if at is not None and not proposal.solved:
            # What samples found alone lead to is near: it is pursued to the end, whatever the norm.
            rough = not proposal.alone  # it is polished, with other weights
            at = solve(
                proposal.equation, at, proposal.iterations, in_noise_units=rough, roughly=rough
            )
        if at is None or not at.is_sound:
            return None
        candidate = polish(self.known.observation, proposal.equation, at)
        if proposal.alone:
            return self._found_alone(candidate)
        return self._confirmed(candidate, proposal) if candidate.explains else candidate

    def _found_alone(self, found: Candidate) -> Candidate | None:
        """Samples that were found one by one and polished together. All of them are an independent
        solution.

        A part must explain the gradient: else its samples have made up for those that are missing,
        and became wrong.
        """
        rank, Y = self.known.observation.rank, found.equation.Y
        if not found.explains:
            return found if len(found.at.T) == rank else None
        away = runaways(self.known.observation, found.at.T)
        if Y is not None and bool(away.any()):  # false ones, which explain nothing and harm nobody
            at = replace(found.at, T=found.at.T[~away])
            equation = replace(found.equation, Y=Y[~away], alpha_free=False)
            weight = self.known.observation.weights_at(at, Y[~away])
            return self._candidate(
                Proposal(equation.with_rows(weight**0.5), iter([at]), TOGETHER, alone=True)
            )
        if len(found.at.T) == rank:
            return replace(found, confirmations=1)
        return replace(found, verified=2 * len(found.at.T) > rank)

    def _confirmed(self, found: Candidate, proposal: Proposal) -> Candidate:
        """The candidate, marked as agreed if another point leads to it and none to a solution that
        is as good.

        The noise is estimated on the safe side, so that a local minimum may lie below it: a much
        better one takes over.
        """
        cost = proposal.iterations * seconds_per_iteration(
            found.at.T.numel(), self.known.observation.classes
        )
        for _ in range(
            max(_CONFIRMATIONS, min(_MORE_CONFIRMATIONS, int(_CONFIRMATION_SECONDS / cost)))
        ):
            if out_of_time("a second opinion on the solution"):
                break
            at = solve(proposal.equation, next(proposal.points), proposal.iterations, roughly=True)
            if not at.is_sound:
                continue
            if distance(found.at.T, at.T) < SAME_SOLUTION:
                return replace(found, confirmations=1)
            other = polish(self.known.observation, proposal.equation, at)
            if not other.explains or other.certificate.misfit > 2 * found.certificate.misfit:
                continue
            if distance(found.at.T, other.at.T) < SAME_SOLUTION:
                return replace(found, confirmations=1)
            if other.certificate.misfit > 0.5 * found.certificate.misfit:
                break
            found = other
        return found


def _agree(misfits: dict[str, float]) -> bool:
    """Whether the regression's ways lead to one misfit, which is none of a solution: the best that
    samples of equal weight do.

    Three of them, with labels that are open in one; or all with known labels to one, and those with
    open labels to another. So it is where one sample stands for two.
    """
    hard, soft = (
        sorted(misfits[name] for name in names if name in misfits) for names in (HARD, SOFT)
    )
    every = sorted([*hard, *soft])
    if not hard or not soft or every[0] < EXPLAINED:
        return False
    if (
        len(every) >= _AGREED
        and every[_AGREED - 1] < _LIKE * every[0]
        and soft[0] < _LIKE * every[0]
    ):
        return True
    return (
        len(hard) > 1
        and len(soft) > 1
        and hard[-1] < _LIKE * hard[0]
        and soft[-1] < _LIKE * soft[0]
    )


def distance(T: Tensor, other: Tensor) -> float:
    """Largest relative distance of a sample from its nearest in another solution."""
    return float((torch.cdist(T, other).amin(1) / T.norm(dim=1).clamp_min(1e-300)).max())
