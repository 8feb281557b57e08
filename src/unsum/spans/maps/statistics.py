"""What BatchNorm did to the client's maps: with running statistics, or with the batch's, where they
were sent."""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.network.conv_pair import ConvLayer
from unsum.spans.maps.condition import Affine, BatchNormed
from unsum.update import Update


def in_train_mode(layer: ConvLayer, like: Tensor) -> BatchNormed | None:
    """None where there is no BatchNorm."""
    norm = layer.batch_norm
    if norm is None:
        return None
    gamma = torch.ones(norm.num_features) if norm.weight is None else norm.weight.detach()
    beta = torch.zeros(norm.num_features) if norm.bias is None else norm.bias.detach()
    return BatchNormed(gamma.to(like), beta.to(like), norm.eps)


def running(layer: ConvLayer, like: Tensor) -> Affine | None:
    """Of eval mode; None where there is no BatchNorm, or one that keeps no statistics."""
    norm = layer.batch_norm
    if norm is None or norm.running_mean is None or norm.running_var is None:
        return None
    return _affine(layer, norm.running_mean.to(like), norm.running_var.to(like))


def sent(layer: ConvLayer, update: Update, values: int, like: Tensor) -> Affine | None:
    """Of the client's batch, where it sent its buffers; each channel has so many `values`."""
    told = update.statistics
    if layer.batch_norm is None or layer.norm_name not in told.means:
        return None
    mean, variance = (part[layer.norm_name].to(like) for part in (told.means, told.variances))
    return _affine(layer, mean, variance * (values - 1) / values)


def _affine(layer: ConvLayer, mean: Tensor, variance: Tensor) -> Affine:
    normed = in_train_mode(layer, mean)
    assert normed is not None
    scale = normed.gamma * (variance + normed.eps).rsqrt()
    return Affine(scale, normed.beta - mean * scale)
