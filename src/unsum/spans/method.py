"""`spans`: every sample of a batch out of two consecutive dense layers, whatever the number of
classes.

1. The row space of each layer's gradient is the span of what it read (`basis`).
2. A sample is a point of the first span whose activation lies in the second (`roots`, `search`).
3. All samples together give the gradients at the logits, and these the loss, the labels and the
   scale (`targets`).
4. The samples are sent through the layers again; what that leaves decides what is claimed
   (`judge`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unsum.certify.claim import grant_each, nothing
from unsum.engine.found import FoundPoints
from unsum.engine.replay import tolerance
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.losses import PLAIN, BinaryCrossEntropy, CrossEntropy, Loss
from unsum.network.chain import Chain, Shape, forward
from unsum.network.products import left_product
from unsum.network.shapes import picture_shape
from unsum.peel.method import MARGIN
from unsum.peel.replay import PlayedBatch, Replayed, replay
from unsum.running.progress import SILENT, Progress
from unsum.separate.method import SEPARATORS
from unsum.spans.decay import undecayed
from unsum.spans.dropped import chain_through, check_dropped, masked_steps, search_dropped
from unsum.spans.joint import MOST, AllSamples, solve_together
from unsum.spans.judge import Answer, judge
from unsum.spans.labels import deflate, read_labels
from unsum.spans.maps import separate_maps
from unsum.spans.missing import told_again, with_missing
from unsum.spans.pair import Pair, choose_pair, dense_steps
from unsum.spans.roots import Condition
from unsum.spans.search import blurred, refined, search
from unsum.spans.settle import Sample, settle
from unsum.spans.targets import LossReading, read_loss
from unsum.spans.training import rounded_entry
from unsum.spans.unrolled import FoundSamples, read_steps
from unsum.update import Update

_RETOLD = 3  # times that samples tell the direction which a layer lacks
_PASSES = 6  # of taking out what was found and looking for the rest
# of a gradient, or times its noise: what all samples may leave, or they are none
_EXPLAINED, _NOISY = 1e-3, 10.0
_NEAR = 0.1  # of a gradient left unexplained: from where a solve of all samples leads to the truth
_LARGE = 1 << 24  # entries of a gradient from which no further float64 copy of it is made
_FAR_MOVED = 30.0  # predicted errors of a sample that the last solve may move it by
_POINTS = 16  # of the families that are looked through, for each sample
_POLISHES = 3  # rounds of least squares through the layers


@SEPARATORS.register(
    "spans",
    summary=(
        "every sample out of two consecutive dense layers, or convolutions, whatever the number of "
        "classes (unsum)"
    ),
    needs="two dense layers with an activation between them, both wider than the batch",
)
def spans(
    head: Head,
    knowledge: Knowledge,
    *,
    seed: int,
    model: nn.Module | None = None,
    update: Update | None = None,
    progress: Progress = SILENT,
    loss: Loss | None = None,
) -> Leak:
    """Samples as roots of the first span's condition on the second; labels, loss and scale
    afterwards."""
    assert model is not None
    assert update is not None
    refused: UnsumError | None = None
    first: Leak | None = None
    for clean, less, notes in undecayed(head, knowledge, model, update):
        try:
            chain, shares = chain_through(model, less, clean.W.device)
            asked = _Asked(clean, chain, knowledge, loss, seed, progress)
            if len(dense_steps(chain)) < 2:
                leak = separate_maps(
                    clean, knowledge, model, less, loss=loss, seed=seed, progress=progress
                )
            else:
                leak = _with_dropout(asked, shares, less) if shares else _read(asked, less)
        except UnsumError as reason:
            refused = reason
            continue
        leak = replace(leak, notes=[*notes, *leak.notes])
        if leak.exact or not notes:
            return leak
        first = first or leak
    if first is None:
        assert refused is not None
        raise refused
    return first


@dataclass(frozen=True)
class _Asked:
    """Whose head and layers are asked, what is known besides, and who hears how far the search has
    come."""

    head: Head
    chain: Chain
    knowledge: Knowledge
    loss: Loss | None
    seed: int
    progress: Progress

    def reading(self, pair: Pair, X: Tensor) -> LossReading:
        """The loss and the labels that explain the head's gradient, for samples X (R, n) of the
        pair's first layer."""
        read, written = forward(pair.steps, X)
        return read_loss(self.head, read[-1], written[-1], self.loss, self.knowledge)

    def search(
        self, condition: Condition, expected: int, further: int, *, most: bool
    ) -> tuple[FoundPoints, Tensor]:
        return search(condition, expected, self.seed + further, self.progress, most=most)

    def nothing(self, why: str) -> Leak:
        """An answer without samples."""
        C, H = self.head.W.shape
        claim = nothing(f"{why} This is no sign that nothing leaks.")
        empty = self.head.W.new_zeros(0, C, dtype=torch.float64)
        features, (error, exact) = self.head.W.new_zeros(0, H), (claim.predicted_error, claim.exact)
        return Leak("spans", empty, empty, features, 1.0, error, exact, notes=claim.notes)


