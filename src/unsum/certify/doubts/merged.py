"""Samples that look like one: so alike that the gradient does not show them apart.

Two samples f ± δ‖f‖u of equal label differ from two copies of f, to leading order, by α δ²‖f‖² (J W
u) uᵀ in ∇W, with J the curvature of the loss by the logits. That is quadratic in δ: features may
differ far more than the precision before a second direction rises above the noise. And where J W u
is a multiple of the sample's own error, it is no second direction: it turns the features of the
answer a little, and nothing shows. A sample that stands for two carries twice the weight of its
neighbors and gives itself away (`nuisance`); but where every sample stands for equally many, as two
augmented views of each do, a mean is the same. Nobody who is not told the batch size can exclude
it. More than two share that term among their own directions, n of them among n − 1: each direction
carries less of it.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from unsum.certify.claim import FALSE_ERROR
from unsum.certify.doubts.number import doubt_missing
from unsum.certify.further import FurtherUnknown, lengths
from unsum.certify.question import Question
from unsum.certify.scatter import followed
from unsum.equation.equation import Linearized
from unsum.equation.noise import FALSE_ALARM
from unsum.equation.observation import Observation
from unsum.head import Head
from unsum.losses import Loss, Softmax
from unsum.running.deadline import out_of_time
from unsum.running.late_scipy import chi_square_quantile

TOGETHER = 16  # samples at most that are taken to look like one: the K of usual P×K samplers
CHANCE = 3.0  # deviations by which noise may lie against a direction
COPIES = 8  # of a sample at most, of which one is not equal to the others
# [1] deviations: how far the lighter of two lies from their mean that weighs a third of the other.
# Only a sample that is found alone may be such a pair: beside others its weight shows.
UNEVEN = math.sqrt(3.0)
FAINT = 2.0  # times what one faint sample may send: there may be several
PROBES = 8  # random directions u that the share of J W u is the mean over: within a fifth
_PROPORTIONAL = 1e-4  # of a cosine from 1 within which features are proportional


def doubt_groups(groups: list[list[int]]) -> list[str]:
    """Samples of one label that were found, but of which only the mean is known."""
    return [
        (
            f"Samples {', '.join(map(str, group))} cannot be told apart at the gradient's "
            "precision; each is their mean."
        )
        for group in groups
    ]


def doubt_merged(question: Question) -> list[str]:
    """The doubt that every sample stands for several of its label, none of which was found by
    itself."""
    if question.each_is_one:
        return []
    if out_of_time("whether samples hide behind each other"):
        return ["There was no time to ask whether samples of one label pass as one."]
    candidate = question.candidate
    spread = hidden_spread(
        question.head, question.observation, candidate.at.T, candidate.Y, float(candidate.at.alpha)
    )
    # A sample of the same label at a distance δ that sends a share s passes as well where s δ is
    # below the square of that.
    doubts = doubt_missing(question, FAINT * spread**2 / FALSE_ERROR)
    return [
        *doubts,
        *_doubt_proportional(question),
        *doubt_spread(max(spread, hidden_lengths(question))),
    ]


def doubt_spread(spread: float) -> list[str]:
    """The doubt that samples of one label which differ by less than `spread` passed as one."""
    if spread <= FALSE_ERROR:
        return []
    apart = f"that differ by less than {100 * spread:.2g} %" if spread < 1 else "however different"
    return [
        (
            f"Samples of one label, {apart}, would look like one here: there may be more than were "
            "found."
        )
    ]


def hidden_spread(
    head: Head, observation: Observation, T: Tensor, Y: Tensor, alpha: float
) -> float:
    """The largest relative δ at which a few samples may pass as one, for directions u that are
    nothing special.

    What is left of ∇W outside the span of A holds their other directions, if there are any. So it
    bounds them: all together by its norm, and each by its largest singular value, which is much
    smaller where it is noise. That value takes longer than all the rest of a solve where there are
    many classes, so it is only asked for where the norm alone leaves a doubt.
    """
    R, H = observation.A.shape
    # Under softmax the rows of every head sum to zero: where samples take all directions, no
    # further one can show.
    most_rows = observation.classes - observation.loss.heads * isinstance(observation.loss, Softmax)
    most = min(TOGETHER - 1, H - R, most_rows - R)
    if min(H, most_rows) <= R:
        return math.inf
    logits = T @ observation.K + observation.b
    share = alpha * T.square().sum(1, keepdim=True) * ((1 - R / H) / H) ** 0.5  # of ‖f‖², outside
    strength = share * answers(head, observation.loss, logits, Y, observation.noise.level)
    rest, heads = Rest(head, observation), observation.loss.heads
    norm = strength.new_tensor(rest.norm)
    spread = float(spread_within(strength, norm, None, most, heads))
    if spread > FALSE_ERROR:
        spread = float(
            spread_within(strength, norm, strength.new_tensor(rest.largest), most, heads)
        )
    return spread


def answers(head: Head, loss: Loss, logits: Tensor, Y: Tensor, level: Tensor) -> Tensor:
    """(…, B, C) how strongly G answers other features, in units of the noise `level` (…, C), where
    they show at all."""
    level = level[..., None, :]
    V = probes(head)
    changes = loss.curvature(logits, Y).times(
        V.expand(*logits.shape[:-1], -1, -1)
    ) / level.unsqueeze(-2)
    share = outside_share(changes, loss.gradient(logits, Y) / level)
    # of (J W)_c, by row
    return loss.response(logits, Y, head.W, head.row_norms(head.W)) / level * share[..., None]


def spread_within(
    strength: Tensor, norm: Tensor, largest: Tensor | None, most: int, heads: int = 1
) -> Tensor:
    """(…) the largest δ that hides in a rest of this norm and largest singular value, in up to
    `most` further directions."""
    # that answer, effectively
    rows = strength.square().sum(-1).square() / strength.pow(4).sum(-1).clamp_min(1e-300)
    # Of several heads each answers as the others do; where nothing is finite, as one row.
    rows = rows.nan_to_num(nan=1.0).clamp(1, strength.shape[-1] / heads).long()
    d = torch.arange(1, most + 1, device=rows.device, dtype=strength.dtype)
    bound = norm[..., None, None] * d.sqrt()
    bound = bound if largest is None else torch.minimum(bound, largest[..., None, None] * d)
    # δ² in units of the strength of an answer, for the worst number of directions d that it may be
    # shared among.
    shared = (bound / _usual_of(rows, most)).amax(-1) / strength.norm(dim=-1).clamp_min(1e-300)
    alone = UNEVEN if strength.shape[-2] == 1 else 1.0
    return alone * shared.amax(-1).sqrt()


def _usual_of(rows: Tensor, most: int) -> Tensor:
    """(…, most) `usual` of so many rows times 1 … most."""
    different, place = rows.unique(return_inverse=True)
    table = [[usual(row * d) for d in range(1, most + 1)] for row in different.tolist()]
    return torch.tensor(table, dtype=torch.float64, device=rows.device)[place]


def probes(head: Head) -> Tensor:
    """(PROBES, C) W u for usual directions u, always the same ones."""
    H, generator = head.W.shape[1], torch.Generator().manual_seed(0)
    u = torch.randn(PROBES, H, generator=generator, dtype=torch.float64).to(head.W.device)
    return head.logits(u / u.norm(dim=1, keepdim=True))


def outside_share(changes: Tensor, G: Tensor) -> Tensor:
    """(…, B) which share of (…, B, n, C) changes of the errors G (…, B, C) is no multiple of the
    error itself."""
    unit = (G / G.norm(dim=-1, keepdim=True).clamp_min(1e-300)).unsqueeze(-2)
    beside = changes - (changes * unit).sum(-1, keepdim=True) * unit
    whole = changes.square().sum((-2, -1))
    return (beside.square().sum((-2, -1)) / whole.clamp_min(1e-300)).sqrt()


def hidden_lengths(question: Question) -> float:
    """The same for siblings of other lengths, s f with s near 1: they lie within the span of A, so
    only the equation shows them.

    To leading order a mean over them differs from f by ½ Var(s) d²/ds² of what s f sends, and T
    follows as well as it can. One sibling of n, where all others are equal, lies √(n − 1)
    deviations from the mean. A bound that leaves no doubt is returned as it is.
    """
    here = question.here
    if not question.candidate.explains:
        return 0.0
    misfit = here.T.new_tensor(question.misfit)
    most = spread_of_lengths(question.information.beside[FurtherUnknown.LENGTHS], misfit)
    unsure = (most > FALSE_ERROR).nonzero()[:, 0]
    if len(unsure) > 0:
        D = _lengths(here, unsure)
        solved = followed(here, here.pull(D), question.misfit)
        if solved is None:
            return math.inf
        seen = D.flatten(1).square().sum(1) - (solved[0] * solved[1]).sum(1)
        most[unsure] = spread_of_lengths(seen, misfit)
    return float(most.max())


def spread_of_lengths(seen: Tensor, misfit: Tensor) -> Tensor:
    """(…, B) how far lengths may lie apart of which a unit of variance changes the residual by the
    square root of `seen`."""
    misfit = misfit[..., None]
    variance = misfit / (seen.clamp_min(0) + misfit.square()).sqrt()  # none is larger than 1
    return ((COPIES - 1) * variance.nan_to_num(nan=1.0)).sqrt()


def _lengths(here: Linearized, some: Tensor) -> Tensor:
    """(n, C, R [+ 1]) what the residual changes by per unit of the variance of the lengths of some
    samples."""
    at, (first, second) = here.at, lengths(here)
    change = 0.5 * torch.einsum("ic,ik->ick", second[some], here.T[some])
    change[..., : at.T.shape[1]] += torch.einsum("ic,ik->ick", first[some], at.T[some])
    return here.equation.weight[:, None] * at.alpha * change


class Rest:
    """What is left of ∇W outside the span of A, rows in units of their noise."""

    def __init__(self, head: Head, observation: Observation) -> None:
        self.head, self.observation = head, observation

    @cached_property
    def norm(self) -> float:
        parts = [
            torch.linalg.vector_norm(self._block(rows, slice(None)))
            for rows in self.head.row_blocks()
        ]
        return float(torch.stack(parts).norm())

    @cached_property
    def largest(self) -> float:
        """The largest singular value."""
        return float(torch.linalg.eigvalsh(self._gram)[-1].clamp_min(0).sqrt()) + CHANCE

    @cached_property
    def _gram(self) -> Tensor:
        """(C, C) or, where there are fewer features than classes, (H, H): the products of rows, or
        of columns."""
        C, H = self.head.grad_W.shape
        gram = torch.zeros(
            min(C, H), min(C, H), dtype=torch.float64, device=self.observation.U.device
        )
        for rows in self.head.row_blocks() if H < C else [slice(None)]:
            for columns in [slice(None)] if H < C else self.head.column_blocks():
                block = self._block(rows, columns)
                gram.addmm_(*((block.T, block) if H < C else (block, block.T)))
        return gram

    def _block(self, rows: slice, columns: slice) -> Tensor:
        seen = self.head.grad_W[rows, columns].to(torch.float64, copy=True)
        rest = seen.addmm_(self.observation.U[rows], self.observation.A[:, columns], alpha=-1)
        return rest.div_(self.observation.noise.level[rows, None])


@lru_cache(maxsize=4096)
def usual(answers: int) -> float:
    """What the root mean square of so many normal numbers exceeds, but for a false alarm."""
    return math.sqrt(chi_square_quantile(FALSE_ALARM, answers) / answers)


def _doubt_proportional(question: Question) -> list[str]:
    """Two samples with proportional features and different labels pass for one with a mixed label,
    and it for them."""
    observation, T, labels = (
        question.observation,
        question.candidate.at.T,
        question.candidate.Y.argmax(1),
    )
    if len(T) <= observation.rank or observation.rank == observation.A.shape[1]:
        return []
    named = ", ".join(map(str, proportional(T, labels).nonzero()[:, 0].tolist()))
    return (
        [f"Samples {named} have proportional features: some may be one with a mixed label."]
        if named
        else []
    )


def proportional(features: Tensor, labels: Tensor) -> Tensor:
    """(B,) bool: samples whose features are a multiple, or a negative one, of those of another
    sample with another label."""
    unit = features / features.norm(dim=1, keepdim=True).clamp_min(1e-300)
    alike = ((unit @ unit.T).abs() > 1 - _PROPORTIONAL) & (labels[:, None] != labels)
    return alike.any(1)
