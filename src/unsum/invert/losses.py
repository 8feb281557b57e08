"""What an inverse is trained for."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics.functional.image import structural_similarity_index_measure

from unsum.errors import UnsumError
from unsum.models.lpips import lpips_network, lpips_status, weights_file
from unsum.registry import Registry

# pictures found, pictures true, both (B, 3, s, s) in [0, 1]
Loss = Callable[[Tensor, Tensor], Tensor]

LOSSES: Registry[Loss] = Registry("loss")


def psnr(found: Tensor, true: Tensor) -> Tensor:
    """(B,) 10 log10(1 / MSE) of every picture, in dB."""
    error = (found.float() - true).square().flatten(1).mean(1)
    return -10 / math.log(10) * (error + 1e-10).log()


@LOSSES.register("psnr", summary="−PSNR of every picture: what the tables count")
def negative_psnr(found: Tensor, true: Tensor) -> Tensor:
    return -psnr(found, true).mean()


@LOSSES.register("mse", summary="mean squared error with a little L1")
def squared(found: Tensor, true: Tensor) -> Tensor:
    return F.mse_loss(found.float(), true) + 0.05 * F.l1_loss(found.float(), true)


@LOSSES.register("l1", summary="mean absolute error: sharper edges, duller scores")
def absolute(found: Tensor, true: Tensor) -> Tensor:
    return F.l1_loss(found.float(), true)


@LOSSES.register(
    "rgla",
    summary="−PSNR + 10 (1 − SSIM) + 10 LPIPS, as RGLA fine-tunes",
    needs="AlexNet's weights",
)
def published(found: Tensor, true: Tensor) -> Tensor:
    similarity = structural_similarity_index_measure(found.float(), true, data_range=1.0)
    similar = similarity if isinstance(similarity, Tensor) else similarity[0]
    return negative_psnr(found, true) + 10 * (1 - similar) + 10 * _perceptual(found, true)


@LOSSES.register(
    "viewing",
    summary="mostly LPIPS: pictures for people, not for scores",
    needs="AlexNet's weights",
)
def viewing(found: Tensor, true: Tensor) -> Tensor:
    return negative_psnr(found, true) + 40 * _perceptual(found, true)


def check_loss(name: str) -> Loss:
    """The loss called `name`, refused before training when it cannot be computed on this
    machine."""
    loss = LOSSES[name]
    if loss in (published, viewing) and (missing := lpips_status()) is not None:
        raise UnsumError(f"The loss {name!r} needs LPIPS: {missing}")
    return loss


def _perceptual(found: Tensor, true: Tensor) -> Tensor:
    network = lpips_network(str(found.device), str(weights_file()))
    with torch.autocast(found.device.type, enabled=False):
        distance: Tensor = network(found.float(), true, normalize=True).mean()
    return distance
