"""A direction that the second layer does not send: the samples' δ are dependent there, and one
mixture of them is lost.

A head of C classes sends back in C − 1 directions, gated by the second layer's ReLUs. Where more
samples than that open the same units, as in untrained networks, their δ are dependent: the second
layer's ∇W has a direction fewer than the first's, and its rows span all but one direction w of what
it read. No sample lies in that span, but all lie beside it in the same direction:

    a(s) = mask ⊙ (s K + c)        a(s) outside the span = κ w, with one w for all samples

Descents end beside the samples, some with every ReLU right. What they send back shows which: then δ
lies in the column spaces. Off the directions in which s moves it, what such an end leaves is κ w; a
few of them give w, by linear algebra.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unsum.engine.descend import Descent
from unsum.engine.found import FoundPoints
from unsum.losses import BinaryCrossEntropy, CrossEntropy
from unsum.running.deadline import out_of_time
from unsum.spans.basis import LayerSpan
from unsum.spans.labels import deflate
from unsum.spans.pair import Pair
from unsum.spans.roots import STARTS, Condition, descend, starts
from unsum.spans.search import SLACK, levels, roots_among, tried_starts
from unsum.spans.settle import Sample, outside_columns

# [descents] of a round, and [rounds]: one descent in a hundred ends with every ReLU right.
# Chosen by: arbitrary budget.
_STARTS, _ROUNDS = 1024, 4
# [ends] that determine w: two leave it open, and one more may be wrong. Chosen by: counting.
_FEWEST = 4
# [of δ] that may lie outside the column spaces where every ReLU is right: the error of p.
# Chosen by: arbitrary margin.
_RIGHT = 0.01
_APART = 0.02  # [relative distance] from which two ends are two. Chosen by: arbitrary margin.
# [of the usual distance from the line of w] an end that lies farther off has a wrong ReLU.
# Chosen by: arbitrary margin.
_AGREE = 10.0
# [error of w] from which it is no direction, but one of many. Chosen by: arbitrary margin.
_ALONE = 0.03
_AGAIN = 4  # [rounds] with w known: more samples determine it better. Chosen by: arbitrary budget.


def with_missing(pair: Pair, seed: int) -> Pair:
    """The pair with the direction that its second layer lacks, where exactly one is lacking and can
    be told."""
    rectified = all(step.activation.name == "ReLU" for step in pair.steps[:-1])
    lacks_one = len(pair.here) == len(pair.next) + 1 and not pair.here.full and pair.beyond is None
    if not lacks_one or not rectified or not pair.next.has_bias:
        return pair
    condition, generator = pair.condition, torch.Generator().manual_seed(seed)
    ends, found, left, told = (
        condition.K.new_zeros(0, condition.unknowns),
        FoundPoints.none(condition.step.W),
        condition,
        None,
    )
    for _ in range(_ROUNDS):
        tried = descend(left, starts(left, _STARTS, generator, rows=True))
        X = left.inputs(tried.s)[tried.misfit < STARTS.near]
        ends = _distinct(
            condition, torch.cat([ends, _right(pair, condition, condition.unknowns_of(X))])
        )
        told = _direction(condition, ends)
        if told is not None or out_of_time("the direction that a layer lacks"):
            break
        # taken out, they leave fewer unknowns to the others
        found = found.joined(_roots(pair, left, tried))
        left = deflate(condition, pair.steps, found) or condition if len(found) else condition
    if told is None:
        return pair
    for _ in range(_AGAIN):
        longer = replace(pair, next=_with(pair.next, told)).condition
        more = _right(pair, condition, tried_starts(longer, pair.expected, generator, first=True).s)
        ends = _distinct(condition, torch.cat([more, ends]))
        told = _direction(condition, ends) or told
    return replace(pair, next=_with(pair.next, told))


def told_again(pair: Pair, X: Tensor) -> Pair:
    """The pair with its missing direction as samples X (R, n) tell it."""
    span = pair.next
    known = replace(span, rows=span.rows[:-1], values=span.values[:-1], core=span.core[:, :-1])
    condition = replace(pair, next=known).condition
    told = _direction(condition, condition.unknowns_of(X))
    return pair if told is None else replace(pair, next=_with(known, told))


def _right(pair: Pair, condition: Condition, s: Tensor) -> Tensor:
    """Points beside the span whose ReLUs are those of a sample: what they send lies in the column
    spaces."""
    misfits = condition.misfit(s)
    s = s[(misfits < STARTS.near) & (misfits > SLACK * levels(condition, s))]
    return s[_sends_rightly(pair, condition, s)]


def _roots(pair: Pair, condition: Condition, ends: Descent) -> FoundPoints:
    """The samples that lie in the span, where w is hardly any of them."""
    roots, _ = roots_among(condition, ends)
    return roots[_sends_rightly(pair, condition, condition.unknowns_of(roots.points))]


def _sends_rightly(pair: Pair, condition: Condition, s: Tensor) -> Tensor:
    loss = BinaryCrossEntropy() if len(pair.steps[-1].W) == 1 else CrossEntropy()
    right: Tensor = outside_columns(Sample(condition, pair.steps, loss), s) < _RIGHT
    return right


def _distinct(condition: Condition, s: Tensor) -> Tensor:
    """Those of s that are not alike."""
    firsts, _ = FoundPoints.unranked(condition.inputs(s)).grouped(_APART)
    return s[firsts]


def _direction(condition: Condition, s: Tensor) -> tuple[Tensor, float] | None:
    """(w (m + 1,), its error) such that what an end leaves of a, off the ways that s moves it, is κ
    w, off these ways; or None.

    Ends that do not agree with the others, because a ReLU is wrong after all, are left out.
    """
    V, size = condition.next.rows, condition.next.rows.shape[1]
    ends = [_off_its_ways(condition, z) for z in s @ condition.K + condition.c]
    while len(ends) >= _FEWEST:
        normal = V.new_zeros(size + len(ends), size + len(ends))
        normal[:size, :size] = STARTS.near**2 * V.T @ V  # w lies outside of the span
        for i, (left, Q) in enumerate(ends):
            # noise is the same in all, and those that leave hardly anything tell nothing
            told = left.square().sum()
            normal[:size, :size] += told * (torch.eye(size).to(Q) - Q @ Q.T)
            normal[:size, size + i] = normal[size + i, :size] = -left
            normal[size + i, size + i] = 1.0
        values, vectors = torch.linalg.eigh(normal)
        w, error = (
            vectors[:size, 0] / vectors[:size, 0].norm(),
            float((values[0].clamp_min(0) / values[1]).sqrt()),
        )
        beside = torch.stack([_beside(left, w - Q @ (Q.T @ w)) for left, Q in ends])
        if error < _ALONE and bool(beside.max() <= _AGREE * beside.median()):
            return w, error
        del ends[int(beside.argmax())]
    return None


def _off_its_ways(condition: Condition, z: Tensor) -> tuple[Tensor, Tensor]:
    """(what of a lies outside the span and off the ways that s moves it, relative, and an
    orthonormal basis of both)."""
    on = (z > 0).to(z)
    a = torch.cat([on * z, torch.ones_like(z[:1])])
    ways = torch.cat([condition.next.rows, torch.nn.functional.pad(condition.K * on, (0, 1))])
    Q = torch.linalg.qr(ways.T)[0]
    return (a - Q @ (Q.T @ a)) / a.norm(), Q


def _beside(left: Tensor, w: Tensor) -> Tensor:
    return (left - w * (left @ w) / w.square().sum().clamp_min(1e-300)).norm()


def _with(span: LayerSpan, told: tuple[Tensor, float]) -> LayerSpan:
    """The span with one more direction, which no column belongs to."""
    w, error = told
    w = w - (w @ span.rows.T) @ span.rows
    rows = torch.cat([span.rows, w[None] / w.norm()])
    # As if noise had turned it as far as it errs.
    value = span.noise * len(w) ** 0.5 / max(error, 1e-12)
    core = torch.nn.functional.pad(span.core, (0, 1))
    return replace(
        span, rows=rows, values=torch.cat([span.values, span.values.new_tensor([value])]), core=core
    )
