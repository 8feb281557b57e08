"""What a step towards the pixels costs, and how well the first layer tells the contrast: trained networks, train mode.

python benchmarks/pixel_steps.py products --photos cifar.npz --size 16 --width 32 --steps 0 300 --batch 2 4
python benchmarks/pixel_steps.py contrast --photos cifar.npz --size 16 --width 32 --steps 0 300 --batch 4 8

`products`: one Gauss–Newton step from pictures that are a thousandth off, from the true maps of --layer, by conjugate gradients
with each picture's own JᵀJ and without. `contrast`: the factor that is told of true pictures, with channels that count by
their own rounding and with channels that count alike, for three batches.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import unsum
from pixels import CLASSES, network, pictures
from unsum.gradients import same_buffers
from unsum.invert.pixels import contrast
from unsum.invert.pixels.descend import least_squares
from unsum.invert.pixels.equations import Equations, posed, read_by
from unsum.invert.pixels.own_squares import OwnSquares, compute
from unsum.invert.pixels.photos import without_normalization

OFF = 1e-3  # of pictures, before the step
BATCHES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["products", "contrast"])
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, nargs="+", default=[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[4])
    parser.add_argument("--layer", default="layer2.0.conv2")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    heads = {
        "products": "| steps | B | products | the error of the step | with own squares | its error |",
        "contrast": "| steps | B | batch | error, channels alike | by their rounding | predicted |",
    }
    print(heads[options.task] + "\n|" + "---|" * 6)
    for steps in options.steps:
        model, normalize = without_normalization(network(options, steps))
        assert normalize is not None
        for B in options.batch:
            photos, labels = (given.to(options.device) for given in pictures(options, BATCHES * B))
            (inputs,) = normalize(model, (photos,))
            if options.task == "products":
                print(f"| {steps} | {B} | {products(model, options.layer, inputs[:B])}", flush=True)
                continue
            for number, (x, y) in enumerate(zip(inputs.split(B), labels.split(B), strict=True)):
                print(f"| {steps} | {B} | {number} | {told(model, x, y)}", flush=True)


def products(model: nn.Module, layer: str, x: Tensor) -> str:
    """Products and error of one step, without own squares and with them; the scale of the batch is left out of errors."""
    with torch.no_grad(), same_buffers(model):
        maps = read_by(model, layer, x)
    off = OFF * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    found = []
    with posed(model, {layer: maps}, torch.float64) as equations:
        start = (x + off).double()
        linear = equations.linear(lambda z: z, start)
        none, tight = (torch.full((len(x), 1, 1, 1), value).to(start) for value in (0.0, 1e-4))
        for helped in (False, True):
            one: Equations = replace(equations, own=OwnSquares())
            if helped:
                compute(one, start)
            step = least_squares(one, linear, -linear.residual, none, tight)
            left = start + step
            left = (left * x).sum() / left.square().sum() * left - x
            found.append(f"{one.own.products} | {float(left.norm() / x.norm()):.0e}")
    return " | ".join(found) + " |"


def told(model: nn.Module, x: Tensor, y: Tensor) -> str:
    """Relative errors of the contrast of true pictures."""
    update = unsum.capture(model, x, y, train=True)
    targets = nn.functional.one_hot(y, CLASSES).double()
    own, alike = contrast._spread, lambda _missed, W, g: W.flatten(1).norm(dim=1) * g.flatten(1).norm(dim=1)
    found = []
    for contrast._spread in (alike, own):
        found.append(contrast.told_scale(model, update, x, targets))
    errors = ["nothing is told" if one is None else f"{abs(one.factor - 1):.2%}" for one in found]
    return " | ".join([*errors, "" if found[1] is None else f"{found[1].error:.2%}"]) + " |"


if __name__ == "__main__":
    main()
