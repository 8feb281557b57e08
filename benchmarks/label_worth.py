"""What a right label is worth: pictures by gradient matching with the true soft label, the recovered, the hard and a wrong one.

    python benchmarks/label_worth.py --photos FILE.npz --device cuda --seconds 120 --fit --json worth.json
    python benchmarks/label_worth.py --photos FILE.npz --networks lenet --together 1 --share 1/8 --json worth-1.json
    python benchmarks/label_worth.py --table worth.json worth-*.json         # the page's tables
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

All searches of one network and optimizer run as one batch, because samples do not see each other in eval mode; on a GPU that is
fastest, on a CPU few photos at a time (`--together`) stay in its cache. What is written to `--json` is not searched again.
With a layer's inputs a (T × c) and errors δ (T × o) a sample's gradient is G = δᵀa. It is formed where there are many places T;
where they are few, ⟨G, Ĝ⟩ = ⟨δ, a Ĝᵀ⟩ and ‖G‖² = ⟨δδᵀ, aaᵀ⟩ are cheaper.
At the true picture and label the distance is compared with 0 before anything is searched.
"""

from __future__ import annotations

import argparse
import copy
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

import no_rich  # noqa: F401 (before the bench)
import unsum
from unsum.bench import Network
from unsum.bench.networks import build
from unsum.cuda_graph import recorded
from unsum.data import embedded_batch, read_photos
from unsum.deadline import time_limit
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


