"""Maps: every sample of a network that ends in convolutions, whatever the number of classes and the
labels.

1. The row space of a convolution's gradient gives the batch's maps up to their mixing (`corner`,
    `batch`).
2. A mixture is a sample where what the next convolution reads lies among its own maps (`condition`,
    `solve`).
3. In train mode BatchNorm's statistics are sent, or found in rounds; the factor they hide is told
    by the shortcut (`samples`).
4. Everything above is played again: labels, loss, a last solve of the maps (`polish`), and what may
    be claimed (`judge`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unsum.certify.claim import Claim, nothing
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.losses import Loss
from unsum.network.conv_pair import ConvLayer, find_pairs, tail_above
from unsum.running.deadline import out_of_time
from unsum.running.progress import SILENT, Progress
from unsum.spans.maps.asked import Asked
from unsum.spans.maps.batch import MapBatch, read_batch
from unsum.spans.maps.bottleneck import answer_bottleneck, judge_bottleneck
from unsum.spans.maps.entering import enter
from unsum.spans.maps.judge import MapAnswer, judge
from unsum.spans.maps.lengths import settle_lengths
from unsum.spans.maps.places import grouped, is_placewise, read_places
from unsum.spans.maps.polish import maps_given
from unsum.spans.maps.samples import Factor, maps_of, solve_batch
from unsum.spans.maps.solve import FoundMaps
from unsum.spans.maps.tail import Tail
from unsum.spans.maps.twins import UNJUDGED
from unsum.spans.targets import LossReading
from unsum.update import Update

# of a gradient left unexplained, from where lengths that were tried are not the maps'
_UNLIKE = 0.1
# predicted error from which what a block is said to have read tells nothing: maps above it may be
# right
_USELESS = 1.0
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
    asked = Asked(head, knowledge, model, update, loss, seed)
    placed = None if find_pairs(model, update) else _by_places(asked)
    if placed is not None:
        return placed
    batch = read_batch(model, update, head.W.device)
    found, factor = solve_batch(batch, model, head, update, seed, progress)
    if out_of_time("what the layers above the maps make of them"):
        return _none(
            head,
            "Time was over before the layers above the maps were asked what these make of them.",
        )
    if len(found) < batch.space.samples:
        return _part(asked, batch, found, factor)
    if tail_above(model, batch.pair.source) is None:
        return _bottleneck(asked, batch, found, factor)
    answer = _answered(asked, batch, found, factor.value)
    claim, played = judge(answer, knowledge, seed), answer.played
    unlike = not played.replay.unexplained < _UNLIKE
    if answer.lengths_open or (found.condition.homogeneous and unlike):
        return _none(
            head,
            f"What adds no bias to {batch.pair.first.name!r} leaves the lengths of its maps open, "
            "and those that were found do not send this gradient; this is no sign that nothing "
            "leaks, and 'exact' reads the head alone.",
        )
    inner = {batch.pair.first.name: answer.maps}
    return _said(head, Said.of(answer), claim, inner, _remarks(batch, factor, len(found)))


def _bottleneck(asked: Asked, batch: MapBatch, found: FoundMaps, factor: Factor) -> Leak:
    """With what the block itself read, where its gradients tell that; else features are the head's
    to tell."""
    head, pair = asked.head, batch.pair
    entered = enter(asked, batch, found, factor.value)
    claim = None if entered is None else judge(entered, asked.knowledge, asked.seed)
    answer = None
    if claim is None or not (claim.exact or out_of_time(UNJUDGED)):
        answer = answer_bottleneck(asked, batch, found, maps_of(batch, found, factor.value))
        beside = judge_bottleneck(answer, asked.knowledge, asked.seed)
        if claim is None or (
            answer.readable and not claim.predicted_error < min(beside.predicted_error, _USELESS)
        ):
            claim, entered = beside, None
    if entered is not None:
        read = entered.played.read
        inner = {name: read[name] for name in (entered.tail.convs[0], pair.first.name)}
        return _said(head, Said.of(entered), claim, inner, _remarks(batch, Factor(1.0), len(found)))
    assert answer is not None
    if not answer.readable:
        return _none(
            head,
            f"What the convolution {pair.second.name!r} sends is not what pooling sends back, so "
            "neither labels nor features were read; this is no sign that nothing leaks, and "
            "'exact' reads the head alone.",
        )
    said = Said(answer.reading, answer.features, answer.logits, answer.replay.unexplained)
    return _said(
        head, said, claim, {pair.first.name: answer.maps}, _remarks(batch, factor, len(found))
    )


def answer_of(head: Head, knowledge: Knowledge, model: nn.Module, update: Update) -> MapAnswer:
    """What is judged: all samples, of an update in which all are found."""
    asked = Asked(head, knowledge, model, update, None, 0)
    batch = read_batch(model, update, head.W.device)
    found, factor = solve_batch(batch, model, head, update, 0, SILENT)
    if tail_above(model, batch.pair.source) is not None:
        return _answered(asked, batch, found, factor.value)
    entered = enter(asked, batch, found, factor.value)
    assert entered is not None
    return entered


def _answered(asked: Asked, batch: MapBatch, found: FoundMaps, factor: float) -> MapAnswer:
    """The samples with what the head says about them, after last solves given what the layers above
    send."""
    head, pair = asked.head, batch.pair
    module = tail_above(asked.model, pair.source)
    assert module is not None
    tail = Tail.of(module, head, (pair.first, pair.second), asked.update, train=batch.train)
    maps, told = maps_of(batch, found, factor), True
    errors: Tensor | None = found.errors * factor / maps.flatten(1).norm(dim=1).clamp_min(1e-300)
    if found.condition.homogeneous:
        lengths, told = settle_lengths(tail, head, maps)
        maps, errors = maps * lengths[:, None, None, None], None
    answer = _polished(asked, pair.first, tail, maps, errors, found.hits, batch.missing)
    return replace(answer, lengths_open=not told)


def _polished(
    asked: Asked,
    first: ConvLayer,
    tail: Tail,
    maps: Tensor,
    errors: Tensor | None,
    hits: Tensor,
    missing: int = 0,
) -> MapAnswer:
    """With what the head says; where no errors are given, they are what the convolution's own
    gradient says otherwise."""
    tail, reading, played = tail.settled(
        asked, maps, maps.new_zeros(len(maps)) if errors is None else errors
    )
    grad = first.grad.to(maps.device)
    for _ in range(_POLISHES):
        moved, deviations = maps_given(played.sent[first.name], grad)
        sizes = moved.flatten(1).norm(dim=1).clamp_min(1e-300)
        moves = (deviations + (moved - maps).flatten(1).norm(dim=1)) / sizes
        other, again, replayed = tail.settled(asked, moved, moves)
        if not replayed.replay.unexplained < played.replay.unexplained:
            errors = moves if errors is None else errors
            break
        maps, reading, played, tail, errors = moved, again, replayed, other, moves
    assert errors is not None
    return MapAnswer(maps, errors, hits, reading, played, tail, missing, lengths_open=False)


def _by_places(asked: Asked) -> Leak | None:
    """Samples of a network whose last convolutions have no overlap to use; None where these do not
    tell them."""
    head, model, update, seed = asked.head, asked.model, asked.update, asked.seed
    read = read_places(model, update, head.W.device, seed)
    module = None if read is None else tail_above(model, read.source)
    if read is None or module is None:
        return None
    tail = Tail.of(module, head, (read.layer,), update, train=False)
    if read.layer.grad_shift is None or not is_placewise(tail, read.layer.conv.in_channels):
        return None
    known = asked.knowledge.known_batch_size
    sizes = (
        [known]
        if known is not None
        else [n for n in range(1, len(read.vectors) + 1) if len(read.vectors) % n == 0]
    )
    best: MapAnswer | None = None
    for samples in sizes:
        maps = grouped(tail, read, samples)
        if maps is None:
            continue
        answer = _polished(asked, read.layer, tail, maps, None, read.hits.min().expand(samples))
        if best is None or answer.played.replay.unexplained < best.played.replay.unexplained:
            best = answer
    if best is None or not best.played.replay.unexplained < _UNLIKE:
        return None
    claim = judge(best, asked.knowledge, seed)
    note = (
        f"{len(best.maps)} samples were read out of the {best.maps.shape[3]} places each of the "
        f"1×1 convolution {read.layer.name!r}; the order of the places is open."
    )
    return _said(head, Said.of(best), claim, {}, [note])


class Said(NamedTuple):
    """Of every sample: what the head says, features and logits; and what all of them leave
    unexplained."""

    reading: LossReading
    features: Tensor
    logits: Tensor
    unexplained: float

    @classmethod
    def of(cls, answer: MapAnswer) -> Said:
        played = answer.played
        return cls(answer.reading, played.features, played.logits, played.replay.unexplained)


def _said(
    head: Head, said: Said, claim: Claim, inner: dict[str, Tensor], remarks: list[str]
) -> Leak:
    """Every sample as often as it counts."""
    reading = said.reading
    copies, Y = reading.copies, reading.Y
    times = torch.ones(len(Y), dtype=torch.long, device=Y.device) if copies is None else copies
    Y = Y.repeat_interleave(times, 0)
    alpha = float(reading.weights.sum() / times.sum())
    plain = 1 / reading.loss.divisor(Y) if head.reduction == "mean" else 1.0
    dtype = head.W.dtype if head.W.dtype in (torch.float32, torch.float64) else torch.float32
    return Leak(
        method="spans",
        targets=Y,
        logits=said.logits.repeat_interleave(times, 0),
        features=said.features.repeat_interleave(times, 0).to(dtype),
        residual=min(said.unexplained, 1.0),
        predicted_error=claim.predicted_error,
        exact=claim.exact,
        predicts=claim.predicts,
        counted=claim.counted,
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
        notes.append(
            f"The client's BatchNorm was in {client} mode, though the model is in {model} mode."
        )
    if not factor.told:
        notes.append(
            "BatchNorm hides one factor that all maps have in common; features and logits do not "
            "depend on it."
        )
    return notes


def _part(asked: Asked, batch: MapBatch, found: FoundMaps, factor: Factor) -> Leak:
    """Those samples of a batch that were told apart. Their labels and features stand on no check:
    the others are in all sums."""
    head, name, samples = asked.head, batch.pair.first.name, batch.space.samples
    found, module = found.fitting(), tail_above(asked.model, batch.pair.source)
    many = f"{len(found)} of {samples} samples were told apart among the maps of {name!r}"
    if len(found) == 0 or module is None:
        return _none(head, f"{many}. This is no sign that nothing leaks.")
    tail = Tail.of(
        module, head, (batch.pair.first, batch.pair.second), asked.update, train=batch.train
    )
    maps = maps_of(batch, found, factor.value)
    reading = asked.read_loss(*tail.forward(maps))
    reading = replace(reading, weights=torch.full_like(reading.weights, 1 / samples))
    played = tail.play(maps, reading.Y, reading.weights, reading.loss)
    claim = nothing(
        f"{many}; {samples - len(found)} are missing, which is no sign that they do not leak. "
        "Labels and features of a part are the likeliest ones and were not checked."
    )
    said = Said(reading, played.features, played.logits, played.replay.unexplained)
    return _said(head, said, claim, {name: maps}, _remarks(batch, factor, len(maps)))


def _none(head: Head, why: str) -> Leak:
    claim = nothing(why)
    C, H = head.W.shape
    empty = head.W.new_zeros(0, C, dtype=torch.float64)
    return Leak(
        "spans",
        empty,
        empty,
        head.W.new_zeros(0, H),
        1.0,
        claim.predicted_error,
        claim.exact,
        notes=claim.notes,
    )
