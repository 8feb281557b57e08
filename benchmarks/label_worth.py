"""What a right label is worth: pictures by gradient matching with the true soft label, the recovered, the hard and a wrong one.

    python benchmarks/label_worth.py --photos FILE.npz --device cuda --json worth.json
    python benchmarks/label_worth.py --table worth.json                      # the page's tables
    python benchmarks/label_worth.py --photos embedded --pictures 4 --grid worth.png

One photo of 32² is one client's batch. Its label is smoothed (ε uniform in 0…0.5) or mixed with another photo's (weight uniform
in 0…1); `soft` finds label and features in the gradient of the head's weights. Then pixels are searched whose gradient is the one
received, as in the soft-label paper:

    g    D(∇(x), ĝ) + 0.01 TV(x)
    f    the head's gradient left out of D, and F(feat(x), f̂) added         gf   both
    cosine  D, F = 1 − cos; Adam, rate 0.1, ×0.1 at 3/8, 5/8 and 7/8 of 4800 steps; pixels kept in [0, 1]
    l2      D, F = relative squared distance; L-BFGS, rate 1, 300 steps of 20, no line search; what diverges begins anew

The features f̂ are the recovered ones whatever the label, so that only the label differs. `hard` is the true label's largest
class, `wrong` another class. Noise is DP-SGD's for one sample whose gradient the clipping norm spares: Gaussian, on every entry.

All searches of one network and optimizer run as one batch, because samples do not see each other in eval mode. Gradients of
single samples are never formed: with a layer's inputs a (c × T) and errors δ (o × T), ⟨δ aᵀ, Ĝ⟩ = ⟨δ, Ĝ a⟩ and
‖δ aᵀ‖² = ⟨δᵀδ, aᵀa⟩.
At the true picture and label the distance is compared with 0 before anything is searched.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import unsum
from unsum.bench import Network
from unsum.bench.networks import build
from unsum.cuda_graph import recorded
from unsum.data import embedded_batch, read_photos
from unsum.head import find_head
from unsum.match.optimizers import decayed
from unsum.score.pictures import psnr, ssim

CLASSES, SIDE = 100, 32  # of CIFAR-100
KINDS, MODES, LABELS = ("smoothing", "mixup"), ("g", "f", "gf"), ("true", "recovered", "hard", "wrong")
VARIANTS = list(itertools.product(MODES, LABELS))
NETWORKS = {
    "lenet": "lenet ±0.5",
    "resnet18": "resnet18",
}  # the paper's initialization of its LeNet, torchvision's ResNet-18
STEPS = {"cosine": 4800, "l2": 300}
RATE, BETAS, EPSILON = 0.1, (0.9, 0.999), 1e-8  # of Adam
INNER, HISTORY, LEAST_CURVATURE = 20, 100, 1e-10  # of L-BFGS, as torch has them
TOTAL_VARIATION = 1e-2


@dataclass(frozen=True)
class Case:
    """One photo, its label and what the client sends of it; what `soft` finds there."""

    kind: str
    noise: float
    image: Tensor
    labels: Tensor  # (4, C) in the order of LABELS
    features: Tensor
    sent: dict[str, Tensor]
    right: bool  # every entry of the recovered label is within 1e-3


def case(model: nn.Module, photos: Tensor, classes: Tensor, number: int, kind: str, noise: float) -> Case:
    random = torch.Generator().manual_seed(number)
    first, second = torch.randperm(len(photos), generator=random)[:2].tolist()
    weight = float(torch.rand(1, generator=random))
    rows = functional.one_hot(classes[[first, second]], CLASSES).float()
    image, target = photos[first : first + 1], rows[:1] * (1 - weight / 2) + weight / 2 / CLASSES
    if kind == "mixup":
        image = weight * image + (1 - weight) * photos[second : second + 1]
        target = weight * rows[:1] + (1 - weight) * rows[1:]
    device = next(model.parameters()).device
    update = unsum.capture(model, image.to(device), target.to(device), train=False)
    sent = {
        name: g + noise * torch.randn(g.shape, generator=random).to(g) if noise else g
        for name, g in update.gradients.items()
    }
    weights = f"{find_head(model)[0]}.weight"
    leak = unsum.separate(model, unsum.Update({weights: sent[weights]}), "soft", batch_size=1, seed=number)
    found = leak.targets.cpu().float()
    hard = int(target.argmax())
    wrong = (hard + 1 + int(torch.randint(CLASSES - 1, (1,), generator=random))) % CLASSES
    named = functional.one_hot(torch.tensor([hard, wrong]), CLASSES).float()
    right = bool((found - target).abs().max() < 1e-3)
    return Case(kind, noise, image[0], torch.cat([target, found, named]), leak.features[0].float(), sent, right)


class Watched:
    """What enters and leaves every layer with parameters, of one pass."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.seen: list[tuple[str, nn.Module, Tensor, Tensor]] = []
        for name, module in model.named_modules():
            if isinstance(module, nn.ReLU):
                module.inplace = False
            if isinstance(module, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
                module.register_forward_hook(self._note(name))

    def _note(self, name: str) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def note(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            self.seen.append((name, module, inputs[0], output))
            return output.clone()  # residual blocks add to it in place

        return note

    def __call__(self, pictures: Tensor, targets: Tensor) -> list[tuple[str, nn.Module, Tensor, Tensor]]:
        """(name, layer, its inputs, the loss's derivative by its outputs), all differentiable by the pictures."""
        self.seen = []
        logits = self.model(pictures)
        outputs = [output for *_, output in self.seen]
        errors = torch.autograd.grad(logits, outputs, logits.softmax(1) - targets, create_graph=True)
        return [(name, layer, a, error) for (name, layer, a, _), error in zip(self.seen, errors, strict=True)]


class Misfit:
    """What is minimized, for V variants of each of K cases: `rows` (K·V,) losses."""

    def __init__(self, model: nn.Module, cases: list[Case], distance: str, device: str) -> None:
        self.watched, self.distance, self.head = Watched(model), distance, find_head(model)[0]
        K, V = len(cases), len(VARIANTS)
        self.K = K
        self.sent = {name: torch.stack([one.sent[name] for one in cases]).to(device) for name in cases[0].sent}
        self.features = torch.stack([one.features for one in cases]).repeat_interleave(V, 0).to(device)
        own = [LABELS.index(label) for _, label in VARIANTS]
        self.targets = torch.cat([one.labels[own] for one in cases]).to(device)
        self.gradients = torch.tensor([mode != "f" for mode, _ in VARIANTS] * K, dtype=torch.float32, device=device)
        self.feats = torch.tensor([mode != "g" for mode, _ in VARIANTS] * K, dtype=torch.float32, device=device)
        heads = (f"{self.head}.weight", f"{self.head}.bias")
        sizes = {name: g.flatten(1).square().sum(1) for name, g in self.sent.items()}
        below = sum(size for name, size in sizes.items() if name not in heads)
        above = sum(size for name, size in sizes.items() if name in heads)
        self.size = below.repeat_interleave(V) + self.gradients * above.repeat_interleave(V)  # type: ignore[union-attr]

    def __call__(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """(K·V,) what is minimized, and the distance of gradients alone."""
        dot, square, features = self._products(self.watched(pictures, self.targets))
        if self.distance == "cosine":
            apart = 1 - dot / (square * self.size).sqrt().clamp_min(1e-20)
            feature = 1 - functional.cosine_similarity(features, self.features, dim=1)
        else:
            apart = (square - 2 * dot) / self.size + 1
            feature = (features - self.features).square().sum(1) / self.features.square().sum(1)
        down, across = pictures.diff(dim=2).abs(), pictures.diff(dim=3).abs()
        variation = down.flatten(1).mean(1) + across.flatten(1).mean(1)
        return apart + self.feats * feature + TOTAL_VARIATION * variation, apart

    def _products(self, layers: Iterable[tuple[str, nn.Module, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
        """⟨g, ĝ⟩ and ‖g‖² over the gradients that count, and the features."""
        dot, square = torch.zeros_like(self.size), torch.zeros_like(self.size)
        features = torch.empty(0)
        for name, layer, inputs, error in layers:
            counts = self.gradients if name == self.head else torch.ones_like(self.gradients)
            if name == self.head:
                features = inputs.flatten(1)
            for d, s in self._of(name, layer, inputs, error):
                dot, square = dot + counts * d, square + counts * s
        return dot, square, features

    def _of(self, name: str, layer: nn.Module, inputs: Tensor, error: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
        if isinstance(layer, nn.BatchNorm2d):
            scale = (layer.running_var + layer.eps).rsqrt()
            normed = (inputs - layer.running_mean[:, None, None]) * scale[:, None, None]
            yield self._vector(f"{name}.weight", (error * normed).sum((2, 3)))
            yield self._vector(f"{name}.bias", error.sum((2, 3)))
            return
        if isinstance(layer, nn.Conv2d):
            a = functional.unfold(inputs, layer.kernel_size, padding=layer.padding, stride=layer.stride)  # type: ignore[arg-type]
            delta = error.flatten(2)
        else:
            a, delta = inputs.flatten(1)[..., None], error[..., None]
        if layer.bias is not None:
            yield self._vector(f"{name}.bias", delta.sum(2))
        sent, V = self.sent[f"{name}.weight"].flatten(2), len(VARIANTS)
        side_by_side = (
            a.view(self.K, V, *a.shape[1:]).transpose(1, 2).flatten(2)
        )  # (K, c, V T): one product for all variants
        through = (sent @ side_by_side).view(self.K, sent.shape[1], V, -1).transpose(1, 2).reshape(delta.shape)
        yield (through * delta).sum((1, 2)), ((a.mT @ a) * (delta.mT @ delta)).sum((1, 2))

    def _vector(self, name: str, found: Tensor) -> tuple[Tensor, Tensor]:
        sent = self.sent[name].repeat_interleave(len(VARIANTS), 0)
        return (found * sent).sum(1), found.square().sum(1)

    def check(self, cases: list[Case], device: str) -> float:
        """The largest distance at the true picture with the true label where nothing disturbs it: 0 but for rounding."""
        pictures = torch.stack([one.image for one in cases]).repeat_interleave(len(VARIANTS), 0).to(device)
        with torch.enable_grad():
            apart = self(pictures.requires_grad_())[1].detach().view(len(cases), -1)
        clean = [k for k, one in enumerate(cases) if one.noise == 0]
        return float(apart[clean][:, [v for v, (_, label) in enumerate(VARIANTS) if label == "true"]].abs().max())


class Search:
    """Pictures (N, 3, 32, 32) on their way down; `best` keeps the lowest loss of each."""

    def __init__(self, misfit: Misfit, count: int, device: str, seed: int) -> None:
        self.misfit, self.seed, self.anew = misfit, seed, 0
        # Variants of a case begin at the same picture, as far as nothing diverges.
        start = torch.randn(count // len(VARIANTS), 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
        self.x = start.repeat_interleave(len(VARIANTS), 0).to(device).requires_grad_()
        self.best, self.least = self.x.detach().clone(), torch.full((count,), math.inf, device=device)

    def _look(self) -> tuple[Tensor, Tensor]:
        """(N,) losses and the pictures' derivatives here; remembers what is lower than ever before."""
        losses = self.misfit(self.x)[0]
        (gradient,) = torch.autograd.grad(losses.sum(), self.x)
        losses, lower = losses.detach(), losses.detach() < self.least
        self.least.copy_(torch.where(lower, losses, self.least))
        self.best.copy_(torch.where(lower[:, None, None, None], self.x.detach(), self.best))
        return losses, gradient

    def adam(self, steps: int, until: float) -> int:
        x = self.x.detach()
        x.clamp_(0, 1)
        first, second = torch.zeros_like(x), torch.zeros_like(x)
        rate, count = torch.zeros((), device=x.device), torch.zeros((), device=x.device)

        def work() -> None:
            gradient = self._look()[1]
            count.add_(1)
            first.lerp_(gradient, 1 - BETAS[0])
            second.mul_(BETAS[1]).add_((1 - BETAS[1]) * gradient.square())
            size = (second / (1 - BETAS[1] ** count)).sqrt() + EPSILON
            x.sub_(rate * first / (1 - BETAS[0] ** count) / size).clamp_(0, 1)

        run = recorded(work, x.device)[0]  # a first run at rate 0 warms up, and moves nothing
        for tensor in (first, second, count):
            tensor.zero_()
        for step in range(steps):
            rate.fill_(decayed(RATE, step / steps))
            run()
            if step % 50 == 0 and _late(x, until):
                return step + 1
        return steps

    def lbfgs(self, steps: int, until: float) -> int:
        x = self.x.detach()
        N, D = len(x), x[0].numel()
        S, Y = (x.new_zeros(HISTORY, N, D) for _ in range(2))
        rho, gamma, fresh = x.new_zeros(HISTORY, N), x.new_ones(N), x.new_ones(N)
        last, step, bad = x.new_zeros(N, D), x.new_zeros(N, D), x.new_zeros(N, dtype=torch.bool)
        moving = torch.zeros((), device=x.device)

        def work() -> None:
            losses, gradient = self._look()
            g = gradient.flatten(1)
            y, curvature = g - last, ((g - last) * step).sum(1)
            keep = (curvature > LEAST_CURVATURE) & (fresh == 0)
            for memory, new in ((S, step), (Y, y)):
                memory.copy_(torch.cat([memory[1:], torch.where(keep[:, None], new, 0.0)[None]]))
            rho.copy_(torch.cat([rho[1:], torch.where(keep, 1 / curvature, 0.0)[None]]))  # 0: as if it were not there
            gamma.copy_(torch.where(keep, curvature / y.square().sum(1), gamma))
            q, alphas = -g, []
            for pair in reversed(range(HISTORY)):
                alphas.append(rho[pair] * (S[pair] * q).sum(1))
                q = q - alphas[-1][:, None] * Y[pair]
            q = q * gamma[:, None]
            for pair, alpha in enumerate(reversed(alphas)):
                q = q + (alpha - rho[pair] * (Y[pair] * q).sum(1))[:, None] * S[pair]
            first = -g * (1 / g.abs().sum(1)).clamp(max=1)[:, None]
            step.copy_(torch.where(fresh[:, None] > 0, first, q) * moving)
            last.copy_(g)
            fresh.zero_()
            bad.copy_(~torch.isfinite(losses) | ~torch.isfinite(step).all(1) | ~g.any(1))
            step.copy_(torch.where(bad[:, None], 0.0, step))
            x.add_(step.view_as(x))

        run = recorded(work, x.device)[0]
        gamma.fill_(1), fresh.fill_(1), moving.fill_(1), rho.zero_()
        for number in range(steps):
            for _ in range(INNER):
                run()
            for n in bad.nonzero().flatten().tolist():  # diverged, as it does without a line search: begins anew
                self.anew += 1
                random = torch.Generator().manual_seed(self.seed + 7919 * self.anew)
                x[n] = torch.randn(3, SIDE, SIDE, generator=random).to(x)
                S[:, n], Y[:, n], rho[:, n], gamma[n], fresh[n] = 0, 0, 0, 1, 1
            if _late(x, until):
                return number + 1
        return steps


def _late(x: Tensor, until: float) -> bool:
    if x.device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() > until


def searched(
    name: str, distance: str, options: argparse.Namespace, until: float
) -> tuple[list[dict[str, Any]], Tensor]:
    """Rows of figures, and (K, 1 + V, 3, 32, 32) the photos and what was found."""
    start = time.monotonic()
    model = build(Network(NETWORKS[name], SIDE, CLASSES), seed=0, weights=None).eval().to(options.device)
    photos, classes = read(options.photos)
    noises = options.noise if name == "lenet" else [0.0]
    kinds = itertools.product(range(options.pictures), KINDS, noises)
    cases = [case(model, photos, classes, number, kind, noise) for number, kind, noise in kinds]
    model.requires_grad_(False)  # from here on derivatives by pictures alone
    misfit = Misfit(model, cases, distance, options.device)
    off = misfit.check(cases, options.device)
    assert off < 1e-4, f"At the true pictures the distance is {off:.1e}."
    search = Search(misfit, len(cases) * len(VARIANTS), options.device, seed=1)
    steps = options.steps or STEPS[distance]
    taken = search.adam(steps, until) if distance == "cosine" else search.lbfgs(max(1, steps), until)
    found = search.best.clamp(0, 1).cpu().view(len(cases), len(VARIANTS), 3, SIDE, SIDE)
    least = search.least.cpu().view(len(cases), len(VARIANTS))
    spent = time.monotonic() - start
    print(f"{name} {distance}: {taken} of {steps} steps in {spent:.0f} s, {search.anew} began anew", flush=True)
    rows = [
        {
            "network": name, "distance": distance, "kind": one.kind, "noise": one.noise, "mode": mode, "label": label,
            "right": one.right, "steps": taken, "loss": float(least[k, v]),
            "psnr": psnr(found[k, v], one.image), "ssim": ssim(found[k, v], one.image),
        }
        for k, one in enumerate(cases)
        for v, (mode, label) in enumerate(VARIANTS)
    ]  # fmt: skip
    return rows, torch.cat([torch.stack([one.image for one in cases])[:, None], found], 1)


def read(photos: str) -> tuple[Tensor, Tensor]:
    if photos == "embedded":
        batch = embedded_batch(16, image_size=SIDE)
        return batch.images, torch.arange(len(batch.images))
    found = read_photos(photos, size=SIDE)
    return found.images.float() / 255, found.labels % CLASSES


def table(rows: list[dict[str, Any]]) -> str:
    """PSNR and standard error over photos; SSIM in brackets."""
    lines = [
        "| network | distance | label is | noise | mode | photos | " + " | ".join(LABELS) + " |",
        "|---" * 10 + "|",
    ]
    groups: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("network", "distance", "kind", "noise", "mode"))
        groups.setdefault(key, {}).setdefault(row["label"], []).append(row)
    for key, by_label in sorted(groups.items(), key=lambda group: [str(part) for part in group[0]]):
        cells = []
        for label in LABELS:
            values = [row["psnr"] for row in by_label[label]]
            error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan
            cells.append(
                f"{statistics.mean(values):.2f} ± {error:.2f} ({statistics.mean(r['ssim'] for r in by_label[label]):.2f})"
            )
        lines.append(f"| {' | '.join(map(str, key))} | {len(values)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def grid(pictures: Tensor, path: Path) -> None:
    """One row for each photo: the photo, then mode gf with the true, the recovered, the hard and a wrong label."""
    from torchvision.utils import save_image

    shown = [0, *(1 + VARIANTS.index(("gf", label)) for label in LABELS)]
    chosen = pictures[:, shown].flatten(0, 1)
    save_image(
        functional.interpolate(chosen, scale_factor=2, mode="nearest"), path, nrow=len(shown), padding=2, pad_value=1
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", default="embedded", help="npz or tar of photos; embedded: those of the package")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--distances", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--pictures", type=int, default=16)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 1e-4, 1e-3, 1e-2], help="for LeNet")
    parser.add_argument("--steps", type=int, help="instead of the published ones")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for all searches, evenly")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--grid", type=Path)
    parser.add_argument("--table", type=Path, nargs="+")
    options = parser.parse_args()
    if options.table:
        print(table([row for path in options.table for row in json.loads(path.read_text())]))
        return
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    rows, end = [], time.monotonic() + options.seconds
    searches = list(itertools.product(options.networks, options.distances))
    for number, (name, distance) in enumerate(searches):
        now = time.monotonic()
        found, pictures = searched(name, distance, options, now + (end - now) / (len(searches) - number))
        rows += found
        if options.json:
            options.json.write_text(json.dumps(rows))
        if options.grid:
            grid(pictures, options.grid)
    print(table(rows))


if __name__ == "__main__":
    main()
