"""The table of starts: where each applies, what it costs, and how it proposes. Starts propose, the search decides.

A start draws its random numbers from a generator of its own name, so that one start more or less changes no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from unsum.separate.exact import proposals
from unsum.separate.exact.hypotheses import HARD, SOFT
from unsum.separate.exact.known import Known
from unsum.separate.exact.proposals import Proposals
from unsum.separate.exact.zeros import seconds_of_wave


@dataclass(frozen=True)
class Start:
    """One way to look for the batch; `cost` is in estimated seconds."""

    name: str
    applies: Callable[[Known], bool] = field(repr=False)
    cost: Callable[[Known], float] = field(repr=False)
    propose: Callable[[Known, torch.Generator], Proposals] = field(repr=False)

    def generator(self, seed: int) -> torch.Generator:
        digest = hashlib.sha256(f"{seed} {self.name}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))


def _solving(known: Known) -> float:
    """From two points with patience; or in three norms, for samples that were found one at a time."""
    return known.seconds(proposals.TRIES * proposals.PATIENT)


def _labels(name: str) -> Start:
    return Start(name, lambda known: name in known.hypotheses, _solving, partial(proposals.by_regression, name=name))


def _one(known: Known) -> bool:
    return known.targets is None and known.observation.rank == 1 and known.batch_size in (None, 1)


def _singly(known: Known) -> bool:
    return known.targets is None and not known.near_classes


def _crowded(known: Known) -> bool:
    return known.targets is None and (known.near_classes or known.peaked)


def _exchangeable(known: Known) -> bool:
    return known.targets is None and known.near_classes and known.batch_size in (None, known.observation.rank)


def _without_bias(known: Known) -> bool:
    return known.targets is None and known.observation.grad_b is None


def _always(_: Known) -> bool:
    return True


STARTS = (
    Start("alone", _one, lambda _: 0.0, proposals.one_alone),
    *map(_labels, HARD),
    Start("extracted", _singly, _solving, proposals.one_at_a_time),
    Start("exchanged", _exchangeable, lambda _: proposals.EXCHANGE_SECONDS, proposals.by_exchange),
    *map(_labels, SOFT),
    Start("extracted, smoothed", _singly, _solving, partial(proposals.one_at_a_time, smoothed=True)),
    Start("zeros", _always, lambda known: seconds_of_wave(known.observation.A), proposals.by_zeros),
    Start("thinned", _crowded, _solving, proposals.by_thinning),
    Start("mixed", _singly, _solving, proposals.by_pairs),
    Start("lifted", _without_bias, _solving, proposals.by_lifted_regression),
    Start("patient", _always, lambda _: proposals.PATIENCE, proposals.by_patience),
)
