"""Maps: every sample of a network that ends in convolutions, whatever the number of classes and the labels.

1. The row space of a convolution's gradient gives the batch's maps up to their mixing (`corner`).
2. A mixture is a sample where what the next convolution reads lies among its own maps (`condition`, `solve`).
3. In train mode BatchNorm's statistics are sent, or found in rounds; the factor they hide is told by the shortcut (`scale`).
4. Everything above is played again: labels, loss, a last solve of the maps (`polish`), and what may be claimed (`judge`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unsum.batch_statistics import BatchStatistics
from unsum.certify.claim import FALSE_ERROR, Claim, nothing
from unsum.errors import UnsumError
from unsum.head import Head, find_head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.losses import Loss
from unsum.progress import SILENT, Progress
from unsum.spans.basis import LayerSpan
from unsum.spans.maps.bottleneck import BottleneckAnswer, answer_bottleneck, judge_bottleneck
from unsum.spans.maps.condition import Among, MapCondition, Places, convolved
from unsum.spans.maps.corner import MapSpace, map_space, with_lengths
from unsum.spans.maps.judge import MapAnswer, judge
from unsum.spans.maps.pair import ConvLayer, ConvPair, find_pairs, tail_above
from unsum.spans.maps.polish import maps_given
from unsum.spans.maps.pooled import is_pooled_sum
from unsum.spans.maps.scale import common_factor, least
from unsum.spans.maps.search import Ends
from unsum.spans.maps.solve import FoundMaps, last_rounds, narrowed, settled, solve_known, solve_rounds
from unsum.spans.maps.statistics import in_train_mode, running, sent
from unsum.spans.maps.tail import PlayedTail, Tail, in_client_mode
from unsum.spans.targets import LossReading, read_loss
from unsum.update import Update

_GAP = 1e-2  # of the singular value before it: those below may be no samples'
_FEW = 6  # rounds of statistics, to compare factors
_POLISHES = 3  # last solves: each takes the error of δ down further


class _Sent(NamedTuple):
    grad_W: Tensor
    grad_b: Tensor | None


class Factor(NamedTuple):
    """What all maps are multiplied by, and whether something told it; else it is a guess."""

    value: float
    told: bool = True


@dataclass(frozen=True)
class MapBatch:
    """A pair of convolutions with the batch's maps up to their mixing: what `first` read, and where what `second` read lies."""

    pair: ConvPair
    space: MapSpace
    next: Among | Places
    directions: int  # of the first gradient

    @property
    def train(self) -> bool:
        return self.space.centered

    @property
    def missing(self) -> int:
        """Samples that directions are left for beside those of the space."""
        places = self.space.sides[0] * self.space.sides[1]
        return max(0, -(-self.directions // places) - self.space.samples)


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
    batch = read_batch(model, update, head.W.device)
    found, factor = _solved(batch, model, head, update, seed, progress)
    if len(found) < batch.space.samples:
        return _too_few(head, batch, found)
    if tail_above(model, batch.pair.source) is None:
        return _bottleneck(head, batch, update, found, factor, loss, knowledge, seed)
    answer = _answered(head, batch, model, update, found, factor.value, loss, knowledge)
    claim, played = judge(answer, knowledge, seed), answer.played
    if answer.homogeneous and not played.unexplained < FALSE_ERROR:
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
    read, maps = found.condition.read(found.s), _maps(batch, found, factor.value)
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
    claim = judge_bottleneck(answer, knowledge, head.grad_W.dtype, seed)
    return _leak(head, batch, answer.reading, answer, answer.unexplained, maps, claim, factor)


def answer_of(head: Head, knowledge: Knowledge, model: nn.Module, update: Update) -> MapAnswer:
    """What is judged: all samples, of an update in which all are found."""
    batch = read_batch(model, update, head.W.device)
    found, factor = _solved(batch, model, head, update, 0, SILENT)
    return _answered(head, batch, model, update, found, factor.value, None, knowledge)


def read_batch(model: nn.Module, update: Update, device: torch.device) -> MapBatch:
    """The pair nearest to the logits whose gradients hold the batch's maps."""
    pairs = find_pairs(model, update)
    if not pairs:
        raise UnsumError(
            "'spans' needs two consecutive dense layers, or two convolutions of stride 1 with an activation between them whose "
            "gradients were sent; this model has neither; use 'exact' for the head alone."
        )
    full, counted = [], ""
    for pair in pairs:
        if tail_above(model, pair.source) is None and not is_pooled_sum(model, pair, find_head(model)[0]):
            continue
        here, above = (_spans(layer, device) for layer in (pair.first, pair.second))
        if here[0].full or above[0].full:
            full.append(pair.first)
            break  # layers below have more places
        counted = counted or " and ".join(
            f"{layer.name!r} ({len(span[-1])} directions, {layer.conv.out_channels} channels)"
            for layer, span in ((pair.first, here), (pair.second, above))
        )
        batch = next((batch for one in here for batch in [_batch(pair, one, above)] if batch is not None), None)
        if batch is not None:
            return batch
    if not counted and not full:
        raise UnsumError(
            "More than one path leads from the convolutions whose gradients were sent to the logits, so no sample can be "
            "checked; use 'exact' for the head alone."
        )
    if full:
        widest = max(layer.conv.out_channels for layer in full)
        raise UnsumError(
            f"'spans' cannot tell the maps apart: the batch's places take all {widest} channels of the last convolutions; "
            "smaller batches, or smaller pictures, are read. Gradient matching ('ig') remains."
        )
    raise UnsumError(
        f"No maps were found in the gradients of {counted}: samples need a direction for each of their places, and noise, or "
        "relus that are alike at several places, take some away; this is no sign that nothing leaks."
    )


def _spans(layer: ConvLayer, device: torch.device) -> list[LayerSpan]:
    """The row spaces that may be meant: with the directions above noise, and, first, with those above the widest gap, where one
    stands out. Rounding is more than it should be on some devices, and BatchNorm's sums of ∂loss/∂z, which should be
    zero, leave theirs along the mean patch."""
    span = LayerSpan.of(_Sent(layer.grad.detach().to(device).flatten(1), None))
    ratios = span.values[1:] / span.values[:-1].clamp_min(1e-300)
    at = int(ratios.argmin()) + 1 if len(ratios) else 0
    if at < 2 or float(ratios[at - 1]) > _GAP:
        return [span]
    m, n = layer.grad.shape[0], layer.grad[0].numel()
    noise = max(span.noise, float(span.values[at]) / (m**0.5 + n**0.5)) if len(span) - at > 1 else span.noise
    return [replace(span.first(at), noise=noise), span]


def _batch(pair: ConvPair, here: LayerSpan, above: list[LayerSpan]) -> MapBatch | None:
    space = _space(pair.first, here)
    if space is None:
        return None
    lying = next((one for span in above for one in [_next(pair.second, span, space)] if one is not None), None)
    return None if lying is None else MapBatch(pair, space, lying, len(here))


def _space(layer: ConvLayer, span: LayerSpan) -> MapSpace | None:
    """Where BatchNorm follows, its mode is first taken for the client's."""
    conv, norm = layer.conv, layer.batch_norm
    centered = None if norm is None else norm.training or norm.running_mean is None
    kernel = (conv.kernel_size[0], conv.kernel_size[1])
    space = map_space(span, conv.in_channels, kernel, centered=centered)
    if space is None or space.centered or layer.grad_shift is None:
        return space
    return with_lengths(space, span, kernel, layer.grad_shift.to(span.rows.device))


def _next(layer: ConvLayer, span: LayerSpan, below: MapSpace) -> Among | Places | None:
    if layer.placewise:
        return Places.of(span.rows, centered=below.centered and layer.batch_norm is not None)
    space = _space(layer, span)
    if space is None or space.sides != below.sides or space.samples != below.samples:
        return None
    if layer.batch_norm is not None and space.centered != below.centered:
        return None
    return Among.of(space.every)


def _solved(
    batch: MapBatch, model: nn.Module, head: Head, update: Update, seed: int, progress: Progress
) -> tuple[FoundMaps, Factor]:
    """(samples, the factor of all of them)."""
    pair, space = batch.pair, batch.space
    first, like = pair.first, space.maps
    values = space.samples * space.sides[0] * space.sides[1]
    affine = sent(first, update, values, like) if batch.train else running(first, like)
    rounds = batch.train and affine is None
    placed = space.origin is not None and (rounds or not batch.train)  # lengths are known, or the same for all
    maps = space.maps if placed else space.every
    padding = first.conv.padding
    assert isinstance(padding, tuple)
    K = convolved(maps, first.conv.weight, padding)
    c = torch.zeros_like(convolved(space.every[:1], first.conv.weight, padding)[0])
    if placed and space.origin is not None:
        c = convolved(space.origin[None], first.conv.weight, padding)[0]
    if first.conv.bias is not None and not rounds:
        c = c + first.conv.bias.detach().to(c)[:, None]
    norm = None if first.batch_norm is not None or first.norm is None else _double(first.norm, space.sides, like)
    condition = MapCondition(K, c, pair.activation, batch.next, affine, in_train_mode(first, like), norm)
    if not rounds:
        found = solve_known(condition, space.samples, seed, progress)
        if len(found) == space.samples or not update.statistics.means:
            return found, Factor(1.0)
        return _solved(batch, model, head, replace(update, statistics=BatchStatistics()), seed, progress)
    assert condition.batch is not None
    hidden = replace(condition, batch=replace(condition.batch, eps=0.0))
    found = solve_rounds(hidden, space.samples, seed, progress)
    if len(found) < space.samples:
        return found, Factor(1.0)
    return _scaled(batch, model, head, replace(condition, c=found.sign * c), found)


def _scaled(
    batch: MapBatch, model: nn.Module, head: Head, condition: MapCondition, found: FoundMaps
) -> tuple[FoundMaps, Factor]:
    """The batch's common factor, and the samples once more with the eps that it makes of BatchNorm's."""
    pair = batch.pair
    factor = Factor(_running_factor(batch, condition, found), told=False)
    module = tail_above(model, pair.source, pair.above)
    if module is None:
        return _by_eps(condition, found, factor.value)
    shortcut = in_client_mode(module.to(head.W.device), train=True)
    for _ in range(2):
        maps = _maps(batch, found)
        read = found.condition.read(found.s).unflatten(2, batch.space.sides)
        written = nn.functional.conv2d(
            read, pair.second.conv.weight.detach().to(read), padding=pair.second.conv.padding
        )
        seen = common_factor(shortcut, head, maps, written, factor.value)
        if seen is None:
            return _by_eps(condition, found, factor.value)
        factor, found = Factor(seen), _with_factor(condition, found, seen)
    return found, factor


def _by_eps(condition: MapCondition, found: FoundMaps, guess: float) -> tuple[FoundMaps, Factor]:
    """The factor that BatchNorm's eps alone shows: hardly at all where variances are large, and then nothing depends on it."""
    few = narrowed(condition, len(found), torch.Generator().manual_seed(0))

    near = _with_factor(condition, found, guess).s  # eps moves samples more than a few rounds can follow

    def left(factor: float) -> float:
        return float(last_rounds(_at_factor(few, factor), near, _FEW)[0].misfits.norm())

    near = _with_factor(condition, found, least(left, guess)).s
    value = least(left, guess)
    value = value if left(value) < left(guess) else guess
    return _with_factor(condition, found, value), Factor(value, told=False)


def _at_factor(condition: MapCondition, factor: float) -> MapCondition:
    """Maps that are so many times larger have that much less of BatchNorm's eps."""
    assert condition.batch is not None
    return replace(condition, batch=replace(condition.batch, eps=condition.batch.eps / factor**2))


def _with_factor(condition: MapCondition, found: FoundMaps, factor: float) -> FoundMaps:
    """The samples once more."""
    again = settled(_at_factor(condition, factor), Ends.of(found.s), found.s)
    return replace(again, hits=found.hits, sign=found.sign)


def _running_factor(batch: MapBatch, condition: MapCondition, found: FoundMaps) -> float:
    """The factor with which maps have the variances of the running statistics: a guess."""
    norm = batch.pair.first.batch_norm
    variance = condition.written(found.s).var((0, 2))
    if norm is None or norm.running_var is None:
        return float(variance.median().rsqrt())
    return float((norm.running_var.to(variance) / variance.clamp_min(1e-300)).median().sqrt())


def _double(norm: nn.Module, sides: tuple[int, int], like: Tensor) -> nn.Module:
    """A norm of maps in float64 that takes (S, C, P)."""
    import copy

    inner = copy.deepcopy(norm).to(like).requires_grad_(False)
    return nn.Sequential(nn.Unflatten(2, sides), inner, nn.Flatten(2))


def _maps(batch: MapBatch, found: FoundMaps, factor: float = 1.0) -> Tensor:
    """(B, C, h, w) what the first convolution read."""
    space = batch.space
    if found.condition.unknowns == space.samples:
        return torch.tensordot(found.s, space.every, 1)
    assert space.origin is not None
    return factor * (found.sign * space.origin + torch.tensordot(found.s, space.maps, 1))


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
    maps = _maps(batch, found, factor)
    features, logits = tail.forward(maps)
    reading = read_loss(head, features, logits, loss, knowledge)
    played = tail.play(maps, reading.Y, reading.weights, reading.loss)
    errors = found.errors * factor / maps.flatten(1).norm(dim=1).clamp_min(1e-300)
    first = batch.pair.first
    grad = first.grad.to(maps.device)
    for _ in range(_POLISHES):
        moved, deviations = maps_given(played.sent[first.name], grad)
        features, logits = tail.forward(moved)
        again = read_loss(head, features, logits, loss, knowledge)
        replayed = tail.play(moved, again.Y, again.weights, again.loss)
        if not replayed.unexplained < played.unexplained:
            break
        sizes = moved.flatten(1).norm(dim=1).clamp_min(1e-300)
        errors = (deviations + (moved - maps).flatten(1).norm(dim=1)) / sizes
        maps, reading, played = moved, again, replayed
    plain = first.batch_norm is None and first.grad_shift is None
    return MapAnswer(maps, errors, found.hits, reading, played, tail, batch.missing, plain)


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
        inner={batch.pair.first.name: maps.repeat_interleave(times, 0).to(dtype)},
        loss=reading.loss.name,
        notes=[*claim.notes, *_remarks(batch, factor)],
    )


def _remarks(batch: MapBatch, factor: Factor) -> list[str]:
    names = f"{batch.pair.first.name!r} and {batch.pair.second.name!r}"
    sides = "×".join(map(str, batch.space.sides))
    notes = [f"{batch.space.samples} samples were read out of the maps ({sides}) of the convolutions {names}."]
    norm = batch.pair.first.batch_norm
    if norm is not None and batch.train != norm.training:
        client, model = ("train", "eval") if batch.train else ("eval", "train")
        notes.append(f"The client's BatchNorm was in {client} mode, though the model is in {model} mode.")
    if not factor.told:
        notes.append(
            "BatchNorm hides one factor that all maps have in common; features and logits do not depend on it."
        )
    return notes


def _too_few(head: Head, batch: MapBatch, found: FoundMaps) -> Leak:
    name, samples = batch.pair.first.name, batch.space.samples
    why = f"{len(found)} of {samples} samples were told apart among the maps of {name!r}. This is no sign that nothing leaks."
    return _none(head, why)


def _none(head: Head, why: str) -> Leak:
    claim = nothing(why)
    C, H = head.W.shape
    empty = head.W.new_zeros(0, C, dtype=torch.float64)
    return Leak(
        "spans", empty, empty, head.W.new_zeros(0, H), 1.0, claim.predicted_error, claim.exact, notes=claim.notes
    )
