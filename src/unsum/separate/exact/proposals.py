"""The table of starts: where each applies, what it costs, and where it suggests to look. Starts
propose, the search decides.

A proposal is an equation with points to start from. Samples that stand as they were found are a
candidate already. A start draws its random numbers from a generator of its own name, so that one
start more or less changes no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from unsum.certify.candidate import Candidate
from unsum.certify.scatter import certify
from unsum.equation.equation import Equation, Unknowns, positive_factor
from unsum.equation.observation import Observation
from unsum.separate.exact.exchange import exchange_labels
from unsum.separate.exact.extraction import Extracted, extract, extract_mixed
from unsum.separate.exact.extraction_sparse import extract_sparse
from unsum.separate.exact.hypotheses import HARD, SOFT, Hypothesis, Known
from unsum.separate.exact.lone import lone_roots
from unsum.separate.exact.regression import fit_lifted_lines
from unsum.separate.exact.starts import rotate_freely, rotate_to_targets
from unsum.separate.exact.zeros import (
    certified,
    find_sparse_directions,
    measure_lengths,
    seconds_of_wave,
)

ITERATIONS, PATIENT = 60, 150  # to solve from one point; large problems need more
TRIES, PATIENT_TRIES = 2, 6  # points of one hypothesis
TOGETHER = 100  # iterations for samples that were found one at a time
# estimated; for labels by exchange, which only batches near the number of classes need
EXCHANGE_SECONDS = 60.0
PATIENCE = 8.0  # estimated seconds spent on further starts before giving up
_LARGE = 32  # samples, beyond which large groups of one label turn slowly into place
_SHARE = 1e-4  # of a label, below which a class carries none
_POWERS = (0.5, 0.0, 1.0)  # between the gradient's own norm and the noise's: one of them leads down


@dataclass(frozen=True)
class Proposal:
    """An equation, and points to solve it from; a further point is a second opinion on what the
    first led to."""

    equation: Equation
    points: Iterator[Unknowns]
    iterations: int
    solved: bool = False  # the first point needs no solving
    # each sample was found on its own, which is a second opinion on all of them together
    alone: bool = False


Proposals = Iterator[Proposal | Candidate]


def one_alone(known: Known, _: torch.Generator) -> Proposals:
    """One sample, looked for along the whole range of its length: that was all of it, so that the
    first root counts."""
    for equation, at in lone_roots(known.observation):
        yield Proposal(equation, iter([at]), 0, solved=True, alone=True)


def by_regression(known: Known, generator: torch.Generator, name: str) -> Proposals:
    """One hypothesis about the labels, from the regression's moments in random rotations."""
    iterations = ITERATIONS if known.observation.rank <= _LARGE else PATIENT
    way = known.hypotheses[name]
    yield from [_rotated(known, way, generator, iterations)] * (1 if way.rigid else TRIES)


def by_lifted_regression(known: Known, generator: torch.Generator) -> Proposals:
    """Without ∇b the line itself depends on the smoothing: several strengths of it in turn."""
    for line in fit_lifted_lines(known.observation):
        lifted = replace(known, line=line)
        for way in lifted.hypotheses.values():
            if way.floor_free:
                yield _rotated(lifted, way, generator, ITERATIONS)


def by_patience(known: Known, generator: torch.Generator) -> Proposals:
    """Every hypothesis again from more points, as far as they can be afforded."""
    affordable = int(PATIENCE / known.seconds(PATIENT))
    for way in known.hypotheses.values():
        yield from [_rotated(known, way, generator, PATIENT)] * min(
            1 if way.rigid else PATIENT_TRIES, affordable
        )
        affordable = max(0, affordable - PATIENT_TRIES)


def one_at_a_time(known: Known, _: torch.Generator, smoothed: bool = False) -> Proposals:
    """Samples found one at a time, then to be solved for together."""
    extracted = extract(known.observation, smoothed=smoothed)
    if extracted is not None and len(extracted.T) > 0:
        yield from together(known.observation, extracted, smoothed=smoothed)


def by_thinning(known: Known, generator: torch.Generator) -> Proposals:
    """The same in a crowded batch, where the zeros of their features tell samples apart."""
    extracted = extract_sparse(known.observation, generator)
    # Of a gradient of full rank a few are none: one equation is left for each alone, and more
    # samples than that may be in it.
    if extracted is not None and not (known.full and len(extracted.T) < known.observation.rank):
        yield from together(known.observation, extracted, sure=True)


def together(
    observation: Observation, extracted: Extracted, *, smoothed: bool = False, sure: bool = False
) -> Proposals:
    """All of them, or most as if the others had left nothing: some that are missing may have left
    no more than a trace.

    Last as they were found: what does not explain the gradient together may still be right sample
    by sample.
    """
    T, R = extracted.T, observation.rank
    Y = torch.nn.functional.one_hot(extracted.labels, observation.classes).double()
    at = Unknowns.of(T, positive_factor(extracted.alpha), extracted.floor)
    equation = replace(observation.equation(), Y=Y, alpha_free=len(T) == R, floor_free=smoothed)
    weight = observation.weights_at(at, Y)
    for power in _POWERS if len(T) == R else _POWERS[: 2 * len(T) > R]:
        yield Proposal(equation.with_rows(weight**power), iter([at]), TOGETHER, alone=True)
    yield _as_found(observation, equation, at, Y, sure)


