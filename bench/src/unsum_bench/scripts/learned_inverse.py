"""An inverse of one layer, learned for a moment on other photos: what pictures does a decoder draw
of features or maps?

python -m unsum_bench.scripts.pixels learned --layer layer3.0.conv2 --others a.tar b.tar \\
    --photos c.tar --batch 8 --device cuda
python -m unsum_bench.scripts.pixels learned --layer layer2.0.conv2 --others a.tar b.tar \
        --photos c.tar --batch 1 --gradients 4 --solve 60
python -m unsum_bench.scripts.pixels learned --network resnet50 --weights resnet50.safetensors \
        --layer layer4.2.conv2 --others a.tar …

The layer's true input is granted for --count photos, and for the first --gradients batches it comes
out of the gradient: samples, maps, the walk below them, with nothing granted but the batch size.
With --solve the pixel equations begin at the decoder's pictures, for so many seconds. Photos come
in clients of --batch; in train mode with statistics that nobody sent. `unsum train-inverse` does
the same for hours, with Lightning and augmentations; this needs nothing but torch. The decoder is
trained in bfloat16, the maps are float32.
"""

from __future__ import annotations

import argparse
import io
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import unsum
from unsum.errors import UnsumError
from unsum.invert.decoder import Decoder
from unsum.invert.layout import feature_layout
from unsum.invert.losses import negative_psnr, psnr
from unsum.invert.pixels import solve_pixels
from unsum.models.client_batches import ClientFeatures, sharing

BATCH, RATE = 256, 1e-3
WARM_UP = 100  # steps


@dataclass(frozen=True)
class Learned:
    """Draws pictures (n, 3, s, s) in [0, 1] of what a layer reads."""

    backbone: ClientFeatures
    decoder: Decoder
    client: int | None
    normalized: Callable[[Tensor], Tensor]
    steps: int

    @torch.no_grad()
    def __call__(self, pictures: Tensor) -> Tensor:
        """Of one client's pictures or of several clients'."""
        clients = (
            None
            if self.client is None
            else sharing(len(pictures), self.client, self.client).to(pictures.device)
        )
        return self.of(self.backbone(self.normalized(pictures), clients))

    @torch.no_grad()
    def of(self, maps: Tensor) -> Tensor:
        return self.decoder(maps.flatten(1).float())


def learn(
    model: nn.Module,
    photos: Tensor,
    layer: str | None,
    client: int | None,
    seconds: float,
    normalized: Callable[[Tensor], Tensor],
    batch: int = BATCH,
) -> Learned:
    """Draws what `layer` (None: the head) reads of bytes (n, 3, s, s), by clients of so many; None:
    eval mode."""
    size, device = photos.shape[-1], photos.device
    torch.manual_seed(0)
    backbone = ClientFeatures(model, layer).to(device)
    decoder = Decoder(feature_layout(model, size, layer), size).to(device).train()
    optimizer = torch.optim.AdamW(decoder.parameters(), RATE, betas=(0.9, 0.98), weight_decay=0.05)
    drawn = batch - batch % (client or 1)
    together = None if client is None else sharing(drawn, client, client).to(device)
    begun, step = time.monotonic(), 0
    while (done := (time.monotonic() - begun) / seconds) < 1:
        chosen = photos[torch.randint(len(photos), (drawn,), device=device)].float() / 255
        chosen = torch.where(
            torch.rand(drawn, 1, 1, 1, device=device) < 0.5, chosen, chosen.flip(3)
        )
        with torch.no_grad():
            features = backbone(normalized(chosen), together)
        if step == 0:
            decoder.calibrate(features)
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARM_UP) * (1 - done)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            drawn_pictures = decoder(features)
        negative_psnr(drawn_pictures, chosen).backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        step += 1
    return Learned(backbone, decoder.eval(), client, normalized, step)


def photos_of(paths: list[Path], most: int, size: int) -> Tensor:
    """Bytes (n, 3, s, s) of the first JPEG files of tars."""
    found: list[Tensor] = []
    for path in paths:
        with tarfile.open(path) as files:
            for member in files:
                if (
                    member.isfile()
                    and member.name.lower().endswith((".jpg", ".jpeg"))
                    and len(found) < most
                ):
                    photo = Image.open(io.BytesIO(files.extractfile(member).read())).convert("RGB")
                    found.append(
                        torch.tensor(np.array(photo.resize((size, size)))).permute(2, 0, 1)
                    )
    return torch.stack(found)


