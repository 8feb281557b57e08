"""Pictures out of a gradient: how many decibels, how fast, trained and untrained, in either mode,
beside published attacks?

python -m unsum_bench.scripts.pixels --photos cifar.npz --batch 1 4 8 --steps 0 300 \\
    --mode eval sent train --device cuda
python -m unsum_bench.scripts.pixels --photos cifar.npz --size 16 --width 32 --steps 300 \\
    --batch 4 8 --mode train --notes
python -m unsum_bench.scripts.pixels --photos cifar.npz --layer layer3.0.conv1 --batch 4 \\
    --mode train --error 1e-6 --device cuda
python -m unsum_bench.scripts.pixels rivals --photos cifar.npz --batch 1 4 8 --mode train \\
    --seconds 120 --device cuda
# a decoder that is learned for a moment: see `learned_inverse`
python -m unsum_bench.scripts.pixels learned --layer layer3.0.conv2 --others a.tar --photos c.tar
# embedded photos
python -m unsum_bench.scripts.pixels --batch 4 --mode train --grid docs/figures/pixels.png

Without --layer, everything is chained as `unsum.attack` does it, from the gradient alone. With
--layer its true input is granted, with a relative error where --error says so: that measures the
step from maps to pictures alone. The mode `train` has BatchNorm's statistics unknown; in `sent` the
client sends them along.

`rivals` runs published attacks on the same batches: IG and GradInversion, with labels and batch
size granted, at their published steps unless --matching says fewer or --seconds ends them; and an
inverse of the features, which are granted, learned on other photos for --learn seconds. The model
takes photos in [0, 1] and normalizes them itself.
"""

from __future__ import annotations

import argparse
import math
import platform
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet, resnet18
from torchvision.utils import save_image

import unsum
from unsum.data import embedded_batch
from unsum.gradients import same_buffers
from unsum.invert.pixels import solve_pixels
from unsum.invert.pixels.equations import read_by
from unsum.leak import Leak
from unsum.models.built import Normalize
from unsum.running.deadline import time_limit
from unsum_bench.scripts import learned_inverse
from unsum_bench.scripts.learned_inverse import learn

CLASSES = 10
MEAN, SPREAD = 0.5, 0.25  # of pixels, as the model normalizes them
OTHERS = 1000  # photos from here on are for training
RIVALS = ("ig", "gradinversion", "features")
PUBLISHED = {"ig": 24_000, "gradinversion": 20_000}  # steps


def main() -> None:
    if sys.argv[1:2] == ["learned"]:
        with time_limit(math.inf):  # figures must not depend on how fast the machine is
            learned_inverse.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("attacks", nargs="?", default="unsum", choices=["unsum", "rivals"])
    parser.add_argument(
        "--photos",
        type=Path,
        help="an npz with `images` (n, h, w, 3); by default the embedded ones",
    )
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument(
        "--width", type=int, default=64, help="channels of the first stage; fewer for one core"
    )
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[0], help="of training, on other photos of the npz"
    )
    parser.add_argument("--layer", help="whose input is granted")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--mode", nargs="+", default=["eval"], choices=["eval", "train", "sent"])
    parser.add_argument(
        "--error", type=float, default=0.0, help="relative, of the maps that are granted"
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="after which a search ends")
    parser.add_argument("--rival", nargs="+", default=RIVALS, choices=RIVALS)
    parser.add_argument("--matching", type=int, help="steps of a rival, instead of those published")
    parser.add_argument(
        "--learn", type=float, default=60.0, help="seconds for the inverse of the features"
    )
    parser.add_argument(
        "--grid", type=Path, help="a PNG: true pictures above those that were found"
    )
    parser.add_argument(
        "--notes", action="store_true", help="print what the attack says of its answer"
    )
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    name = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.machine()
    print(f"ResNet-18 at {options.size}², on {name}\n")
    print(
        (
            "| attack | steps | mode | B | from | its error | dB, least | median | certified | s | "
            "GB |\n|"
        )
        + "---|" * 11
    )
    for steps in options.steps:
        model = network(options, steps)
        for mode in options.mode:
            for B in options.batch:
                for method in options.rival if options.attacks == "rivals" else ["unsum"]:
                    found = (
                        rival(options, model, method, mode, B)
                        if method in RIVALS
                        else ours(options, model, mode, B)
                    )
                    print(f"| {method} | {steps} | {mode} | {B} |{found}", flush=True)


