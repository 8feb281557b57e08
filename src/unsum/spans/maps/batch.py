"""The batch's maps up to their mixing: the pair of convolutions nearest to the logits whose
gradients have room for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.network.conv_pair import ConvLayer, ConvPair, find_pairs, tail_above
from unsum.spans.basis import LayerSpan
from unsum.spans.maps.condition import Among, Places
from unsum.spans.maps.corner import MapSpace, map_space, with_lengths
from unsum.spans.maps.pooled import is_pooled_sum
from unsum.update import Update

_GAP = 1e-2  # of the singular value before it: those below may be no samples'
_LONE = 0.3  # of the last but one: a last value that is no sample's


class _Sent(NamedTuple):
    grad_W: Tensor
    grad_b: Tensor | None


@dataclass(frozen=True)
class MapBatch:
    """A pair of convolutions with the batch's maps up to their mixing: what `first` read, and where
    what `second` read lies."""

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


def read_batch(model: nn.Module, update: Update, device: torch.device) -> MapBatch:
    """The pair nearest to the logits whose gradients hold the batch's maps."""
    pairs = find_pairs(model, update)
    if not pairs:
        lacking = _lacking(model, update)
        if lacking:
            raise UnsumError(
                f"The update lacks {' and '.join(map(repr, lacking))}, not sent or frozen: with it "
                "every sample's maps would be read, but only convolutions whose gradients were "
                "sent can be; use 'exact' for the head alone."
            )
        raise UnsumError(
            "'spans' needs two consecutive dense layers, or two convolutions of stride 1 with an "
            "activation between them whose gradients were sent; this model has neither; use "
            "'exact' for the head alone."
        )
    full, counted = [], ""
    for pair in pairs:
        if tail_above(model, pair.source) is None and not is_pooled_sum(
            model, pair, find_head(model)[0]
        ):
            continue
        here, above = (_spans(layer, device) for layer in (pair.first, pair.second))
        if here[0].full or above[0].full:
            full.append(pair.first)
            break  # layers below have more places
        counted = counted or " and ".join(
            f"{layer.name!r} ({len(span[-1])} directions, {layer.conv.out_channels} channels)"
            for layer, span in ((pair.first, here), (pair.second, above))
        )
        batch = next(
            (batch for one in here for batch in [_batch(pair, one, above)] if batch is not None),
            None,
        )
        if batch is not None:
            return batch
    if not counted and not full:
        raise UnsumError(
            "More than one path leads from the convolutions whose gradients were sent to the "
            "logits, so no sample can be checked; use 'exact' for the head alone."
        )
    if full:
        widest = max(layer.conv.out_channels for layer in full)
        raise UnsumError(
            f"'spans' cannot tell the maps apart: the batch's places take all {widest} channels of "
            "the last convolutions; smaller batches, or smaller pictures, are read. Gradient "
            "matching ('ig') remains."
        )
    if any(
        isinstance(layer.norm, nn.InstanceNorm2d)
        for pair in pairs
        for layer in (pair.first, pair.second)
    ):
        raise UnsumError(
            "'spans' does not read maps before an InstanceNorm: what each sample sends through it "
            "sums to zero over its places, so that gradients hold differences of its patches "
            "alone; use 'exact' for the head (this is no sign that nothing leaks)."
        )
    raise UnsumError(
        f"No maps were found in the gradients of {counted}: samples need a direction for each of "
        "their places, and noise, or relus that are alike at several places, take some away; this "
        "is no sign that nothing leaks."
    )


def _lacking(model: nn.Module, update: Update) -> list[str]:
    """The gradients that the pair nearest to the logits would need besides what was sent."""
    whole = replace(
        update, gradients={name: parameter.detach() for name, parameter in model.named_parameters()}
    )
    names = [
        f"{layer.name}.weight"
        for pair in find_pairs(model, whole)[:1]
        for layer in (pair.first, pair.second)
    ]
    return [name for name in names if name not in update.gradients]


def _spans(layer: ConvLayer, device: torch.device) -> list[LayerSpan]:
    """The row spaces that may be meant: with the directions above noise, and, first, with those
    above the widest gap, where one stands out. Rounding is more than it should be on some devices,
    and BatchNorm's sums of ∂loss/∂z, which should be zero, leave theirs along the mean patch: one
    direction that is weaker than all others, or as weak as the weakest."""
    span = LayerSpan.of(_Sent(layer.grad.detach().to(device).flatten(1), None))
    ratios = span.values[1:] / span.values[:-1].clamp_min(1e-300)
    if len(ratios) == 0:
        return [span]
    spans = [span]
    at = int(ratios.argmin()) + 1
    if at > 1 and float(ratios[at - 1]) < _GAP:
        m, n = layer.grad.shape[0], layer.grad[0].numel()
        noise = (
            max(span.noise, float(span.values[at]) / (m**0.5 + n**0.5))
            if len(span) - at > 1
            else span.noise
        )
        spans = [replace(span.first(at), noise=noise), span]
    if layer.batch_norm is not None and len(span) > 2:
        lone = span.first(len(span) - 1)
        spans.insert(0 if float(ratios[-1]) < _LONE else len(spans), lone)
    return spans


def _batch(pair: ConvPair, here: LayerSpan, above: list[LayerSpan]) -> MapBatch | None:
    space = _space(pair.first, here)
    if space is None:
        return None
    lying = next(
        (one for span in above for one in [_next(pair.second, span, space)] if one is not None),
        None,
    )
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
    if layer.batch_norm is not None and space.centered and not below.centered:
        return None
    # that of all patches is the same as that of their differences and the origin
    return Among.of(space.every)
