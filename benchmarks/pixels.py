"""Pictures out of exact maps: how many decibels, how fast, from which layer on, trained and untrained, in either mode?

python benchmarks/pixels.py                                        # embedded photos, ResNet-18 for 32², untrained
python benchmarks/pixels.py --photos cifar.npz --weights resnet18-32.pt --device cuda --batch 1 4 8 --mode eval train
python benchmarks/pixels.py --photos cifar.npz --layer layer4.0.conv1 --batch 16 --error 1e-6 --device cuda
python benchmarks/pixels.py --size 224 --layer layer2.0.conv1 --batch 1 --device cuda

The maps are the true ones, with a relative error where --error says so: this measures the step from maps to pictures alone.
`--rival ig` matches the gradient of the same batches instead, with the labels given.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.models import resnet18

import unsum
from unsum.data import client_batch, embedded_batch, open_data
from unsum.gradients import same_buffers
from unsum.invert.pixels import solve_pixels
from unsum.invert.pixels.equations import read_by
from unsum.leak import Leak

CLASSES = 10
MEAN, SPREAD = 0.5, 0.25  # of pixels, as the client normalizes them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="a folder, tar or npz; by default the embedded ones")
    parser.add_argument("--weights", type=Path, help="state dict of the network; by default it is untrained")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--layer", default="layer3.0.conv1", help="whose input is known")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--mode", nargs="+", default=["eval"], choices=["eval", "train", "sent"])
    parser.add_argument("--error", type=float, default=0.0, help="relative, of the maps")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which a search ends")
    parser.add_argument("--rival", choices=["ig"])
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.machine()
    weights = "trained" if options.weights else "untrained"
    print(f"ResNet-18 for {options.size}², {weights}, what {options.layer} read, on {name}\n")
    print("| mode | B | numbers / pixels | dB, worst | dB, median | misfit | certified | predicted / true error | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for mode in options.mode:
        for B in options.batch:
            print(measured(options, mode, B), flush=True)


def measured(options: argparse.Namespace, mode: str, B: int) -> str:
    """One row. The mode `sent` is train mode with BatchNorm's buffers in the update."""
    torch.manual_seed(0)
    model = network(options).train(mode != "eval")
    batch = (
        embedded_batch(B, image_size=options.size)
        if options.photos is None
        else client_batch(open_data(options.photos), B, image_size=options.size)
    )
    images = ((batch.images - MEAN) / SPREAD).to(options.device)
    labels = torch.arange(B, device=options.device) % CLASSES
    update = unsum.capture(model, images, labels, train=mode != "eval", buffers=mode == "sent")
    if options.rival:
        return rival(options, mode, model, update, images, labels)
    with torch.no_grad(), same_buffers(model):
        maps = read_by(model, options.layer, images)
    maps = maps * (1 + options.error * torch.randn_like(maps))
    targets = nn.functional.one_hot(labels, CLASSES).double()
    leak = Leak("true", targets, targets, targets, 0.0, options.error, True, inner={options.layer: maps})
    found = solve_pixels(model, update, leak, shape=tuple(images.shape[1:]), seconds=options.seconds)
    score = decibels(found.images, images)
    true = (found.images - images).flatten(1).norm(dim=1) / images.flatten(1).norm(dim=1)
    share = float((maps != 0).flatten(1).sum(1).min()) / images[0].numel()
    return (
        f"| {mode} | {B} | {share:.1f} | {float(score.min()):.1f} | {float(score.median()):.1f} "
        f"| {float(found.misfit.max()):.1g} | {int(found.exact.sum())} | {float((found.errors / true).median()):.2g} "
        f"| {found.seconds:.0f} |"
    )


def rival(
    options: argparse.Namespace, mode: str, model: nn.Module, update: unsum.Update, images: Tensor, labels: Tensor
) -> str:
    begun = time.perf_counter()
    leak = unsum.attack(
        model, update, options.rival, labels=labels, options={"image_size": options.size}, device=options.device
    )
    assert leak.images is not None
    score = decibels(leak.images.to(images), images)
    return (
        f"| {mode}, {options.rival} | {len(images)} | – | {float(score.min()):.1f} | {float(score.median()):.1f} "
        f"| – | – | – | {time.perf_counter() - begun:.0f} |"
    )


def decibels(found: Tensor, images: Tensor) -> Tensor:
    return -10 * ((found - images) * SPREAD).square().flatten(1).mean(1).log10()


def network(options: argparse.Namespace) -> nn.Module:
    """torchvision's; for small pictures with the usual stem of 3×3 and no max pooling."""
    model = resnet18(num_classes=CLASSES)
    if options.size <= 64:
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    if options.weights is not None:
        model.load_state_dict(torch.load(options.weights, map_location="cpu", weights_only=True))
    return model.to(options.device)


if __name__ == "__main__":
    main()
