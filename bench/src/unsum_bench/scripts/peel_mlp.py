"""Exact inputs, layer by layer: how good, how fast, how deep, and where it ends. One table per word
on the command line.

python -m unsum_bench.scripts.peel_mlp single  # the soft-label paper's network and one photo
python -m unsum_bench.scripts.peel_mlp batches  # B = 8 … 64, C = 100 and 1000, all kinds of labels
python -m unsum_bench.scripts.peel_mlp others  # Cocktail Party, Phong's ratio and DLG beside it
python -m unsum_bench.scripts.peel_mlp depth  # float32 and float64 gradients, 2 to 12 layers
python -m unsum_bench.scripts.peel_mlp conv  # CNN6, CNN6-d, LeNet, a small VGG-like network
# sixteen photos of one batch, above what came back
python -m unsum_bench.scripts.peel_mlp picture FILE.png
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.utils import make_grid, save_image

import unsum
from unsum.data import embedded_batch, read_photos
from unsum.running.deadline import time_limit
from unsum.score.samples import assign, psnr
from unsum_bench.scripts.cases import soft_targets

HE = 2**0.5
KINDS = ("distinct", "half", "same", "smooth", "mixup")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "table", choices=["single", "batches", "others", "depth", "conv", "picture"]
    )
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument(
        "--photos",
        type=Path,
        help="a tar or folder of CLASS/name.jpg instead of the embedded photos",
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--inits", nargs="+", default=["fresh", "he"])
    options = parser.parse_args()
    tables = {
        "single": single,
        "batches": batches,
        "others": others,
        "depth": depth,
        "conv": conv,
        "picture": picture,
    }
    tables[options.table](options)


def photos(options: argparse.Namespace, B: int, side: int) -> Tensor:
    """(B, 3, side, side) in [0, 1]; more than the sixteen embedded ones are their mirror images and
    turned copies."""
    if options.photos is None:
        own = embedded_batch(min(B, 16), image_size=side).images
        turned = [own, own.flip(3), own.flip(2), own.transpose(2, 3)]
        return torch.cat(turned)[:B].contiguous()
    return read_photos(options.photos, size=side, limit=B).images.float() / 255


def mlp(
    widths: list[int], *, init: str = "fresh", activation: type[nn.Module] = nn.ReLU, seed: int = 0
) -> nn.Sequential:
    """Linear layers without bias; `fresh` is PyTorch's default initialization, `he` keeps
    activations at one size."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    for n, m in itertools.pairwise(widths):
        layers += [nn.Linear(n, m, bias=False), activation()]
        if init == "he":
            nn.init.normal_(layers[-2].weight, 0, HE / n**0.5)
    return nn.Sequential(*layers[:-1])


