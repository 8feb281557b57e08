"""A generator and a denoiser for 32×32 pictures, learned in seconds from embedded photos that no
victim here has."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

import torch
from torch import Tensor, nn

from unsum.data import embedded_batch, photo_count

VICTIMS = 2  # the first embedded photos: `cases.crops` takes them, and nothing is learned from them


@cache
def own_photos(side: int = 96) -> Tensor:
    """(N, 3, 32, 32) crops of the attacker's own photos."""
    photos = embedded_batch(photo_count(), image_size=side).images[VICTIMS:]
    strided = photos.unfold(2, 32, 8).unfold(3, 32, 8)  # (P, 3, n, n, 32, 32)
    return strided.permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, 32, 32).contiguous()


class Principal(nn.Module):
    """x = mean + Σ_k z_k √λ_k v_k: what a linear generator learns, in closed form."""

    photos: ClassVar[str] = "crops of embedded photos"

    def __init__(self, latent: int = 64) -> None:
        super().__init__()
        self.latent_shape = latent
        self.layer = nn.Linear(latent, 3 * 32 * 32)

    def forward(self, latents: Tensor) -> Tensor:
        return self.layer(latents).view(-1, 3, 32, 32)

    def learn(self, images: Tensor) -> Principal:
        rows = images.flatten(1)
        _, values, vectors = torch.svd_lowrank(rows - rows.mean(0), q=self.latent_shape, niter=4)
        with torch.no_grad():
            self.layer.weight.copy_(vectors * values / len(rows) ** 0.5)
            self.layer.bias.copy_(rows.mean(0))
        return self


class Denoiser(nn.Module):
    """Tells the noise of a picture and takes it away."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(width, 3, 3, 1, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        return images - self.layers(images)

    def learn(self, images: Tensor, steps: int = 150) -> Denoiser:
        adam = torch.optim.Adam(self.parameters(), 3e-3)
        for _ in range(steps):
            clean = images[torch.randint(len(images), (8,))]
            noisy = clean + 0.2 * torch.rand(8, 1, 1, 1) * torch.randn_like(clean)
            loss = (self(noisy) - clean).square().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
        return self


@cache
def generator(latent: int = 64) -> Principal:
    torch.manual_seed(0)
    return Principal(latent).learn(own_photos())


@cache
def denoiser() -> Denoiser:
    torch.manual_seed(0)  # the same whichever test asks first
    return Denoiser().learn(own_photos())
