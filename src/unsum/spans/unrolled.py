"""The samples of unrolled local steps as one answer: polished against the whole change of weights,
judged, put together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unsum.engine.found import LabeledPoints
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.local_training import LocalTraining
from unsum.losses import PLAIN, CrossEntropy
from unsum.network.chain import Chain, forward
from unsum.network.products import left_product
from unsum.running.progress import Progress
from unsum.spans.joint import MOST, AllSamples, solve_together
from unsum.spans.judge import UnrolledAnswer, judge_steps
from unsum.spans.pair import Pair, choose_pair
from unsum.spans.roots import Condition
from unsum.spans.search import blurred
from unsum.spans.settle import Sample
from unsum.spans.steps import Unrolling
from unsum.spans.training import Unrolled, Visited, raw_change, rounded_entry
from unsum.update import Update

_POLISHES = 3  # rounds of least squares: the first one does nearly all
_EXPLAINED = 1.1  # times what rounded weights leave: nothing is gained by less
_SAME = 1e-3  # relative distance within which visits in several epochs are of one sample


@dataclass(frozen=True)
class FoundSamples:
    """An answer about several steps, with the pair of layers that it was read out of and the errors
    of its inputs (R,)."""

    leak: Leak
    pair: Pair
    errors: Tensor


def read_steps(
    head: Head, chain: Chain, update: Update, knowledge: Knowledge, seed: int, progress: Progress
) -> FoundSamples | None:
    """The samples of all local steps, as far as they can be followed; None where the first step has
    none."""
    if knowledge.loss not in (None, PLAIN):
        raise UnsumError(
            "'spans' follows local steps of cross-entropy alone; for other losses capture a single "
            "step."
        )
    training = update.training or LocalTraining(learning_rate=update.learning_rate)
    change = replace(chain, steps=raw_change(chain.steps, update, training))
    pair = choose_pair(change, knowledge, lambda step: rounded_entry(step, training.steps))
    search = Unrolling(
        pair.steps, pair.here, pair.next, training, head.reduction == "mean", seed, progress
    )
    found = search.run()
    if not found.seen:
        return None
    # what lies below the pair is trained, too, and changes what it reads
    inputs_stay = pair.at == 0 and chain.complete
    groups = _samples(found, inputs_stay)
    if found.visits >= pair.expected:
        found = _polished(search, search.evened(found), groups)
    answer = UnrolledAnswer(
        found, training, groups, pair.expected - found.visits, head.reduction == "mean", inputs_stay
    )
    return _answered(head, pair, answer, knowledge, seed)


def _samples(found: Unrolled, inputs_stay: bool) -> Tensor:
    """(visits,) which sample each visit is of, numbered in the order in which steps saw them
    first."""
    X, labels = (
        torch.cat([seen.roots.points for seen in found.seen]),
        torch.cat([seen.labels for seen in found.seen]),
    )
    if not inputs_stay:
        return torch.arange(len(X), device=X.device)
    return LabeledPoints.unranked(X, labels=labels).grouped(_SAME)[1]


def _polished(search: Unrolling, found: Unrolled, groups: Tensor) -> Unrolled:
    """All inputs once more: by least squares over the first layer's change, then, where that leaves
    more than rounding does, by all layers together. What the steps met follows from the inputs, so
    each is repeated while it helps."""
    for solve in (_by_first_layer, _by_all_layers):
        for _ in range(_POLISHES):
            solved = None if found.unexplained < _EXPLAINED else solve(search, found, groups)
            if solved is None:
                break
            *parts, alpha = solved
            sizes = [len(seen) for seen in found.seen]
            steps = zip(found.seen, *(part.split(sizes) for part in parts), strict=True)
            moved = [
                Visited(replace(s.roots, points=x, errors=e), s.labels, alpha * s.weights)
                for s, x, e in steps
            ]
            again = replace(search.followed(moved), even=found.even)
            if not again.unexplained < found.unexplained:
                break
            found = again
    return found


def _by_first_layer(
    search: Unrolling, found: Unrolled, groups: Tensor
) -> tuple[Tensor, Tensor, float]:
    """(X, predicted errors, 1) of all visits: what explains ∇W of the first layer, given what the
    steps send back to it."""
    step = search.change[0]
    delta = torch.cat(
        [seen.passes(met.steps)[1][0] for seen, met in zip(found.seen, found.met, strict=True)]
    )
    sent = delta.new_zeros(int(groups.max()) + 1, delta.shape[1]).index_add_(0, groups, delta)
    inverse = torch.linalg.pinv(sent.T)
    X = left_product(inverse, step.grad_W)[0]
    errors = (
        inverse.norm(dim=1)
        * search.here.noise
        * step.W.shape[1] ** 0.5
        / X.norm(dim=1).clamp_min(1e-300)
    )
    return X[groups], errors[groups], 1.0


def _by_all_layers(
    search: Unrolling, found: Unrolled, groups: Tensor
) -> tuple[Tensor, Tensor, float] | None:
    """The same against all layers, with what weights must be multiplied by; None with too many
    unknowns, or repeated visits."""
    if found.visits * len(search.here) > MOST or int(groups.max()) + 1 < len(groups):
        return None
    conditions = [Condition.of(met.steps[0], search.here, search.next) for met in found.met]
    samples = [
        Sample(condition, met.steps, CrossEntropy())
        for condition, met in zip(conditions, found.met, strict=True)
    ]
    labels, weights = (
        torch.cat([getattr(seen, name) for seen in found.seen]) for name in ("labels", "weights")
    )
    Y = torch.nn.functional.one_hot(labels, len(search.change[-1].W)).to(weights)
    noises = [rounded_entry(step, len(found.seen)) for step in search.change]
    together = AllSamples(
        samples, [len(seen) for seen in found.seen], search.change, Y, weights, noises
    )
    X, errors, alpha = solve_together(
        together, torch.cat([seen.roots.points for seen in found.seen]), 1.0
    )
    return X, errors, alpha if search.training.learning_rate is None else 1.0


def _answered(
    head: Head, pair: Pair, answer: UnrolledAnswer, knowledge: Knowledge, seed: int
) -> FoundSamples:
    sharp = [seen.roots for seen in answer.found.seen]
    blunt = [
        replace(roots, errors=blurred(roots.errors, roots.points, pair.here)) for roots in sharp
    ]
    visited = [
        replace(seen, roots=roots) for seen, roots in zip(answer.found.seen, blunt, strict=True)
    ]
    answer = replace(answer, found=replace(answer.found, seen=visited))
    claim = judge_steps(answer, knowledge, seed)
    found = answer.found
    passed = [
        forward(met.steps, seen.roots.points)
        for seen, met in zip(found.seen, found.met, strict=True)
    ]
    times = torch.cat([answer.copies(seen) for seen in found.seen])
    first = answer.firsts
    chosen = first.repeat_interleave(times[first])
    X = torch.cat([seen.roots.points for seen in found.seen])[chosen]
    labels = torch.cat([seen.labels for seen in found.seen])[chosen]
    dtype = head.W.dtype if head.W.dtype in (torch.float32, torch.float64) else torch.float32
    leak = Leak(
        method="spans",
        targets=torch.nn.functional.one_hot(labels, len(head.W)).double(),
        logits=torch.cat([written[-1] for _, written in passed])[chosen],
        features=torch.cat([read[-1] for read, _ in passed])[chosen].to(dtype),
        residual=min(_left(found, pair), 1.0),
        predicted_error=claim.predicted_error,
        exact=claim.exact,
        predicts=claim.predicts,
        counted=claim.counted,
        inner={pair.steps[0].name: X.to(dtype)},
        notes=[*_remarks(pair, answer), *claim.notes],
    )
    return FoundSamples(leak, pair, torch.cat([seen.roots.errors for seen in found.seen])[chosen])


def _left(found: Unrolled, pair: Pair) -> float:
    """The largest share of a layer's change that no sample explains."""
    shares = (
        float(left.grad_W.norm()) / max(float(sent.grad_W.norm()), 1e-300)
        for left, sent in zip(found.left, pair.steps, strict=True)
    )
    return max(shares)


def _remarks(pair: Pair, answer: UnrolledAnswer) -> list[str]:
    sizes = [len(seen) for seen in answer.found.seen]
    many = (
        f"{sizes[0]} samples each"
        if len(set(sizes)) == 1
        else f"{', '.join(map(str, sizes))} samples"
    )
    steps = "1 local step was" if len(sizes) == 1 else f"{len(sizes)} local steps were"
    names = f"{pair.steps[0].name!r} and {pair.steps[1].name!r}"
    notes = [
        (
            f"{steps} unrolled ({many}) out of the spans of {names}; features are those in the "
            "step that saw a sample first."
        )
    ]
    if answer.missing > 0:
        notes.append(
            f"{answer.missing} further directions belong to later steps that were not reached."
        )
    return notes