def labels(B: int, C: int, kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(B)
    chosen = torch.randperm(C, generator=generator)[:B]
    if kind == "same":
        chosen[:] = chosen[0]
    if kind == "half":
        chosen[: (B + 1) // 2] = chosen[0]
    return soft_targets(chosen, C, kind, generator)


def quality(found: Tensor, true: Tensor) -> list[float]:
    """PSNR per photo, paired with the truth; 0 for photos that were not found."""
    pairs = assign(found.flatten(1).float(), true.flatten(1).float())
    return [
        0.0 if j is None else psnr(found[j].float().clamp(0, 1).cpu(), true[i])
        for i, j in enumerate(pairs)
    ]


def single(options: argparse.Namespace) -> None:
    print(
        "| photo | labels | separate s | peel s | PSNR dB | certified |\n|---|---|---|---|---|---|"
    )
    model = mlp([12288, 4096, 1024, 256, 17])
    images = photos(options, 5, 64)
    for i, kind in itertools.product(range(len(images)), ("distinct", "smooth")):
        x = images[i : i + 1]
        update = unsum.capture(model, x, labels(1, 17, kind))
        peeled, first, second = timed(model, update)
        print(
            (
                f"| {i + 1} | {kind} | {first:.2f} | {second:.2f} | "
                f"{quality(peeled.inputs, x)[0]:.1f} | {sure(peeled)} |"
            ),
            flush=True,
        )


def timed(model: nn.Module, update: unsum.Update) -> tuple[unsum.Peeled, float, float]:
    leak = unsum.separate(model, update)
    start = time.perf_counter()
    peeled = unsum.peel(model, update, leak)
    return peeled, leak.seconds, time.perf_counter() - start


def sure(peeled: unsum.Peeled) -> str:
    return f"{int(peeled.exact.sum())}/{len(peeled.exact)}"


def batches(options: argparse.Namespace) -> None:
    print(
        "| init | C | B | labels | separate s | peel s | features certified | worst dB | mean dB | "
        "inputs certified |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for init, C, B, kind in itertools.product(
        options.inits, options.classes, options.batches, options.kinds
    ):
        model, x = mlp([12288, 2048, 1024, 512, C], init=init), photos(options, B, 64)
        update = unsum.capture(model, x, labels(B, C, kind))
        leak = unsum.separate(model, update)
        try:
            peeled = unsum.peel(model, update, leak)
        except unsum.UnsumError as reason:
            print(
                f"| {init} | {C} | {B} | {kind} | {leak.seconds:.2f} | – | no | – | – | {reason} |",
                flush=True,
            )
            continue
        values = quality(peeled.inputs, x)
        print(
            f"| {init} | {C} | {B} | {kind} | {leak.seconds:.2f} | {peeled.seconds:.2f} | "
            f"{'yes' if leak.exact else 'no'} | {min(values):.0f} | {statistics.fmean(values):.0f} "
            f"| {sure(peeled)} |",
            flush=True,
        )


def others(options: argparse.Namespace) -> None:
    print("| B | method | seconds | mean dB | worst dB |\n|---|---|---|---|---|")
    for B in options.batches:
        x = photos(options, B, 32)
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Flatten(),
            nn.Linear(3072, 512),
            nn.ReLU(),
            nn.Linear(512, 256),
            nn.ReLU(),
            nn.Linear(256, 100),
        )
        update = unsum.capture(model, x, labels(B, 100, "distinct"))
        runs = {"layers": {}, "cocktail": {"batch_size": B}, "phong-input": {}}
        for method, own in runs.items():
            peeled = unsum.peel(model, update, method=method, **own)
            values = quality(peeled.inputs, x)
            print(
                (
                    f"| {B} | {method} | {peeled.seconds:.2f} | {statistics.fmean(values):.1f} | "
                    f"{min(values):.1f} |"
                ),
                flush=True,
            )
        start = time.perf_counter()
        values = quality(deep_leakage(model, update, x.shape), x)
        seconds = time.perf_counter() - start
        print(
            f"| {B} | dlg | {seconds:.2f} | {statistics.fmean(values):.1f} | {min(values):.1f} |",
            flush=True,
        )


def deep_leakage(model: nn.Module, update: unsum.Update, shape: torch.Size) -> Tensor:
    """DLG: pictures and soft labels whose gradient matches the update, ‖∇ − ∇′‖², by 300 steps of
    L-BFGS; B is granted."""
    torch.manual_seed(0)
    pictures = torch.randn(shape, requires_grad=True)
    guesses = torch.randn(len(pictures), 100, requires_grad=True)
    seen = [update.gradients[name] for name, _ in model.named_parameters()]
    optimizer = torch.optim.LBFGS([pictures, guesses], lr=1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), guesses.softmax(1))
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        distance = sum((a - b).square().sum() for a, b in zip(gradients, seen, strict=True))
        distance.backward(inputs=[pictures, guesses])
        return distance

    for _ in range(300):
        optimizer.step(closure)
    return pictures.detach()


def depth(options: argparse.Namespace) -> None:
    """The separation always starts from float32, as the separator does; the layers are peeled in
    the gradient's precision."""
    print(
        "| gradients | init | hidden layers | predicted error | worst error | certified "
        "|\n|---|---|---|---|---|---|"
    )
    for dtype, init, count in itertools.product(
        (torch.float32, torch.float64), options.inits, (1, 2, 4, 6, 8, 12)
    ):
        model = mlp([3072, *[256] * count, 50], init=init).to(dtype)
        x = photos(options, 8, 32).to(dtype)
        update = unsum.capture(model, x, labels(8, 50, "distinct"))
        leak = unsum.separate(copy.deepcopy(model).float(), update.map(lambda _, g: g.float()))
        name = "float32" if dtype == torch.float32 else "float64"
        try:
            peeled = unsum.peel(model, update, leak)
        except unsum.UnsumError:
            print(
                f"| {name} | {init} | {count} | – | the separation found nothing | 0/8 |",
                flush=True,
            )
            continue
        true = x.flatten(1).double()
        errors = (
            (torch.cdist(peeled.inputs.flatten(1).double(), true) / true.norm(dim=1)).min(0).values
        )
        print(
            (
                f"| {name} | {init} | {count} | {float(peeled.errors.max()):.0e} | "
                f"{float(errors.max()):.0e} | {sure(peeled)} |"
            ),
            flush=True,
        )


