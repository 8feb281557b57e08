"""The batch's samples among their mixtures, and the factor that BatchNorm's own statistics hide
from all of them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unsum.batch_statistics import BatchStatistics
from unsum.head import Head
from unsum.network.conv_pair import tail_above
from unsum.running.progress import Progress
from unsum.spans.maps.batch import MapBatch
from unsum.spans.maps.condition import MapCondition, convolved
from unsum.spans.maps.scale import common_factor, least
from unsum.spans.maps.solve import (
    FoundMaps,
    last_rounds,
    narrowed,
    settled,
    solve_known,
    solve_rounds,
)
from unsum.spans.maps.statistics import in_train_mode, running, sent
from unsum.spans.maps.tail import in_client_mode
from unsum.update import Update

_FEW = 6  # rounds of statistics, to compare factors


class Factor(NamedTuple):
    """What all maps are multiplied by, and whether something told it; else it is a guess."""

    value: float
    told: bool = True


def solve_batch(
    batch: MapBatch, model: nn.Module, head: Head, update: Update, seed: int, progress: Progress
) -> tuple[FoundMaps, Factor]:
    """(samples, the factor of all of them)."""
    pair, space = batch.pair, batch.space
    first, like = pair.first, space.maps
    values = space.samples * space.sides[0] * space.sides[1]
    affine = sent(first, update, values, like) if batch.train else running(first, like)
    rounds = batch.train and affine is None
    # lengths are known, or the same for all
    placed = space.origin is not None and (rounds or not batch.train)
    maps = space.maps if placed else space.every
    padding = first.conv.padding
    assert isinstance(padding, tuple)
    K = convolved(maps, first.conv.weight, padding)
    c = torch.zeros_like(convolved(space.every[:1], first.conv.weight, padding)[0])
    if placed and space.origin is not None:
        c = convolved(space.origin[None], first.conv.weight, padding)[0]
    if first.conv.bias is not None and not rounds:
        c = c + first.conv.bias.detach().to(c)[:, None]
    norm = (
        None
        if first.batch_norm is not None or first.norm is None
        else _double(first.norm, space.sides, like)
    )
    condition = MapCondition(
        K, c, pair.activation, batch.next, affine, in_train_mode(first, like), norm
    )
    if not rounds:
        found = solve_known(condition, space.samples, seed, progress)
        if len(found) == space.samples or not update.statistics.means:
            return found, Factor(1.0)
        return solve_batch(
            batch, model, head, replace(update, statistics=BatchStatistics()), seed, progress
        )
    assert condition.batch is not None
    hidden = replace(condition, batch=replace(condition.batch, eps=0.0))
    found = solve_rounds(hidden, space.samples, seed, progress)
    if len(found) < space.samples:
        return found, Factor(_running_factor(batch, hidden, found), told=False)
    return _scaled(batch, model, head, replace(condition, c=found.sign * c), found)


def _scaled(
    batch: MapBatch, model: nn.Module, head: Head, condition: MapCondition, found: FoundMaps
) -> tuple[FoundMaps, Factor]:
    """The batch's common factor, and the samples once more with the eps that it makes of
    BatchNorm's."""
    pair = batch.pair
    factor = Factor(_running_factor(batch, condition, found), told=False)
    module = tail_above(model, pair.source, pair.above)
    if module is None:
        return _by_eps(condition, found, factor.value)
    shortcut = in_client_mode(module.to(head.W.device), train=True)
    for _ in range(2):
        maps = maps_of(batch, found)
        read = found.condition.read(found.points).unflatten(2, batch.space.sides)
        written = nn.functional.conv2d(
            read, pair.second.conv.weight.detach().to(read), padding=pair.second.conv.padding
        )
        seen = common_factor(shortcut, head, maps, written, factor.value)
        if seen is None:
            return _by_eps(condition, found, factor.value)
        factor, found = Factor(seen), _with_factor(condition, found, seen)
    return found, factor


def _by_eps(condition: MapCondition, found: FoundMaps, guess: float) -> tuple[FoundMaps, Factor]:
    """The factor that BatchNorm's eps alone shows: hardly at all where variances are large, and
    then nothing depends on it."""
    few = narrowed(condition, len(found), torch.Generator().manual_seed(0))

    # eps moves samples more than a few rounds can follow
    near = _with_factor(condition, found, guess).points

    def left(factor: float) -> float:
        return float(last_rounds(_at_factor(few, factor), near, _FEW)[0].misfit.norm())

    near = _with_factor(condition, found, least(left, guess)).points
    value = least(left, guess)
    value = value if left(value) < left(guess) else guess
    return _with_factor(condition, found, value), Factor(value, told=False)


def _at_factor(condition: MapCondition, factor: float) -> MapCondition:
    """Maps that are so many times larger have that much less of BatchNorm's eps."""
    assert condition.batch is not None
    return replace(condition, batch=replace(condition.batch, eps=condition.batch.eps / factor**2))


def _with_factor(condition: MapCondition, found: FoundMaps, factor: float) -> FoundMaps:
    """The samples once more."""
    again = settled(_at_factor(condition, factor), found.points, found.points)
    return replace(
        again, hits=found.hits[again.nearest(found)], sign=found.sign
    )  # two may be one now


def _running_factor(batch: MapBatch, condition: MapCondition, found: FoundMaps) -> float:
    """The factor with which maps have the variances of the running statistics: a guess."""
    norm = batch.pair.first.batch_norm
    if len(found) == 0:
        return 1.0
    variance = condition.written(found.points).var((0, 2))
    if norm is None or norm.running_var is None:
        return float(variance.median().rsqrt())
    return float((norm.running_var.to(variance) / variance.clamp_min(1e-300)).median().sqrt())


def _double(norm: nn.Module, sides: tuple[int, int], like: Tensor) -> nn.Module:
    """A norm of maps in float64 that takes (S, C, P)."""
    inner = copy.deepcopy(norm).to(like).requires_grad_(False)
    return nn.Sequential(nn.Unflatten(2, sides), inner, nn.Flatten(2))


def maps_of(batch: MapBatch, found: FoundMaps, factor: float = 1.0) -> Tensor:
    """(B, C, h, w) what the first convolution read."""
    space = batch.space
    if found.condition.unknowns == space.samples:
        return torch.tensordot(found.points, space.every, 1)
    assert space.origin is not None
    return factor * (found.sign * space.origin + torch.tensordot(found.points, space.maps, 1))
