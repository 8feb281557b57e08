"""Maps: every sample of a network that ends in convolutions, whatever the number of classes and the labels.

1. The row space of a convolution's gradient gives the batch's maps up to their mixing (`corner`, `batch`).
2. A mixture is a sample where what the next convolution reads lies among its own maps (`condition`, `solve`).
3. In train mode BatchNorm's statistics are sent, or found in rounds; the factor they hide is told by the shortcut (`samples`).
4. Everything above is played again: labels, loss, a last solve of the maps (`polish`), and what may be claimed (`judge`).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.certify.claim import Claim, nothing
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.losses import Loss
from unsum.progress import SILENT, Progress
from unsum.spans.maps.batch import MapBatch, read_batch
from unsum.spans.maps.bottleneck import BottleneckAnswer, answer_bottleneck, judge_bottleneck
from unsum.spans.maps.judge import MapAnswer, judge
from unsum.spans.maps.lengths import settle_lengths
from unsum.spans.maps.pair import ConvLayer, find_pairs, tail_above
from unsum.spans.maps.places import grouped, is_placewise, read_places
from unsum.spans.maps.polish import maps_given
from unsum.spans.maps.samples import Factor, maps_of, solve_batch
from unsum.spans.maps.solve import FoundMaps
from unsum.spans.maps.tail import PlayedTail, Tail
from unsum.spans.targets import LossReading, read_loss
from unsum.update import Update

_UNLIKE = 0.1  # of a gradient left unexplained, from where lengths that were tried are not the maps'
_POLISHES = 3  # last solves: each takes the error of δ down further


def separate_maps(
    head: Head,
    knowledge: Knowledge,
    model: nn.Module,
    update: Update,
    *,
    loss: Loss | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Leak:
    """The samples of the last convolutions whose gradients have room for the batch."""
    placed = None if find_pairs(model, update) else _by_places(head, model, update, loss, knowledge, seed)
    if placed is not None:
        return placed
    batch = read_batch(model, update, head.W.device)
    found, factor = solve_batch(batch, model, head, update, seed, progress)
    if len(found) < batch.space.samples:
        return _part(head, batch, model, update, found, factor, loss, knowledge)
    if tail_above(model, batch.pair.source) is None:
        return _bottleneck(head, batch, update, found, factor, loss, knowledge, seed)
    answer = _answered(head, batch, model, update, found, factor.value, loss, knowledge)
    claim, played = judge(answer, knowledge, seed), answer.played
    if answer.lengths_open or (found.condition.homogeneous and not played.unexplained < _UNLIKE):
        return _none(
            head,
            f"What adds no bias to {batch.pair.first.name!r} leaves the lengths of its maps open, and those that were found do "
            "not send this gradient; this is no sign that nothing leaks, and 'exact' reads the head alone.",
        )
    return _leak(head, batch, answer.reading, played, played.unexplained, answer.maps, claim, factor)


def _bottleneck(
    head: Head,
    batch: MapBatch,
    update: Update,
    found: FoundMaps,
    factor: Factor,
    loss: Loss | None,
    knowledge: Knowledge,
    seed: int,
) -> Leak:
    read, maps = found.condition.read(found.s), maps_of(batch, found, factor.value)
    answer = answer_bottleneck(
        head,
        batch.pair,
        update,
        maps,
        read,
        found.hits,
        train=batch.train,
        missing=batch.missing,
        loss=loss,
        knowledge=knowledge,
    )
    if not math.isfinite(answer.unexplained):
        return _none(
            head,
            f"What the convolution {batch.pair.second.name!r} sends is not what pooling sends back, so neither labels nor "
            "features were read; this is no sign that nothing leaks, and 'exact' reads the head alone.",
        )
    claim = judge_bottleneck(answer, knowledge, head.grad_W.dtype, seed)
    return _leak(head, batch, answer.reading, answer, answer.unexplained, maps, claim, factor)


def answer_of(head: Head, knowledge: Knowledge, model: nn.Module, update: Update) -> MapAnswer:
    """What is judged: all samples, of an update in which all are found."""
    batch = read_batch(model, update, head.W.device)
    found, factor = solve_batch(batch, model, head, update, 0, SILENT)
    return _answered(head, batch, model, update, found, factor.value, None, knowledge)


def _answered(
    head: Head,
    batch: MapBatch,
    model: nn.Module,
    update: Update,
    found: FoundMaps,
    factor: float,
    loss: Loss | None,
    knowledge: Knowledge,
) -> MapAnswer:
    """The samples with what the head says about them, after last solves given what the layers above send."""
    module = tail_above(model, batch.pair.source)
    assert module is not None
    tail = Tail.of(module, head, (batch.pair.first, batch.pair.second), update, train=batch.train)
    maps, told = maps_of(batch, found, factor), True
    errors: Tensor | None = found.errors * factor / maps.flatten(1).norm(dim=1).clamp_min(1e-300)
    if found.condition.homogeneous:
        lengths, told = settle_lengths(tail, head, maps)
        maps, errors = maps * lengths[:, None, None, None], None
    polished = _polished(head, batch.pair.first, tail, maps, errors, loss, knowledge)
    return MapAnswer(*polished[:2], found.hits, *polished[2:], tail, batch.missing, lengths_open=not told)


def _polished(
    head: Head,
    first: ConvLayer,
    tail: Tail,
    maps: Tensor,
    errors: Tensor | None,
    loss: Loss | None,
    knowledge: Knowledge,
) -> tuple[Tensor, Tensor, LossReading, PlayedTail]:
    """(maps, errors, what the head says, what they send); where no errors are given, they are what the convolution's own gradient
    says otherwise."""
    features, logits = tail.forward(maps)
    reading = read_loss(head, features, logits, loss, knowledge)
    played = tail.play(maps, reading.Y, reading.weights, reading.loss)
    grad = first.grad.to(maps.device)
    for _ in range(_POLISHES):
        moved, deviations = maps_given(played.sent[first.name], grad)
        features, logits = tail.forward(moved)
        again = read_loss(head, features, logits, loss, knowledge)
        replayed = tail.play(moved, again.Y, again.weights, again.loss)
        sizes = moved.flatten(1).norm(dim=1).clamp_min(1e-300)
        moves = (deviations + (moved - maps).flatten(1).norm(dim=1)) / sizes
        if not replayed.unexplained < played.unexplained:
            errors = moves if errors is None else errors
            break
        maps, reading, played, errors = moved, again, replayed, moves
    assert errors is not None
    return maps, errors, reading, played


def _by_places(
    head: Head, model: nn.Module, update: Update, loss: Loss | None, knowledge: Knowledge, seed: int
) -> Leak | None:
    """Samples of a network whose last convolutions have no overlap to use; None where these do not tell them."""
    read = read_places(model, update, head.W.device, seed)
    module = None if read is None else tail_above(model, read.source)
    if read is None or module is None:
        return None
    tail = Tail.of(module, head, (read.layer,), update, train=False)
    if read.layer.grad_shift is None or not is_placewise(tail, read.layer.conv.in_channels):
        return None
    known = knowledge.known_batch_size
    sizes = [known] if known is not None else [n for n in range(1, len(read.vectors) + 1) if len(read.vectors) % n == 0]
    best: MapAnswer | None = None
    for samples in sizes:
        maps = grouped(tail, read, samples)
        if maps is None:
            continue
        polished = _polished(head, read.layer, tail, maps, None, loss, knowledge)
        hits = read.hits.min().expand(samples)
        answer = MapAnswer(*polished[:2], hits, *polished[2:], tail, 0, lengths_open=False)
        if best is None or answer.played.unexplained < best.played.unexplained:
            best = answer
    if best is None or not best.played.unexplained < _UNLIKE:
        return None
    claim = judge(best, knowledge, seed)
    note = (
        f"{len(best.maps)} samples were read out of the {best.maps.shape[3]} places each of the 1×1 convolution "
        f"{read.layer.name!r}; the order of the places is open."
    )
    return _said(head, best.reading, best.played, best.played.unexplained, best.maps, claim, {}, [note])


def _leak(
    head: Head,
    batch: MapBatch,
    reading: LossReading,
    read: PlayedTail | BottleneckAnswer,
    unexplained: float,
    maps: Tensor,
    claim: Claim,
    factor: Factor,
) -> Leak:
    inner = {batch.pair.first.name: maps}
    return _said(head, reading, read, unexplained, maps, claim, inner, _remarks(batch, factor, len(maps)))


def _said(
    head: Head,
    reading: LossReading,
    read: PlayedTail | BottleneckAnswer,
    unexplained: float,
    maps: Tensor,
    claim: Claim,
    inner: dict[str, Tensor],
    remarks: list[str],
) -> Leak:
    """Every sample as often as it counts."""
    copies = reading.copies
    times = torch.ones(len(maps), dtype=torch.long, device=maps.device) if copies is None else copies
    Y = reading.Y.repeat_interleave(times, 0)
    alpha = float(reading.weights.sum() / times.sum())
    plain = 1 / reading.loss.divisor(Y) if head.reduction == "mean" else 1.0
    dtype = head.W.dtype if head.W.dtype in (torch.float32, torch.float64) else torch.float32
    return Leak(
        method="spans",
        targets=Y,
        logits=read.logits.repeat_interleave(times, 0),
        features=read.features.repeat_interleave(times, 0).to(dtype),
        residual=min(unexplained, 1.0),
        predicted_error=claim.predicted_error,
        exact=claim.exact,
        scale=alpha / plain,
        inner={name: one.repeat_interleave(times, 0).to(dtype) for name, one in inner.items()},
        loss=reading.loss.name,
        notes=[*claim.notes, *remarks],
    )


def _remarks(batch: MapBatch, factor: Factor, samples: int) -> list[str]:
    names = f"{batch.pair.first.name!r} and {batch.pair.second.name!r}"
    sides = "×".join(map(str, batch.space.sides))
    notes = [f"{samples} samples were read out of the maps ({sides}) of the convolutions {names}."]
    norm = batch.pair.first.batch_norm
    if norm is not None and batch.train != norm.training:
        client, model = ("train", "eval") if batch.train else ("eval", "train")
        notes.append(f"The client's BatchNorm was in {client} mode, though the model is in {model} mode.")
    if not factor.told:
        notes.append(
            "BatchNorm hides one factor that all maps have in common; features and logits do not depend on it."
        )
    return notes


def _part(
    head: Head,
    batch: MapBatch,
    model: nn.Module,
    update: Update,
    found: FoundMaps,
    factor: Factor,
    loss: Loss | None,
    knowledge: Knowledge,
) -> Leak:
    """Those samples of a batch that were told apart. Their labels and features stand on no check: the others are in all sums."""
    name, samples = batch.pair.first.name, batch.space.samples
    found, module = found.fitting(), tail_above(model, batch.pair.source)
    many = f"{len(found)} of {samples} samples were told apart among the maps of {name!r}"
    if len(found) == 0 or module is None:
        return _none(head, f"{many}. This is no sign that nothing leaks.")
    tail = Tail.of(module, head, (batch.pair.first, batch.pair.second), update, train=batch.train)
    maps = maps_of(batch, found, factor.value)
    features, logits = tail.forward(maps)
    reading = read_loss(head, features, logits, loss, knowledge)
    reading = replace(reading, weights=torch.full_like(reading.weights, 1 / samples))
    played = tail.play(maps, reading.Y, reading.weights, reading.loss)
    claim = nothing(
        f"{many}; {samples - len(found)} are missing, which is no sign that they do not leak. Labels and features of a part "
        "are the likeliest ones and were not checked."
    )
    return _leak(head, batch, reading, played, played.unexplained, maps, claim, factor)


def _none(head: Head, why: str) -> Leak:
    claim = nothing(why)
    C, H = head.W.shape
    empty = head.W.new_zeros(0, C, dtype=torch.float64)
    return Leak(
        "spans", empty, empty, head.W.new_zeros(0, H), 1.0, claim.predicted_error, claim.exact, notes=claim.notes
    )