def conv(options: argparse.Namespace) -> None:
    print(
        "| network | B | seconds | layers peeled | ended at | dimensions free | mean dB | worst dB "
        "| certified |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for (name, build), B in itertools.product(NETWORKS.items(), options.batches):
        torch.manual_seed(0)
        model, x = build(), photos(options, B, 32)
        update = unsum.capture(model, x, labels(B, 100, "distinct"))
        try:
            peeled = unsum.peel(model, update)
        except unsum.UnsumError as reason:
            print(f"| {name} | {B} | – | 0 | {reason} | | | | |", flush=True)
            continue
        last = peeled.layers[-1]
        values = quality(peeled.inputs, x) if peeled.complete else []
        figures = f"{statistics.fmean(values):.1f} | {min(values):.1f}" if values else "– | –"
        good = sum(layer.determined for layer in peeled.layers)
        ended = "the input" if peeled.complete else f"{last.name!r}"
        print(
            f"| {name} | {B} | {peeled.seconds:.1f} | {good} | {ended} | {last.deficiency} of "
            f"{last.unknowns} | {figures} | {sure(peeled)} |",
            flush=True,
        )


def cnn6(second: int = 36) -> nn.Sequential:
    """R-GAP's network with 100 logits in place of one; `second` = 20 is its rank-deficient
    CNN6-d."""
    sizes = [
        (3, 12, 4, 2, 2),
        (12, second, 3, 2, 1),
        (second, 36, 3, 1, 1),
        (36, 36, 3, 1, 1),
        (36, 64, 3, 2, 1),
        (64, 128, 3, 1, 1),
    ]
    layers: list[nn.Module] = []
    for n, m, kernel, stride, padding in sizes:
        layers += [nn.Conv2d(n, m, kernel, stride, padding, bias=False), nn.LeakyReLU(0.2)]
        nn.init.kaiming_normal_(layers[-2].weight)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(3200, 100, bias=False))


def lenet() -> nn.Sequential:
    """The LeNet of the gradient-leakage papers: sigmoids, weights uniform in ±0.5."""
    layers: list[nn.Module] = []
    for n, stride in ((3, 2), (12, 2), (12, 1), (12, 1)):
        layers += [nn.Conv2d(n, 12, 5, stride, 2), nn.Sigmoid()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(768, 100))
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def vgg() -> nn.Sequential:
    """3×3 convolutions and ReLU, strides in place of pooling, two linear layers."""
    layers: list[nn.Module] = []
    for n, m, stride in ((3, 64, 1), (64, 128, 2), (128, 128, 1)):
        layers += [nn.Conv2d(n, m, 3, stride, 1), nn.ReLU()]
        nn.init.kaiming_normal_(layers[-2].weight)
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(128 * 16 * 16, 128), nn.ReLU(), nn.Linear(128, 100)
    )


NETWORKS = {
    "CNN6": cnn6,
    "CNN6-d": lambda: cnn6(20),
    "LeNet, sigmoid": lenet,
    "VGG-like, ReLU": vgg,
}


def picture(options: argparse.Namespace) -> None:
    """All sixteen embedded photos in one batch, half of them with one label; the upper lines are
    the originals."""
    if options.file is None:
        raise SystemExit("name the picture's file")
    x = photos(options, 16, 64)
    model = mlp([12288, 2048, 1024, 512, 100])
    peeled = unsum.peel(model, unsum.capture(model, x, labels(16, 100, "half")))
    pairs = assign(peeled.inputs.flatten(1).float(), x.flatten(1))
    found = torch.stack([peeled.inputs[j].float().clamp(0, 1) for j in pairs if j is not None])
    rows = torch.cat([x[:8], found[:8], x[8:], found[8:]])
    save_image(
        make_grid(
            rows.repeat_interleave(2, 2).repeat_interleave(2, 3), nrow=8, padding=4, pad_value=1.0
        ),
        options.file,
    )
    print(
        f"{min(quality(peeled.inputs, x)):.0f} dB or better, {sure(peeled)} certified, "
        f"{peeled.seconds:.2f} s"
    )


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