def out_of_gradient(
    model: nn.Module, layer: str, shown: Tensor, labels: Tensor, draw: Learned, solve: float
) -> str:
    """The rest of a row: what came back of one batch, drawn, and solved for from there."""
    train, B = draw.client is not None, len(shown)
    inputs = draw.normalized(shown)
    model.train(train)
    update = unsum.capture(model, inputs, labels, train=train)
    begun = time.perf_counter()
    notes = []
    try:
        leak = unsum.separate(model, update, "spans", batch_size=B, device=shown.device)
        if layer not in leak.inner:
            peeled = unsum.peel(model, update, leak, "residual", shape=tuple(shown.shape[1:]))
            notes = peeled.notes
            leak = replace(
                leak, inner=leak.inner | peeled.inner, partly=peeled.partly, hint=peeled.hint
            )
    except UnsumError as reason:
        return f" {reason} | | |"
    if layer not in leak.inner:
        deepest = next((name for name, _ in model.named_modules() if name in leak.inner), "nothing")
        return f" {deepest} only. {' '.join(notes)} | | |"
    walked = time.perf_counter() - begun
    found = draw.of(leak.inner[layer].to(shown))
    row = f" {layer}, {walked:.0f} s | {_scored(found, shown)} |"
    if not solve:
        return f"{row} |"
    leak = replace(leak, images=draw.normalized(found))
    try:
        solved = solve_pixels(model, update, leak, shape=tuple(shown.shape[1:]), seconds=solve)
    except UnsumError as reason:
        return f"{row} {reason} |"
    zero, one = (draw.normalized(torch.full_like(shown[:1], value)) for value in (0.0, 1.0))
    pictures = (solved.images.to(shown) - zero) / (one - zero)
    return f"{row} {_scored(pictures, shown)}, misfit {float(solved.misfit.max()):.1g} |"


def _scored(found: Tensor, shown: Tensor) -> str:
    nearest = found[torch.cdist(shown.flatten(1), found.flatten(1)).argmin(1)]
    score = psnr(nearest, shown)
    return f"{float(score.min()):.1f} / {float(score.median()):.1f}"


def main(arguments: Sequence[str]) -> None:
    from unsum_bench.scripts.convolutions import MEAN, STD, Setting, network

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", default="resnet18", choices=["resnet18", "resnet50"])
    parser.add_argument("--weights", type=Path)
    parser.add_argument(
        "--layer", nargs="+", required=True, help="whose input is drawn; `head` for the features"
    )
    parser.add_argument(
        "--photos", type=Path, required=True, help="a tar; its first photos are drawn"
    )
    parser.add_argument("--others", type=Path, nargs="+", required=True, help="tars to learn from")
    parser.add_argument("--most", type=int, default=4000, help="photos to learn from")
    parser.add_argument("--count", type=int, default=64, help="photos to draw")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--step", type=int, default=64, help="photos of one step")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--mode", default="train", choices=["eval", "train"])
    parser.add_argument(
        "--gradients", type=int, default=0, help="batches whose maps come out of the gradient"
    )
    parser.add_argument(
        "--solve", type=float, default=0.0, help="seconds for the pixel equations from there"
    )
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    # gradients in float32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    client = options.batch if options.mode == "train" else None
    model = network(Setting(options.network, options.batch, 1000), options.weights)
    if options.network == "resnet18":  # the network of 224² pictures, with its own first layers
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.MaxPool2d(3, 2, 1)
    model = model.to(options.device)
    mean, std = (torch.tensor(part, device=options.device).view(3, 1, 1) for part in (MEAN, STD))
    others = photos_of(options.others, options.most, options.size).to(options.device)
    shown = (
        photos_of([options.photos], options.count, options.size).to(options.device).float() / 255
    )
    print(
        (
            f"{len(others)} photos to learn from\n\n| network | layer | B | dB, least | median | "
            "mean | s | steps |\n|"
        )
        + "---|" * 8
    )
    for layer in options.layer:
        draw = learn(
            model,
            others,
            None if layer == "head" else layer,
            client,
            options.seconds,
            lambda x: (x - mean) / std,
            options.step,
        )
        score = torch.cat([psnr(draw(part), part) for part in shown.split(options.batch)])
        figures = (
            f"{float(score.min()):.1f} | {float(score.median()):.1f} | {float(score.mean()):.2f}"
        )
        print(
            (
                f"| {options.network} | {layer} | {options.batch} | {figures} | "
                f"{options.seconds:.0f} | {draw.steps} |"
            ),
            flush=True,
        )
        for number, part in enumerate(shown.split(options.batch)[: options.gradients]):
            labels = torch.arange(len(part), device=part.device)
            print(
                (
                    f"    batch {number}: "
                    f"|{out_of_gradient(model, layer, part, labels, draw, options.solve)}"
                ),
                flush=True,
            )