def _read(asked: _Asked, update: Update) -> Leak:
    several = update.training is not None and update.training.several_steps
    steps = None
    # of one step, or of several that nobody told of
    if update.kind == "delta" and (several or asked.loss is None):
        steps = read_steps(
            asked.head, asked.chain, update, asked.knowledge, asked.seed, asked.progress
        )
    if steps is not None and (several or steps.leak.exact):
        return _with_inputs(asked.chain, steps)
    if several:
        return asked.nothing("No sample of the first local step was found in the spans.")
    try:
        leak = _one_step(asked, update)
    except UnsumError:
        if steps is None:
            raise
        return _with_inputs(asked.chain, steps)
    if steps is None or leak.exact:
        return leak
    better = (steps.leak.batch_size, -steps.leak.predicted_error) > (
        leak.batch_size,
        -leak.predicted_error,
    )
    return _with_inputs(asked.chain, steps) if better else leak


def _one_step(asked: _Asked, update: Update) -> Leak:
    delta, divisor = update.kind == "delta", update.learning_rate or 1.0
    pair = choose_pair(
        asked.chain,
        asked.knowledge,
        lambda step: rounded_entry(step, 1) / divisor if delta else 0.0,
    )
    pair = with_missing(pair, asked.seed)
    answer = _best(asked, pair)
    if answer is not None:
        return _leak(asked, pair, replace(answer, lengths_open=pair.condition.lengths_open))
    step = pair.steps[0]
    why = (
        f"{step.activation.name} is nearly linear here, or {pair.expected} samples are too many "
        f"for its {len(step.W)} units"
    )
    if max(pair.here.noise_share, pair.next.noise_share) > 1e-3:
        why = "noise hides the spans' smallest directions"
    return asked.nothing(f"No sample was found in the spans of {step.name!r}: {why}.")


def _with_dropout(asked: _Asked, shares: dict[str, float], update: Update) -> Leak:
    """Samples with their masks; what they read at the head is what dropout left of it."""
    pair = choose_pair(asked.chain, asked.knowledge)
    check_dropped(pair, several=update.training is not None and update.training.several_steps)
    found = search_dropped(pair, shares.get(pair.steps[0].name, 1.0), asked.seed, asked.progress)
    if len(found) != pair.expected:
        number = f"{len(found)} of {pair.expected} samples"
        return asked.nothing(
            f"{number} were found through dropout, too few to read the masks above them."
        )
    pair = replace(pair, steps=masked_steps(pair.steps, found, shares), beyond=None)
    reading = asked.reading(pair, found.points)
    # copies would have masks of their own
    if reading.copies is not None and int(reading.copies.max()) > 1:
        return asked.nothing("Samples that dropout fell on alike cannot be told apart.")
    played, errors, X = _polished(pair, found, reading)
    return _leak(asked, pair, Answer(found, X, errors, reading, played, 0))


def _best(asked: _Asked, pair: Pair) -> Answer | None:
    """The forward spans' samples where they explain the gradients; else what the backward spans
    make of their points."""
    condition = pair.condition
    limit = max(_EXPLAINED, _NOISY * max(pair.here.noise_share, pair.next.noise_share))
    # or samples cannot be taken out before their labels are known
    classes = asked.knowledge.loss in (None, PLAIN)
    roots, points = asked.search(condition, pair.expected, 0, most=classes)
    if classes:
        roots = _completed(asked, pair, roots, _PASSES)
    for attempt in range(_RETOLD):  # the more samples, the better they tell what is lacking
        if not pair.next.lacking or not 0 < len(roots) < pair.expected:
            break
        pair = told_again(pair, roots.points)
        roots = _completed(asked, pair, refined(pair.condition, roots), attempt)
    forward = _answered(asked, pair, roots)
    if pair.next.lacking or (forward is not None and forward.left < limit):
        return forward
    settled = _answered(asked, pair, _settled(asked, pair, roots, points))
    if not classes or (settled is not None and settled.left < limit):
        return settled
    more, _ = asked.search(condition, pair.expected, 2 * _PASSES, most=False)  # labels may be soft
    forward = _answered(asked, pair, roots.joined(more))
    return forward if forward is not None and forward.left < limit else settled