def rival(options: argparse.Namespace, model: nn.Module, method: str, mode: str, B: int) -> str:
    """The rest of a row of a published attack."""
    torch.manual_seed(0)
    images, labels = (given[:B].to(options.device) for given in pictures(options, B))
    begun, said = started(options), ""
    if method == "features":
        found = drawn_of_features(options, model, images, None if mode == "eval" else B)
    else:
        model.train(mode != "eval")
        update = unsum.capture(model, images, labels, train=mode != "eval")
        steps = options.matching or PUBLISHED[method]
        known = {"image_size": options.size, "steps": steps}
        leak = unsum.attack(
            model,
            update,
            method,
            labels=labels,
            options=known,
            time_limit=options.seconds,
            device=options.device,
        )
        assert leak.images is not None
        found, said = (
            leak.images.to(images),
            f"{int(leak.history['step'][-1]):,} of {steps:,} steps",
        )
    seconds = time.perf_counter() - begun
    score = decibels(in_order(found, images), images)
    return (
        f" {said} | | {float(score.min()):.1f} | {float(score.median()):.1f} | | {seconds:.0f} | "
        f"{memory(options)} |"
    )


def drawn_of_features(
    options: argparse.Namespace, model: nn.Module, shown: Tensor, client: int | None
) -> Tensor:
    """What a decoder, learned on other photos of the npz, draws of what the head reads of pictures
    in [0, 1]."""
    others = pictures(options, 5 * OTHERS)[0][OTHERS:].to(options.device)
    bytes_ = (255 * others).round().byte()
    return learn(model, bytes_, None, client, options.learn, lambda x: x)(shown)


def ours(options: argparse.Namespace, model: nn.Module, mode: str, B: int) -> str:
    """The rest of a row of unsum's."""
    torch.manual_seed(0)
    model.train(mode != "eval")
    images, labels = (given[:B].to(options.device) for given in pictures(options, B))
    update = unsum.capture(model, images, labels, train=mode != "eval", buffers=mode == "sent")
    begun = started(options)
    if options.layer is None:
        leak = unsum.attack(
            model, update, batch_size=B, time_limit=options.seconds, device=options.device
        )
    else:
        leak = granted(options, model, update, images, labels)
    seconds = time.perf_counter() - begun
    if options.notes:
        print("\n".join(f"    {note}" for note in leak.notes))
    if leak.images is None:
        return f" none: {' '.join(leak.notes)} |"
    order = [name for name, _ in model.named_modules() if name in leak.inner]
    error = ""
    if order and options.layer is None:
        with torch.no_grad(), same_buffers(model):
            true = read_by(model, order[0], images).flatten(1)
        apart = torch.cdist(true, leak.inner[order[0]].to(true).flatten(1)).amin(1)
        error = f"{float((apart / true.norm(dim=1)).max()):.0e}"
    found = in_order(leak.images.to(images), images)
    if options.grid is not None:
        draw(options.grid, images, found)
    score = decibels(found, images)
    sure = "" if leak.inputs_exact is None else f"{int(leak.inputs_exact.sum())} of {B}"
    return (
        f" {order[0] if order else ''} | {error} | {float(score.min()):.1f} | "
        f"{float(score.median()):.1f} | {sure} | {seconds:.0f} | {memory(options)} |"
    )


def started(options: argparse.Namespace) -> float:
    """The clock, when the device has done what was asked before; its largest memory counts from
    here on."""
    if options.device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    return time.perf_counter()