def by_pairs(known: Known, _: torch.Generator) -> Proposals:
    """Samples of mixed label found one at a time, then to be polished together with their labels
    open."""
    observation, mixed = known.observation, extract_mixed(known.observation)
    if mixed is None:
        return
    T, Y, alpha = mixed
    equation, at = observation.equation(), Unknowns.of(T, alpha)
    if len(T) == observation.rank:
        unlabeled = equation.with_rows(equation.weight * (Y.amax(0) < _SHARE))
        yield Proposal(replace(unlabeled, alpha_free=True), iter([at]), 0, solved=True, alone=True)
    yield _as_found(observation, equation, at, Y)


def by_exchange(known: Known, generator: torch.Generator) -> Proposals:
    """Labels found by exchange; the second opinion are other points that these labels lead from."""
    observation = known.observation
    found = exchange_labels(
        observation, known.line, generator, int(EXCHANGE_SECONDS / known.seconds(1))
    )
    if found is None:
        return
    labels, T = found
    Y = torch.nn.functional.one_hot(labels, observation.classes).double()
    way = Hypothesis(Y, len(Y), 1.0, False, False)
    others = _points(known, way, generator)
    points = chain([replace(next(others), T=T)], others)
    yield Proposal(way.equation(observation, known.line), points, PATIENT, solved=True)


def by_zeros(known: Known, generator: torch.Generator) -> Proposals:
    """Samples found by their features' zeros alone."""
    directions = find_sparse_directions(known.observation.A, generator)
    lengths = None if directions is None else measure_lengths(known.observation, directions)
    if directions is not None and lengths is not None:
        yield certified(known.observation, directions, lengths)


def _as_found(
    observation: Observation, equation: Equation, at: Unknowns, Y: Tensor, sure: bool = False
) -> Candidate:
    """Samples that were found one at a time: verified if they are most, or `sure`."""
    equation = replace(equation, Y=Y, alpha_free=False).with_rows(observation.weights_at(at, Y))
    verified = sure or 2 * len(at.T) > observation.rank
    return Candidate(at, Y, certify(equation, at, observation), equation, verified=verified)


def _rotated(
    known: Known, way: Hypothesis, generator: torch.Generator, iterations: int
) -> Proposal:
    return Proposal(
        way.equation(known.observation, known.line), _points(known, way, generator), iterations
    )


def _points(known: Known, way: Hypothesis, generator: torch.Generator) -> Iterator[Unknowns]:
    """One after another, without end."""
    while True:
        line, Y = known.line, way.Y
        T = (
            rotate_freely(line, way.B, generator)
            if Y is None
            else rotate_to_targets(line, Y, generator)
        )
        alpha = positive_factor(known.observation.alpha(way.scale, way.B))
        floor = known.line.floor if way.floor_free else 0.0
        yield Unknowns.of(T, alpha, floor)


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
    """From two points with patience; or in three norms, for samples that were found one at a
    time."""
    return known.seconds(TRIES * PATIENT)


def _labels(name: str) -> Start:
    return Start(
        name, lambda known: name in known.hypotheses, _solving, partial(by_regression, name=name)
    )


def _one(known: Known) -> bool:
    return known.targets is None and known.observation.rank == 1 and known.batch_size in (None, 1)


def _singly(known: Known) -> bool:
    return known.targets is None and not known.near_classes


def _crowded(known: Known) -> bool:
    return known.targets is None and (known.near_classes or known.peaked)


def _exchangeable(known: Known) -> bool:
    return (
        known.targets is None
        and known.near_classes
        and known.batch_size in (None, known.observation.rank)
    )


STARTS = (
    Start("alone", _one, lambda _: 0.0, one_alone),
    *map(_labels, HARD),
    Start("extracted", _singly, _solving, one_at_a_time),
    Start("exchanged", _exchangeable, lambda _: EXCHANGE_SECONDS, by_exchange),
    *map(_labels, SOFT),
    Start("extracted, smoothed", _singly, _solving, partial(one_at_a_time, smoothed=True)),
    Start("zeros", lambda _: True, lambda known: seconds_of_wave(known.observation.A), by_zeros),
    Start("thinned", _crowded, _solving, by_thinning),
    Start("mixed", _singly, _solving, by_pairs),
    Start(
        "lifted",
        lambda k: k.targets is None and k.observation.grad_b is None,
        _solving,
        by_lifted_regression,
    ),
    Start("patient", lambda _: True, lambda _: PATIENCE, by_patience),
)
