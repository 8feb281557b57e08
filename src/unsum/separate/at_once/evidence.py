"""What speaks for many answers at once: predicted errors, and every doubt of `unsum.certify` that a
plain batch can raise.

A doubt is only counted here, and bounds take the place of what is computed of one answer: they are
on the side of doubt. Whoever has a doubt is solved again by itself, and told in words.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.certify.candidate import EXPLAINED, FAR
from unsum.certify.claim import FALSE_ERROR, TRUSTED_ERROR
from unsum.certify.doubts.faint import SURE as FAINT
from unsum.certify.doubts.labels import SATURATED
from unsum.certify.doubts.merged import CHANCE, TOGETHER, answers, spread_of_lengths, spread_within
from unsum.certify.doubts.mixing import WRONG_LABEL, mixed_at_most
from unsum.certify.doubts.nuisance import TRUSTED
from unsum.certify.further import FurtherUnknown, all_others, further_unknowns
from unsum.certify.information import sample_information
from unsum.certify.scatter import SPARE, noise_outside, prior_of, scatter_of
from unsum.equation.equation import Linearized
from unsum.head import Head
from unsum.separate.at_once.gradients import Observations


def weigh(head: Head, seen: Observations, here: Linearized) -> tuple[Tensor, Tensor]:
    """(n, B) predicted errors, and (n,) bool: whether the answer explains its gradient and nobody
    has a doubt."""
    T, labels = here.at.T, here.equation.targets(here.at).argmax(2)
    (B, R), C = T.shape[1:], here.G.shape[2]
    spare = (C - 1) * (R + 1) - B * R
    misfit = (here.cost / max(spare, 1)).sqrt()
    floor, lengths = misfit.clamp_min(1.0), T.norm(dim=2)
    size = lengths.clamp_min(1e-300)
    scatter = (
        scatter_of(here, prior_of(T, floor))[0].diagonal(dim1=1, dim2=2) * floor[:, None].square()
    )
    outside = noise_outside(here, seen.level, seen.A.shape[2])
    errors = ((scatter.clamp_min(0) + outside.square()).sqrt() / size).nan_to_num(nan=torch.inf)
    predicted = errors.amax(1)
    bounds = sample_information(here, further_unknowns(here, all_others(here)))

    def open_by(unknown: FurtherUnknown | None) -> Tensor:
        return (bounds.error_at_most(unknown, floor, here.cost) / size).amax(1)

    fine = [
        torch.full_like(misfit, spare).ge(SPARE),
        (misfit < EXPLAINED)
        & (predicted < TRUSTED_ERROR)
        & (predicted * misfit.square() < TRUSTED_ERROR),
        lengths.amax(1) <= FAR * lengths.median(1).values,
        here.G.abs().amax((1, 2)) >= FAINT,
        (1 - here.equation.probabilities(T).amax(2)).amax(1) > SATURATED,
        _hidden_spread(head, seen, here) <= FALSE_ERROR,
        spread_of_lengths(bounds.beside[:, FurtherUnknown.LENGTHS], floor).amax(1) <= FALSE_ERROR,
        mixed_at_most(bounds, here, labels, floor) < WRONG_LABEL,
        open_by(None) <= TRUSTED,
        open_by(FurtherUnknown.TEMPERATURE) <= TRUSTED,
    ]
    return errors, torch.stack(fine).all(0)


def _hidden_spread(head: Head, seen: Observations, here: Linearized) -> Tensor:
    """(n,) as `merged.hidden_spread`."""
    n, R, H = seen.A.shape
    most = min(TOGETHER - 1, H - R, here.G.shape[2] - 1 - R)
    if most < 1:
        return here.cost.new_full((n,), torch.inf)
    equation, T = here.equation, here.at.T
    share = here.at.alpha[..., None] * T.square().sum(2, keepdim=True) * ((1 - R / H) / H) ** 0.5
    logits, Y = equation.logits(T), equation.targets(here.at)
    strength = share * answers(head, equation.loss, logits, Y, seen.level)
    return spread_within(strength, seen.rest[:, 0], seen.rest[:, 1] + CHANCE, most)
