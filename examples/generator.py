"""A small generator of photos for GIAS and GGL: the decoder of a variational autoencoder.

    python examples/generator.py public-photos.tar --out generator.safetensors
    unsum bench field --size small --data photos.tar --attack gias --attack ggl \
        --option gias:generator=examples/generator.py:build \
        --option gias:weights=generator.safetensors \
        --option ggl:generator=examples/generator.py:build \
        --option ggl:weights=generator.safetensors

Train it with photos that no client holds. It draws 32² photos from 128 standard normal numbers,
blurred as such generators do.
"""

from __future__ import annotations

import argparse
import time

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from unsum.data import read_photos

SIDE, LATENT, WIDTH = 32, 128, 64
_KL_WEIGHT = 1.0  # of the prior, beside the squared error at a pixel noise of 0.08
_PIXEL_NOISE = 0.08


class Generator(nn.Module):
    """(B, 128) latents → (B, 3, 32, 32) photos in [0, 1]."""

    latent_shape = LATENT
    photos = "those that examples/generator.py was given"

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(LATENT, 4 * WIDTH * 16)
        self.grow = nn.Sequential(
            *_larger(4, 2), *_larger(2, 1), *_larger(1, 1), nn.Conv2d(WIDTH, 3, 3, padding=1)
        )

    def forward(self, latents: Tensor) -> Tensor:
        return self.grow(self.first(latents).view(-1, 4 * WIDTH, 4, 4)).sigmoid()


def _larger(inputs: int, outputs: int) -> list[nn.Module]:
    """Twice the side, by its nearest neighbors and a convolution."""
    return [
        nn.SiLU(),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(inputs * WIDTH, outputs * WIDTH, 3, padding=1),
    ]


def build() -> nn.Module:
    return Generator()


def encoder() -> nn.Sequential:
    """(B, 3, 32, 32) photos → (B, 256): means and logarithms of variances."""
    return nn.Sequential(
        *(nn.Conv2d(3, WIDTH, 4, 2, 1), nn.SiLU(), nn.Conv2d(WIDTH, 2 * WIDTH, 4, 2, 1), nn.SiLU()),
        *(
            nn.Conv2d(2 * WIDTH, 4 * WIDTH, 4, 2, 1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(4 * WIDTH * 16, 2 * LATENT),
        ),
    )


def train(photos: Tensor, minutes: float, seed: int = 0) -> tuple[Generator, float]:
    """The generator after this time, and the mean squared error of what it draws of its own
    photos."""
    torch.manual_seed(seed)
    generator, reader = Generator(), encoder()
    optimizer = torch.optim.Adam([*generator.parameters(), *reader.parameters()], 1e-3)
    end, error = time.monotonic() + 60 * minutes, float("nan")
    while time.monotonic() < end:
        for batch in torch.randperm(len(photos)).split(128):
            images = photos[batch].float() / 255
            images = images.flip(3) if torch.rand(()) < 0.5 else images
            mean, log_variance = reader(images).chunk(2, 1)
            drawn = generator(mean + torch.randn_like(mean) * (log_variance / 2).exp())
            squared = (drawn - images).square().flatten(1)
            prior = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
            loss = (squared.sum(1) / (2 * _PIXEL_NOISE**2) + _KL_WEIGHT * prior).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            error = float(squared.detach().mean())
    return generator, error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "photos", nargs="+", help="photos that no client holds: folders, tars or npz files"
    )
    parser.add_argument("--out", default="generator.safetensors")
    parser.add_argument("--minutes", type=float, default=10.0)
    given = parser.parse_args()
    photos = torch.cat([read_photos(path, size=SIDE).images for path in given.photos])
    generator, error = train(photos, given.minutes)
    save_file(generator.state_dict(), given.out)
    print(
        f"{given.out}: {len(photos)} photos, mean squared error {error:.4f} of those of the last "
        "batch"
    )


if __name__ == "__main__":
    main()