def _completed(asked: _Asked, pair: Pair, found: FoundPoints, further: int) -> FoundPoints:
    """All samples, from some: what was found is taken out, and the rest looked for, again and
    again. When none is missing, those that one start alone led to are looked for by other starts,
    where the others are taken out."""
    for attempt in range(_PASSES * pair.expected):
        missing, once = _open(pair, found)
        if not 0 <= missing < pair.expected or not (missing or once):
            break
        out = found if missing else found[found.hits > 1]
        left = deflate(pair.condition, pair.steps, out) if len(out) else pair.condition
        if left is None:
            break
        new, _ = asked.search(left, pair.expected - len(out), further + attempt, most=True)
        found = found.joined(refined(pair.condition, new)) if missing else found.confirmed_by(new)
        if _open(pair, found) == (missing, once):
            break
    return found


def _open(pair: Pair, found: FoundPoints) -> tuple[int, int]:
    """(samples that are missing, samples that one start alone led to)."""
    return pair.expected - len(found), int((found.hits < 2).sum())


def _settled(asked: _Asked, pair: Pair, roots: FoundPoints, points: Tensor) -> FoundPoints:
    """Samples among roots and points, for labels that are classes: what is settled is taken out,
    and the rest looked for."""
    found, known, head = FoundPoints.none(pair.steps[0].W), None, asked.head
    one_logit = len(head.W) == 1
    usual = asked.loss or (BinaryCrossEntropy() if one_logit else CrossEntropy())
    if usual.name not in ("cross-entropy", "bce") or usual.many_labels != one_logit:
        return found
    condition = pair.condition
    alpha = (
        1 / usual.divisor(head.W.new_zeros(pair.expected, len(head.W)))
        if head.reduction == "mean"
        else 1.0
    )
    for attempt in range(1, _PASSES):
        some = torch.cat(
            [
                roots.points,
                points[:: -(-len(points) // (_POINTS * (pair.expected - len(found)))) or 1],
            ]
        )
        new, weights = settle(condition, pair.steps, some, usual, alpha, known, pinned=False)
        if len(found) and len(found.joined(new)) == len(found):
            new, weights = settle(condition, pair.steps, some, usual, alpha, known, pinned=True)
        before, found = len(found), found.joined(new.confirmed_by(roots))
        if len(found) >= pair.expected or len(found) == before:
            break
        alpha = known = float(weights.median())
        rest = deflate(condition, pair.steps, found)
        if rest is None:
            break
        roots, points = asked.search(rest, pair.expected - len(found), attempt, most=True)
    return _completed(asked, pair, found, _PASSES)


def _answered(asked: _Asked, pair: Pair, roots: FoundPoints) -> Answer | None:
    """None where there are no samples, or more than directions: then they are mixtures."""
    missing = pair.expected - len(roots)
    if len(roots) == 0 or missing < 0:
        return None
    if missing:  # what is missing would spoil every least-squares solve
        # of each by itself
        labels, weights = read_labels(pair.steps, pair.here, pair.next, roots.points)
        Y = torch.nn.functional.one_hot(labels, len(pair.steps[-1].W)).to(roots.points)
        reading = LossReading(CrossEntropy(), Y, weights, 0.0)
        return Answer(
            roots,
            roots.points,
            roots.errors,
            reading,
            _played(pair, roots.points, reading, roots.errors),
            missing,
        )
    reading = asked.reading(pair, roots.points)
    played, errors, X = _polished(pair, roots, reading)
    answer = Answer(roots, X, errors, reading, played, missing)
    large = len(X) * len(pair.here) > MOST or pair.steps[0].grad_W.numel() > _LARGE
    if answer.left < tolerance() or not answer.left < _NEAR or large:
        return answer
    together = _together(asked, pair, answer)
    moved = (together.X - answer.X).norm(dim=1) / answer.X.norm(dim=1).clamp_min(1e-300)
    sound = together.left < tolerance() or bool((moved < _FAR_MOVED * roots.errors + 1e-6).all())
    # what explains little may fit noise
    return together if sound and together.left < answer.left else answer


def _together(asked: _Asked, pair: Pair, answer: Answer) -> Answer:
    """The answer after a last solve of all samples against all gradients."""
    reading, copies = answer.reading, answer.reading.copies
    times = torch.ones_like(reading.weights) if copies is None else copies.to(reading.weights)
    sample = Sample(pair.condition, pair.steps, reading.loss)
    alpha = float((reading.weights / times).median())
    X, errors, _ = solve_together(
        AllSamples.of(sample, pair.steps, reading.Y, times), answer.X, alpha
    )
    reading = asked.reading(pair, X)
    return replace(
        answer, X=X, errors=errors, reading=reading, played=_played(pair, X, reading, errors)
    )


def _leak(asked: _Asked, pair: Pair, answer: Answer) -> Leak:
    answer = replace(answer, errors=blurred(answer.errors, answer.X, pair.here))
    claim, head = judge(answer, asked.knowledge, asked.seed), asked.head
    reading, X, copies = answer.reading, answer.X, answer.reading.copies
    times = torch.ones(len(X), dtype=torch.long, device=X.device) if copies is None else copies
    X, Y = X.repeat_interleave(times, 0), reading.Y.repeat_interleave(times, 0)
    read, written = forward(pair.steps, X)
    alpha = float(reading.weights.sum() / times.sum())
    plain = 1 / reading.loss.divisor(Y) if head.reduction == "mean" else 1.0
    dtype = head.W.dtype if head.W.dtype in (torch.float32, torch.float64) else torch.float32
    leak = Leak(
        method="spans",
        targets=Y,
        logits=written[-1],
        features=read[-1].to(dtype),
        residual=min(answer.played.replay.unexplained, 1.0),
        predicted_error=claim.predicted_error,
        exact=claim.exact,
        predicts=claim.predicts,
        counted=claim.counted,
        scale=1.0 if answer.missing else alpha / plain,
        inner={pair.steps[0].name: X.to(dtype)},
        loss=reading.loss.name,
        notes=[*claim.notes, *_remarks(pair, answer.roots, times)],
    )
    return _with_inputs(
        asked.chain, FoundSamples(leak, pair, answer.errors.repeat_interleave(times, 0))
    )


def _polished(
    pair: Pair, roots: FoundPoints, reading: LossReading
) -> tuple[Replayed, Tensor, Tensor]:
    """The replay, predicted errors and inputs, after rounds of least squares: X explains ∇W given
    what the layers above send."""
    X, errors = roots.points, roots.errors
    played = _played(pair, X, reading, errors)
    step = pair.steps[0]
    for _ in range(_POLISHES):
        delta = played.at.delta[0]
        Q, R = torch.linalg.qr(delta.T)
        # (R, m); an SVD takes seconds on a GPU
        inverse = torch.linalg.solve_triangular(R, Q.T, upper=True)
        moved = left_product(inverse, step.grad_W)[0]
        own = (
            inverse.norm(dim=1)
            * pair.here.noise
            * step.W.shape[1] ** 0.5
            / moved.norm(dim=1).clamp_min(1e-300)
        )
        again = _played(pair, moved, reading, own)
        if not again.replay.unexplained < played.replay.unexplained:
            break
        played, X, errors = again, moved, own
    return played, errors, X


def _played(pair: Pair, X: Tensor, reading: LossReading, errors: Tensor) -> Replayed:
    shapes: list[Shape] = [(step.W.shape[1],) for step in pair.steps]
    batch = PlayedBatch(pair.steps, X, reading.Y, reading.weights[:, None], shapes, reading.loss)
    return replay(batch, errors)


def _with_inputs(chain: Chain, found: FoundSamples) -> Leak:
    """The answer with the model's own inputs, where the pair's first layer reads them."""
    leak, step = found.leak, found.pair.steps[0]
    if found.pair.at > 0 or not chain.complete:
        return leak
    X = leak.inner[step.name].double()
    shape, notes = picture_shape(step, chain.flattens, None)
    inputs, notes = X.view(len(X), *shape), [*leak.notes, *notes]
    return replace(
        leak,
        inputs=inputs,
        inputs_exact=grant_each(MARGIN * found.errors, above=leak.exact),
        notes=notes,
    )


def _remarks(pair: Pair, roots: FoundPoints, times: Tensor) -> list[str]:
    names = f"{pair.steps[0].name!r} and {pair.steps[1].name!r}"
    notes = [
        f"{len(roots)} of {pair.expected} samples were read out of the spans of the layers {names}."
    ]
    if int(times.max()) > 1:
        notes.append(f"{int((times > 1).sum())} of them occur more than once.")
    return notes