def memory(options: argparse.Namespace) -> str:
    """Gigabytes at most: the device's since the clock was started, or the process's since its
    start."""
    if options.device.startswith("cuda"):
        return f"{torch.cuda.max_memory_allocated() / 1e9:.1f}"
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f}"


def granted(
    options: argparse.Namespace,
    model: nn.Module,
    update: unsum.Update,
    images: Tensor,
    labels: Tensor,
) -> Leak:
    """From the true maps of a layer to pictures."""
    with torch.no_grad(), same_buffers(model):
        maps = read_by(model, options.layer, images)
    maps = maps * (1 + options.error * torch.randn_like(maps))
    targets = nn.functional.one_hot(labels, CLASSES).double()
    leak = Leak(
        "true", targets, targets, targets, 0.0, options.error, True, inner={options.layer: maps}
    )
    found = solve_pixels(
        model, update, leak, shape=tuple(images.shape[1:]), seconds=options.seconds
    )
    return replace(leak, images=found.images.float(), inputs_exact=found.exact, notes=found.notes)


def in_order(found: Tensor, images: Tensor) -> Tensor:
    """Each true picture's nearest."""
    return found[torch.cdist(images.flatten(1), found.flatten(1)).argmin(1)]


def decibels(found: Tensor, images: Tensor) -> Tensor:
    return -10 * (found - images).square().flatten(1).mean(1).log10()


def draw(path: Path, images: Tensor, found: Tensor) -> None:
    rows = torch.cat([images, found]).cpu()
    large = nn.functional.interpolate(
        rows.clamp(0, 1), scale_factor=max(1, 96 // rows.shape[-1]), mode="nearest"
    )
    save_image(large, path, nrow=len(images), padding=6, pad_value=1.0)


def pictures(options: argparse.Namespace, number: int) -> tuple[Tensor, Tensor]:
    """(n, 3, h, w) in [0, 1], and labels."""
    if options.photos is None:
        images, labels = (
            embedded_batch(number, image_size=options.size).images,
            torch.arange(number),
        )
    else:
        held = np.load(options.photos)
        images = torch.tensor(held["images"][:number]).permute(0, 3, 1, 2).float() / 255
        labels = torch.tensor(held["labels"][:number]).long()
    if images.shape[-1] != options.size:
        images = nn.functional.interpolate(
            images, (options.size, options.size), mode="bilinear", antialias=True
        )
        images = (255 * images).round() / 255  # a photo's levels
    return images, labels % CLASSES


def narrow(width: int) -> ResNet:
    """ResNet-18 with so many channels in its first stage."""
    model = ResNet(BasicBlock, [2, 2, 2, 2], num_classes=CLASSES)
    model.inplanes, model.bn1 = width, nn.BatchNorm2d(width)
    for number in range(4):
        stage = model._make_layer(BasicBlock, width << number, 2, stride=1 if number == 0 else 2)
        setattr(model, f"layer{number + 1}", stage)
    model.fc = nn.Linear(8 * width, CLASSES)
    return model


def network(options: argparse.Namespace, steps: int) -> nn.Module:
    """torchvision's; for small pictures with the usual stem of 3×3 and no max pooling. Trained by
    SGD on batches of 64."""
    torch.manual_seed(0)
    model = resnet18(num_classes=CLASSES) if options.width == 64 else narrow(options.width)
    if options.size <= 64:
        model.conv1 = nn.Conv2d(3, options.width, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    model.register_forward_pre_hook(Normalize([MEAN] * 3, [SPREAD] * 3))
    model = model.to(options.device).train()
    if steps:
        images, labels = (
            given[OTHERS:].to(options.device) for given in pictures(options, 5 * OTHERS)
        )
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        for drawn in torch.randint(len(images), (steps, 64), device=options.device):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[drawn]), labels[drawn]).backward()
            optimizer.step()
    return model


if __name__ == "__main__":
    main()
