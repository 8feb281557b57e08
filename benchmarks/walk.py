"""How far the walk below pooling goes: network, mode, batch; the deepest exact map, its error, seconds, and why it ends.

python benchmarks/walk.py --networks resnet18-32 resnet18-224 --modes eval train --batches 1 4 8 16
python benchmarks/walk.py --networks resnet18-32 --weights trained.pt --photos photos.npz --batches 1 4 8

It starts at the true input of the last residual block, as the client's own pass has it, so that the table shows the walk alone.
`--photos` is an .npz with `images` (n, h, w, 3) in bytes; without it, the embedded photos are taken, and then noise.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import numpy as np
import torch
import torchvision
from torch import Tensor, nn

import unsum
from unsum.data import embedded_batch
from unsum.leak import Leak
from unsum.peel.residual import reach

CLASSES = 10


def network(name: str, weights: Path | None) -> tuple[nn.Module, int]:
    torch.manual_seed(0)
    kind, _, size = name.partition("-")
    model = torchvision.models.get_model(kind, weights=None, num_classes=CLASSES)
    if size == "32":
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    if weights is not None:
        model.load_state_dict(torch.load(weights, weights_only=True))
    return model, int(size)


def pictures(photos: Path | None, B: int, size: int) -> Tensor:
    if photos is not None:
        images = torch.as_tensor(np.load(photos)["images"][:B]).permute(0, 3, 1, 2).float() / 255
    else:
        images = embedded_batch(min(B, 16), image_size=size).images
        images = torch.cat([images, torch.rand(B - len(images), *images.shape[1:])])
    return nn.functional.interpolate(images, (size, size), mode="bilinear", antialias=True)


def true_reads(model: nn.Module, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """What every convolution of the client's pass reads, and the logits."""
    copied, seen = copy.deepcopy(model), dict[str, Tensor]()
    for name, module in copied.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(lambda _, inputs, name=name: seen.update({name: inputs[0].double()}))
    with torch.no_grad():
        logits = copied(images).double()
    return seen, logits


def row(name: str, mode: str, B: int, weights: Path | None, photos: Path | None) -> str:
    model, size = network(name, weights)
    images, labels = pictures(photos, B, size), torch.arange(B) % CLASSES
    update = unsum.capture(model, images, labels, train=mode == "train")
    model.train(mode == "train")
    seen, logits = true_reads(model, images)
    counted = reach(model, B, size)
    targets = nn.functional.one_hot(labels, CLASSES).double()
    known = {counted.start: seen[counted.start]}
    leak = Leak("maps", targets, logits, torch.zeros(B, 1), 0.0, 1e-7, True, inner=known)
    try:
        peeled = unsum.peel(model, update, leak, "residual", shape=(3, size, size))
    except unsum.UnsumError as reason:
        return f"| {name} | {mode} | {B} | none | | | {counted.deepest} | {reason} |"
    layer = peeled.layers[-1].name
    true = seen[layer]
    step = true.shape[-1] // peeled.inputs.shape[-1]  # of 1×1 convolutions that pass places over
    off = (peeled.inputs - true[..., ::step, ::step]).flatten(1).norm(dim=1)
    error = float((off / true[..., ::step, ::step].flatten(1).norm(dim=1)).max())
    shape, sure = "×".join(map(str, peeled.inputs.shape[1:])), int(peeled.exact.sum())
    figures = f"{layer} ({shape}) | {error:.1e}, predicted {float(peeled.errors.max()):.1e}, {sure} of {B} certified"
    return (
        f"| {name} | {mode} | {B} | {figures} | {peeled.seconds:.0f} | {counted.deepest} | {' '.join(peeled.notes)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--networks", nargs="+", default=["resnet18-32"], help="torchvision's name, a dash, the pictures' side"
    )
    parser.add_argument("--modes", nargs="+", default=["eval", "train"], choices=["eval", "train"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 8])
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--photos", type=Path)
    chosen = parser.parse_args()
    print("| network | mode | batch | deepest map | error | seconds | by counting | why it ends |")
    print("|---|---|---|---|---|---|---|---|")
    for name in chosen.networks:
        for mode in chosen.modes:
            for B in chosen.batches:
                print(row(name, mode, B, chosen.weights, chosen.photos), flush=True)


if __name__ == "__main__":
    main()