class Unfold(torch.autograd.Function):
    """(N, H, W, C) → (N, H', W', k, k, C): what a convolution's kernel sees at every place. Torch's own launches a kernel a
    picture on a GPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int, stride: int, before: int, places: int) -> Tensor:
        ctx.geometry, ctx.side = (k, stride, before, places), x.shape[1]
        after = (places - 1) * stride + k - x.shape[1] - before
        padded = functional.pad(x, (0, 0, before, after, before, after))
        N, H, W, C = padded.shape
        shape, strides = (N, places, places, k, k, C), (H * W * C, stride * W * C, stride * C, W * C, C, 1)
        return padded.contiguous().as_strided(shape, strides).contiguous()

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, ...]:
        return Fold.apply(by[0], ctx.side, *ctx.geometry), None, None, None, None  # type: ignore[no-untyped-call]


class Fold(torch.autograd.Function):
    """The adjoint of `Unfold`: rows of the kernel first, then its columns."""

    @staticmethod
    def forward(ctx: Any, seen: Tensor, side: int, k: int, stride: int, before: int, places: int) -> Tensor:
        ctx.geometry = (k, stride, before, places)
        N, C, span = len(seen), seen.shape[-1], (places - 1) * stride + 1
        whole = max(side + before, span + k - 1)
        rows = seen.new_zeros(N, whole, places, k, C)
        for i in range(k):
            rows[:, i : i + span : stride].add_(seen[:, :, :, i])
        found = seen.new_zeros(N, whole, whole, C)
        for j in range(k):
            found[:, :, j : j + span : stride].add_(rows[:, :, :, j])
        return found[:, before : before + side, before : before + side]

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, ...]:
        return Unfold.apply(by[0], *ctx.geometry), None, None, None, None, None  # type: ignore[no-untyped-call]


class Formed(torch.autograd.Function):
    """⟨G, Ĝ⟩ and ‖G‖² of G = δᵀa: (N, T, o), (N, T, c), and Ĝ (K, o, c) of N/K pictures each → (N,), (N,)."""

    @staticmethod
    def forward(ctx: Any, delta: Tensor, a: Tensor, sent: Tensor) -> tuple[Tensor, Tensor]:
        gradient = delta.mT @ a
        ctx.save_for_backward(delta, a, sent, gradient)
        own = gradient.view(len(sent), -1, *sent.shape[1:])
        return (own * sent[:, None]).sum((2, 3)).flatten(), (gradient * gradient).sum((1, 2))

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, ...]:
        delta, a, sent, gradient = ctx.saved_tensors
        own, (dot, square) = gradient.view(len(sent), -1, *sent.shape[1:]), (b.view(len(sent), -1, 1, 1) for b in by)
        whole = torch.addcmul(dot * sent[:, None], own, square, value=2).view_as(gradient)
        return a @ whole.mT, delta @ whole, None


class Unformed(torch.autograd.Function):
    """The same without G, whose entries are many where places are few."""

    @staticmethod
    def forward(ctx: Any, delta: Tensor, a: Tensor, sent: Tensor) -> tuple[Tensor, Tensor]:
        # (K, V T, c) @ (K, c, o): one product for all variants of a case
        through = (a.reshape(len(sent), -1, a.shape[2]) @ sent.mT).view(delta.shape)
        inputs, errors = a @ a.mT, delta @ delta.mT
        ctx.save_for_backward(delta, a, sent, through, inputs, errors)
        return (through * delta).sum((1, 2)), (inputs * errors).sum((1, 2))

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, ...]:
        delta, a, sent, through, inputs, errors = ctx.saved_tensors
        dot, square = (b[:, None, None] for b in by)
        first = ((dot * delta).reshape(len(sent), -1, delta.shape[2]) @ sent).view(a.shape)
        twice = 2 * square
        return torch.baddbmm(dot * through, twice * inputs, delta), torch.baddbmm(first, twice * errors, a), None


@dataclass(frozen=True)
class Seen:
    """One layer in one pass: a (N, T, c), what its weights are multiplied by, and its outputs (N, T, o)."""

    layer: Layer
    a: Tensor
    z: Tensor


class Layer(nn.Module):
    """A convolution, with the BatchNorm behind it (a scale and a shift in eval mode), or a linear layer: one product."""

    def __init__(
        self, name: str, layer: nn.Conv2d | nn.Linear, norm: tuple[str, nn.BatchNorm2d] | None, notes: list[Seen]
    ) -> None:
        super().__init__()
        self.name, self.notes, self.norm = name, notes, norm
        self.convolution = layer if isinstance(layer, nn.Conv2d) else None
        self.biased = layer.bias is not None
        shift = torch.zeros(len(layer.weight)).to(layer.weight) if layer.bias is None else layer.bias.detach()
        self.scale = torch.ones_like(shift)
        if norm is not None:
            bn = norm[1]
            self.scale = (bn.weight / (bn.running_var + bn.eps).sqrt()).detach()
            shift = ((shift - bn.running_mean) * self.scale + bn.bias).detach()
        self.shift, self.weight = shift, layer.weight.detach() * self.scale.view(-1, *[1] * (layer.weight.dim() - 1))
        self.taps, self.matrix = slice(None), self.weight  # (o, c), in the order of what is seen

    def forward(self, x: Tensor) -> Tensor:
        if self.convolution is None:
            z = torch.addmm(self.shift, x, self.weight.T)[:, None]
            self.notes.append(Seen(self, x[:, None], z))
            return z[:, 0]
        k, stride, padding = (
            int(pair[0]) for pair in (self.convolution.kernel_size, self.convolution.stride, self.convolution.padding)
        )
        side = x.shape[2]
        places = (side + 2 * padding - k) // stride + 1
        # Rows and columns of the kernel that see nothing but padding, wherever it lies, are left out.
        least, most = max(0, padding - (places - 1) * stride), min(k, side + padding)
        if self.matrix is self.weight:
            self.taps = slice(least, most)
            self.matrix = self.as_seen(self.weight[None])[0].contiguous()
        a = Unfold.apply(x.permute(0, 2, 3, 1), most - least, stride, padding - least, places)  # type: ignore[no-untyped-call]
        a = a.view(len(x), places**2, -1)
        z = torch.addmm(self.shift, a.flatten(0, 1), self.matrix.T).view(len(x), places**2, -1)
        self.notes.append(Seen(self, a, z))
        # A copy where residual blocks would add to it in place.
        out = z.clone() if self.norm else z
        return out.view(len(x), places, places, -1).permute(0, 3, 1, 2)

    def as_seen(self, gradient: Tensor) -> Tensor:
        """(K, o, …) a gradient of the weights as (K, o, c), in the order of a."""
        if self.convolution is None:
            return gradient
        return gradient[:, :, :, self.taps, self.taps].permute(0, 1, 3, 4, 2).flatten(2)


def rebuilt(model: nn.Module) -> tuple[nn.Module, list[Seen]]:
    """The same network made of `Layer`s, which note what they see in every pass."""
    model, notes = copy.deepcopy(model), list[Seen]()
    parts = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear | nn.BatchNorm2d)]
    for (name, part), (after, norm) in itertools.pairwise([*parts, ("", nn.Identity())]):
        if isinstance(part, nn.BatchNorm2d):
            model.set_submodule(name, nn.Identity())
        elif isinstance(part, nn.Conv2d | nn.Linear):
            behind = (after, norm) if isinstance(norm, nn.BatchNorm2d) else None
            model.set_submodule(name, Layer(name, part, behind, notes))
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return model.requires_grad_(False), notes


class Misfit:
    """What is minimized, for V variants of each of K cases: `rows` (K·V,) losses."""

    def __init__(self, model: nn.Module, cases: list[Case], distance: str, device: str) -> None:
        self.model, self.notes = rebuilt(model)
        self.distance, self.head = distance, find_head(model)[0]
        K, V = len(cases), len(VARIANTS)
        self.K = K
        self.sent = {name: torch.stack([one.sent[name] for one in cases]).to(device) for name in cases[0].sent}
        self.features = torch.stack([one.features for one in cases]).repeat_interleave(V, 0).to(device)
        own = [LABELS.index(label) for _, label in VARIANTS]
        self.targets = torch.cat([one.labels[own] for one in cases]).to(device)
        kind = self.features.dtype
        self.gradients = torch.tensor([mode != "f" for mode, _ in VARIANTS] * K, dtype=kind, device=device)
        self.feats = torch.tensor([mode != "g" for mode, _ in VARIANTS] * K, dtype=kind, device=device)
        heads = (f"{self.head}.weight", f"{self.head}.bias")
        sizes = {name: g.flatten(1).square().sum(1) for name, g in self.sent.items()}
        below = sum(size for name, size in sizes.items() if name not in heads)
        above = sum(size for name, size in sizes.items() if name in heads)
        self.size = below.repeat_interleave(V) + self.gradients * above.repeat_interleave(V)  # type: ignore[union-attr]
        self.ready: dict[str, Tensor] = {}  # what was sent, in the order in which it is needed

    def __call__(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """(K·V,) what is minimized, and the distance of gradients alone."""
        self.notes.clear()
        logits = self.model(pictures)
        outputs = [seen.z for seen in self.notes]
        errors = torch.autograd.grad(logits, outputs, logits.softmax(1) - self.targets, create_graph=True)
        dot, square = self._products(errors)
        features = self.notes[-1].a.flatten(1)
        if self.distance == "cosine":
            apart = 1 - dot / (square * self.size).sqrt().clamp_min(1e-20)
            feature = 1 - functional.cosine_similarity(features, self.features, dim=1)
        else:
            apart = (square - 2 * dot) / self.size + 1
            feature = (features - self.features).square().sum(1) / self.features.square().sum(1)
        down, across = pictures.diff(dim=2).abs(), pictures.diff(dim=3).abs()
        variation = down.mean((1, 2, 3)) + across.mean((1, 2, 3))
        return apart + self.feats * feature + TOTAL_VARIATION * variation, apart

    def _products(self, errors: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """⟨g, ĝ⟩ and ‖g‖² over the gradients that count."""
        below, above = list[tuple[Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
        for seen, error in zip(self.notes, errors, strict=True):
            (above if seen.layer.name == self.head else below).extend(self._of(seen, error))
        dots, squares = (torch.stack(parts).sum(0) for parts in zip(*below, strict=True))
        return tuple(  # type: ignore[return-value]
            part + self.gradients * torch.stack(parts).sum(0)
            for part, parts in zip((dots, squares), zip(*above, strict=True), strict=True)
        )

    def _of(self, seen: Seen, error: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
        layer, a, summed = seen.layer, seen.a, error.sum(1)
        if layer.norm is not None:
            name, norm = layer.norm
            yield self._vector(f"{name}.weight", ((error * seen.z).sum(1) - norm.bias * summed) / norm.weight)
            yield self._vector(f"{name}.bias", summed)
        if layer.biased:
            yield self._vector(f"{layer.name}.bias", summed * layer.scale)
        T, c, o = a.shape[1], a.shape[2], error.shape[2]
        delta = error * layer.scale if layer.norm is not None else error
        yield (Formed if c * o <= T * (c + o) else Unformed).apply(delta, a, self._sent(layer))

    def _sent(self, layer: Layer) -> Tensor:
        name = f"{layer.name}.weight"
        if name not in self.ready:
            self.ready[name] = layer.as_seen(self.sent[name]).contiguous()
        return self.ready[name]

    def _vector(self, name: str, found: Tensor) -> tuple[Tensor, Tensor]:
        by_case = found.view(self.K, len(VARIANTS), -1)
        return (by_case * self.sent[name][:, None]).sum(2).flatten(), found.square().sum(1)

    def check(self, cases: list[Case], device: str) -> float:
        """The largest distance at the true picture with the true label where nothing disturbs it: 0 but for rounding."""
        pictures = torch.stack([one.image for one in cases]).repeat_interleave(len(VARIANTS), 0).to(device)
        with torch.enable_grad():
            apart = self(pictures.requires_grad_())[1].detach().view(len(cases), -1)
        clean = [k for k, one in enumerate(cases) if one.noise == 0]
        return float(apart[clean][:, [v for v, (_, label) in enumerate(VARIANTS) if label == "true"]].abs().max())


Moves = tuple[Callable[[], None], Callable[[], None], Callable[[float], None]]  # a pass, to the beginning, one step


class Memory:
    """The last HISTORY steps S and changes of the gradient Y of N pictures; the product of their inverse Hessian with a vector.

    Byrd, Nocedal and Schnabel's compact form, H = γ + [S γY] [[R⁻ᵀ(D + γYᵀY)R⁻¹, −R⁻ᵀ], [−R⁻¹, 0]] [S γY]ᵀ, R = SᵀY where the
    step is not younger than the change, D its diagonal. It is the same H as that of the two loops over all pairs, in two
    products. R⁻¹ needs no solver: a new pair adds a column to it, and the oldest one's row and column are left out. A pair of 0
    is as good as none.
    """

    def __init__(self, N: int, D: int, like: Tensor) -> None:
        self.pairs = like.new_zeros(N, 2 * HISTORY, D)  # S, then Y; the pair k in place of the oldest
        small = like.new_zeros(N, HISTORY, HISTORY, dtype=torch.float64)
        self.inverse, self.YY, self.diagonal = small, small.clone(), small[:, 0].clone()
        self.gamma, self.k = like.new_ones(N), torch.zeros(1, dtype=torch.long, device=like.device)

    def forget(self, which: int | slice) -> None:
        for part in (self.pairs, self.inverse, self.YY, self.diagonal):
            part[which] = 0
        self.gamma[which] = 1

    def add(self, s: Tensor, y: Tensor, g: Tensor, keep: Tensor, curvature: Tensor) -> Tensor:
        """−H g, the pair s, y taken in where `keep`."""
        k, kept = self.k, keep[:, None]
        s, y = torch.where(kept, s, 0.0), torch.where(kept, y, 0.0)
        self.pairs.index_copy_(1, k, s[:, None]).index_copy_(1, k + HISTORY, y[:, None])
        curvature = torch.where(keep, curvature, 0.0).double()
        self.gamma.copy_(torch.where(keep, (curvature / y.double().square().sum(1)).to(s), self.gamma))
        products = (torch.stack([g, y], 1) @ self.pairs.mT).double()  # one pass over the memory for both
        (p, q), (Sy, Yy) = products[:, 0].chunk(2, 1), products[:, 1].chunk(2, 1)
        self.inverse.index_fill_(1, k, 0).index_fill_(2, k, 0)
        self.YY.index_copy_(1, k, Yy[:, None]).index_copy_(2, k, Yy[:, :, None])
        self.diagonal.index_copy_(1, k, curvature[:, None])
        reciprocal = torch.where(keep, 1 / curvature, 0.0)[:, None]
        column = torch.where(kept, -(self.inverse @ Sy[:, :, None])[:, :, 0] * reciprocal, 0.0)
        self.inverse.index_copy_(2, k, column.index_copy(1, k, reciprocal)[:, :, None])
        gamma = self.gamma.double()[:, None]
        u = (self.inverse @ p[:, :, None])[:, :, 0]
        middle = self.diagonal * u + gamma * ((self.YY @ u[:, :, None])[:, :, 0] - q)
        v = (self.inverse.mT @ middle[:, :, None])[:, :, 0]
        self.k.add_(1).remainder_(HISTORY)
        weights = torch.cat([-v, gamma * u], 1).to(g)
        return (weights[:, None] @ self.pairs)[:, 0] - self.gamma[:, None] * g


class Search:
    """Pictures (N, 3, 32, 32) on their way down from `start`; `best` keeps the lowest loss of each."""

    def __init__(self, misfit: Misfit, start: Tensor, numbers: Iterable[int], device: str) -> None:
        self.misfit, self.numbers = misfit, list(numbers)
        # Variants of a case begin at the same picture, as far as nothing diverges.
        self.x = start.repeat_interleave(len(VARIANTS), 0).to(device).requires_grad_()
        self.best, self.least = self.x.detach().clone(), torch.full((len(self.x),), math.inf, device=device)
        self.anew = [0] * len(self.x)
        self.run, self.reset, self.after = self._adam() if misfit.distance == "cosine" else self._lbfgs()

    def _look(self) -> tuple[Tensor, Tensor]:
        """(N,) losses and the pictures' derivatives here; remembers what is lower than ever before."""
        losses = self.misfit(self.x)[0]
        (gradient,) = torch.autograd.grad(losses.sum(), self.x)
        losses, lower = losses.detach(), losses.detach() < self.least
        self.least.copy_(torch.where(lower, losses, self.least))
        self.best.copy_(torch.where(lower[:, None, None, None], self.x.detach(), self.best))
        return losses, gradient

    def seconds(self, passes: int = 10) -> float:
        """What a pass takes; nothing moves meanwhile."""
        self.run()
        begun = _now(self.x)
        for _ in range(passes):
            self.run()
        return (_now(self.x) - begun) / passes

    def go(self, steps: int, until: float) -> int:
        """The number of steps that were taken before `until`."""
        self.reset()
        for step in range(steps):
            self.after(step / steps)
            if step % (50 if self.misfit.distance == "cosine" else 1) == 0 and _now(self.x) > until:
                return step + 1
        return steps

    def _adam(self) -> Moves:
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

        def reset() -> None:
            for tensor in (first, second, count):
                tensor.zero_()

        def step(progress: float) -> None:
            rate.fill_(decayed(RATE, progress))
            run()

        run = recorded(work, x.device)[0]  # at rate 0 until the first step: nothing moves
        return run, reset, step

    def _lbfgs(self) -> Moves:
        x = self.x.detach()
        N, D = len(x), x[0].numel()
        memory, fresh, moving = Memory(N, D, x), x.new_ones(N), torch.zeros((), device=x.device)
        last, step, bad = x.new_zeros(N, D), x.new_zeros(N, D), x.new_zeros(N, dtype=torch.bool)

        def work() -> None:
            losses, gradient = self._look()
            g = gradient.flatten(1)
            y, curvature = g - last, ((g - last) * step).sum(1)
            keep = (curvature > LEAST_CURVATURE) & (fresh == 0)
            downhill = memory.add(step, y, g, keep, curvature)
            first = -g * (1 / g.abs().sum(1)).clamp(max=1)[:, None]
            step.copy_(torch.where(fresh[:, None] > 0, first, downhill) * moving)
            last.copy_(g)
            fresh.zero_()
            bad.copy_(~torch.isfinite(losses) | ~torch.isfinite(step).all(1) | ~g.any(1))
            step.copy_(torch.where(bad[:, None], 0.0, step))
            x.add_(step.view_as(x))

        def reset() -> None:
            memory.forget(slice(None))
            fresh.fill_(1), moving.fill_(1)

        def steps(_: float) -> None:
            for _ in range(INNER):
                run()
            for n in bad.nonzero().flatten().tolist():  # diverged, as it does without a line search: begins anew
                self.anew[n] += 1
                random = torch.Generator().manual_seed(7919 * self.anew[n] + 104729 * self.numbers[n])
                x[n] = torch.randn(3, SIDE, SIDE, generator=random).to(x)
                memory.forget(n)
                fresh[n] = 1

        run = recorded(work, x.device)[0]
        return run, reset, steps


def _now(x: Tensor) -> float:
    if x.device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic()


class Task:
    """One network, and the cases of all photos asked for."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.device = name, options.device
        model = build(Network(NETWORKS[name], SIDE, CLASSES), seed=0, weights=None).eval()
        photos, classes = read(options.photos)
        self.kinds = list(itertools.product(KINDS, options.noise if name == "lenet" else [0.0]))
        shape = (options.pictures, len(self.kinds), 3, SIDE, SIDE)
        self.starts = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        share, shares = map(int, options.share.split("/"))
        self.numbers = list(range(share - 1, options.pictures, shares))
        self.cases = {n: [case(model, photos, classes, n, *kind) for kind in self.kinds] for n in self.numbers}
        self.model = model.requires_grad_(False).to(options.device)  # from here on derivatives by pictures alone
        self.needs = dict.fromkeys(STEPS, 1.0)  # seconds of each distance, as far as they were measured
        self.ready: dict[str, Search] = {}

    def measure(self, options: argparse.Namespace) -> float:
        """What all steps of all distances take."""
        for distance in options.distances:
            self.ready.pop(distance, None)
            search = self.ready[distance] = self._search(distance, self.numbers)
            seconds = search.seconds()
            self.needs[distance] = seconds * _steps(distance, options) * (INNER if distance == "l2" else 1)
            print(f"{self.name} {distance}, {len(self.numbers)} photos: {1000 * seconds:.2f} ms a pass", flush=True)
        return sum(self.needs[distance] for distance in options.distances)

    def searched(
        self, distance: str, numbers: list[int], steps: int, until: float
    ) -> tuple[list[dict[str, Any]], Tensor]:
        """Rows of figures, and (K, 1 + V, 3, 32, 32) the photos and what was found."""
        begun = time.monotonic()
        search = self.ready.pop(distance, None) or self._search(distance, numbers)
        taken, cases = search.go(steps, until), self._cases(numbers)
        found = search.best.clamp(0, 1).cpu().view(len(cases), len(VARIANTS), 3, SIDE, SIDE)
        least = search.least.cpu().view(len(cases), len(VARIANTS))
        print(
            f"{self.name} {distance}, photos {numbers}: {taken} of {steps} steps in {time.monotonic() - begun:.0f} s, "
            f"{sum(search.anew)} began anew",
            flush=True,
        )
        whose = [number for number in numbers for _ in self.kinds]
        rows = [
            {
                "network": self.name, "distance": distance, "kind": one.kind, "noise": one.noise, "mode": mode, "label": label,
                "photo": whose[k], "right": one.right, "steps": taken, "loss": float(least[k, v]),
                "psnr": psnr(found[k, v], one.image), "ssim": ssim(found[k, v], one.image),
            }
            for k, one in enumerate(cases)
            for v, (mode, label) in enumerate(VARIANTS)
        ]  # fmt: skip
        return rows, torch.cat([torch.stack([one.image for one in cases])[:, None], found], 1)

    def _search(self, distance: str, numbers: list[int]) -> Search:
        cases = self._cases(numbers)
        misfit = Misfit(self.model, cases, distance, self.device)
        if any(one.noise == 0 for one in cases):  # noise leaves nothing to compare with
            off = misfit.check(cases, self.device)
            assert off < 1e-4, f"At the true pictures the distance is {off:.1e}."
        width = len(self.kinds) * len(VARIANTS)
        each = (number * width + n for number in numbers for n in range(width))
        return Search(misfit, self.starts[numbers].flatten(0, 1), each, self.device)

    def _cases(self, numbers: list[int]) -> list[Case]:
        return [one for number in numbers for one in self.cases[number]]


def fit(tasks: list[Task], options: argparse.Namespace, end: float) -> None:
    """All steps into the time, with half of the photos, and half of them, of the task that takes longest."""
    needs = {task: task.measure(options) for task in tasks}
    while sum(needs.values()) > end - time.monotonic():
        slow = max((task for task in tasks if len(task.numbers) > 1), key=lambda task: needs[task], default=None)
        if slow is None:
            return
        slow.numbers = slow.numbers[: len(slow.numbers) // 2]
        needs[slow] = slow.measure(options)


def _steps(distance: str, options: argparse.Namespace) -> int:
    return options.steps or STEPS[distance]


def read(photos: str) -> tuple[Tensor, Tensor]:
    if photos == "embedded":
        batch = embedded_batch(16, image_size=SIDE)
        return batch.images, torch.arange(len(batch.images))
    found = read_photos(photos, size=SIDE)
    return found.images.float() / 255, found.labels % CLASSES


def table(rows: list[dict[str, Any]]) -> str:
    """PSNR and standard error over photos; SSIM in brackets."""
    lines = [
        "| network | distance | label is | noise | mode | steps | photos | " + " | ".join(LABELS) + " |",
        "|---" * 11 + "|",
    ]
    for key, group in _grouped(rows, "network", "distance", "kind", "noise", "mode"):
        cells = []
        for label in LABELS:
            own = [row for row in group if row["label"] == label]
            mean, error = _mean([row["psnr"] for row in own])
            cells.append(f"{mean:.2f} ± {error:.2f} ({statistics.mean(row['ssim'] for row in own):.2f})")
        lines.append(f"| {' | '.join(map(str, key))} | {_range(group)} | {len(own)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: list[dict[str, Any]]) -> str:
    """Mean PSNR over the modes; what the recovered label is worth beside the hard one, photo by photo, ± standard error."""
    lines = [
        "| network | distance | label is | noise | steps | " + " | ".join(LABELS) + " | recovered − hard | right |",
        "|---" * 11 + "|",
    ]
    for key, group in _grouped(rows, "network", "distance", "kind", "noise"):
        by_label = {label: [row["psnr"] for row in group if row["label"] == label] for label in LABELS}
        photos = {photo: list(own) for photo, own in _grouped(group, "photo")}
        gains = [
            sum(row["psnr"] * ((row["label"] == "recovered") - (row["label"] == "hard")) for row in own) / len(MODES)
            for own in photos.values()
        ]
        gain, error = _mean(gains)
        means = " | ".join(f"{statistics.mean(values):.1f}" for values in by_label.values())
        right = sum(own[0]["right"] for own in photos.values())
        lines.append(
            f"| {' | '.join(map(str, key))} | {_range(group)} | {means} | {gain:.1f} ± {error:.1f} | {right} of {len(photos)} |"
        )
    return "\n".join(lines)


def _grouped(rows: list[dict[str, Any]], *names: str) -> list[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return sorted(groups.items(), key=lambda group: [str(part) for part in group[0]])


def _mean(values: list[float]) -> tuple[float, float]:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan
    return statistics.mean(values), error


def _range(rows: list[dict[str, Any]]) -> str:
    steps = sorted({row["steps"] for row in rows})
    return f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"


def grid(pictures: Tensor, path: Path) -> None:
    """One row for each photo: the photo, then mode gf with the true, the recovered, the hard and a wrong label."""
    from torchvision.utils import save_image

    shown = [0, *(1 + VARIANTS.index(("gf", label)) for label in LABELS)]
    chosen = pictures[:, shown].flatten(0, 1)
    save_image(
        functional.interpolate(chosen, scale_factor=2, mode="nearest"), path, nrow=len(shown), padding=2, pad_value=1
    )


def main() -> None:
    options = _options()
    rows = [row for path in options.table or [] for row in json.loads(path.read_text())]
    if not options.table:
        rows = measured(options)
    print(summary(rows), table(rows), sep="\n\n")


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    rows = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    tasks = [Task(name, options) for name in options.networks]
    print("Labels are recovered, searches begin.", flush=True)
    end = time.monotonic() + options.seconds
    if options.fit:
        fit(tasks, options, end)
    searches = [
        (group, task, distance)
        for group in range(0, options.pictures, options.together or options.pictures)
        for task in tasks
        for distance in options.distances
        if task.numbers[group:]
    ]
    for number, (group, task, distance) in enumerate(searches):
        steps, photos = _steps(distance, options), task.numbers[group:][: options.together]
        done = {(r["network"], r["distance"], r["photo"], r["noise"]) for r in rows if r["steps"] == steps}
        if all((task.name, distance, photo, noise) in done for photo in photos for _, noise in task.kinds):
            continue
        now, left = time.monotonic(), sum(task.needs[distance] for _, task, distance in searches[number:])
        found, pictures = task.searched(distance, photos, steps, now + (end - now) * task.needs[distance] / left)
        rows += found
        if options.json:
            partly = options.json.with_suffix(".part")
            partly.write_text(json.dumps(rows))
            partly.replace(options.json)
        if options.grid:
            grid(pictures, options.grid)
    return rows


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", default="embedded", help="npz or tar of photos; embedded: those of the package")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--distances", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--pictures", type=int, default=16)
    parser.add_argument("--share", default="1/1", help="the I-th of N shares of the photos, I/N")
    parser.add_argument("--together", type=int, help="photos that are searched at once; all of them if not given")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 1e-4, 1e-3, 1e-2], help="for LeNet")
    parser.add_argument("--steps", type=int, help="instead of the published ones")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="for all searches, from when labels are recovered"
    )
    parser.add_argument("--fit", action="store_true", help="fewer photos where all steps do not fit into the time")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="written after every search; what it has is not searched again")
    parser.add_argument("--grid", type=Path)
    parser.add_argument("--table", type=Path, nargs="+")
    return parser.parse_args()


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
