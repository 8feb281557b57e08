"""Which losses give their batch away, with the loss declared and without.

uv run python benchmarks/other_losses.py > tables.md        # the tables of docs/research/other-losses.md
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import unsum
from unsum.deadline import time_limit
from unsum.losses import BinaryCrossEntropy, Focal, Loss, SquaredError, WeightedCrossEntropy
from unsum.score import score_samples

FEATURES = 512
RECOVERED = 1e-3
SIZES = (1, 4, 8, 16, 24)


@dataclass(frozen=True)
class Case:
    model: nn.Module
    update: unsum.Update
    features: Tensor
    loss: Loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print(f"{platform.machine()}, PyTorch {torch.__version__}, {torch.get_num_threads()} thread(s)\n")
    print(by_size(options.seeds))
    print(by_setting(options.seeds))
    print(crowded(options.seeds))
    print(undeclared())
    print(contrastive())


def made(name: str, B: int, C: int = 100, *, seed: int, bias: bool = True, equal: bool = False, sharp: float = 1.0,
         noise: float = 0.0) -> Case:  # fmt: skip
    """A fresh head (weights times `sharp`) over non-negative features, and its gradient in float32."""
    torch.manual_seed(seed)
    model = nn.Linear(FEATURES, C, bias=bias)
    with torch.no_grad():
        model.weight *= sharp
    features = torch.randn(B, FEATURES).relu()
    labels = torch.randperm(C)[:B] if C >= B else torch.randint(0, C, (B,))
    if equal:
        labels[: max(2, B // 2)] = labels[0]
    rows = nn.functional.one_hot(labels, C).float()
    if name == "bce":
        rows = (torch.rand(B, C) < 3 / C).float()
        rows[: max(2, B // 2)] = rows[0] if equal else rows[: max(2, B // 2)]
    weight = 0.5 + 4 * torch.rand(C)
    losses: dict[str, tuple[Loss, Callable[[Tensor], Tensor]]] = {
        "bce": (BinaryCrossEntropy(), lambda logits: nn.functional.binary_cross_entropy_with_logits(logits, rows)),
        "mse": (SquaredError(), lambda logits: nn.functional.mse_loss(logits, rows)),
        "focal": (Focal(2.0), lambda logits: focal(logits, labels)),
        "weighted": (WeightedCrossEntropy(weight), lambda logits: nn.functional.cross_entropy(logits, labels, weight)),
        "weighted, smoothed": (
            WeightedCrossEntropy(weight, 0.1),
            lambda logits: nn.functional.cross_entropy(logits, labels, weight, label_smoothing=0.1),
        ),
    }
    loss, value = losses[name]
    gradients = torch.autograd.grad(value(model(features)), list(model.parameters()))
    named = dict(zip(dict(model.named_parameters()), gradients, strict=True))
    update = unsum.Update({key: g + noise * torch.randn_like(g) for key, g in named.items()})
    return Case(model, update, features, loss)


def focal(logits: Tensor, labels: Tensor, gamma: float = 2.0) -> Tensor:
    log_p = torch.log_softmax(logits, dim=1).gather(1, labels[:, None])[:, 0]
    return (-((1 - log_p.exp()) ** gamma) * log_p).mean()


NAMES = ("bce", "mse", "focal", "weighted", "weighted, smoothed")


def tried(cases: list[Case], declare: bool = True) -> str:
    """Samples within 0.1 % of their features, batches certified, of these wrongly, mean seconds."""
    found = total = certified = wrongly = 0
    start = time.perf_counter()
    for case in cases:
        leak = unsum.separate(case.model, case.update, loss=case.loss if declare else "cross-entropy")
        errors = [row.feature_error for row in score_samples(leak, features=case.features)]
        found += sum(error < RECOVERED for error in errors)
        total += len(errors)
        certified += leak.exact
        wrongly += leak.exact and (max(errors) > RECOVERED or leak.batch_size != len(errors))
    seconds = (time.perf_counter() - start) / len(cases)
    said = f"{found}/{total}, {certified} of {len(cases)}, {seconds:.1f} s"
    return said + (f" **{wrongly} wrongly**" if wrongly else "")


def by_size(seeds: int) -> str:
    lines = [
        "## Batch size\n",
        f"C = 100, H = {FEATURES}, distinct labels (three of a hundred at random for `bce`), nothing given but the loss. Samples "
        "within 0.1 %, batches certified exact (wrongly: never, unless said), mean seconds.\n",
        f"| loss | {' | '.join(f'B = {B}' for B in SIZES)} |",
        "|---|" + "---|" * len(SIZES),
    ]
    for name in NAMES:
        cells = [tried([made(name, B, seed=seed) for seed in range(seeds)]) for B in SIZES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines) + "\n"


def by_setting(seeds: int) -> str:
    settings: dict[str, dict[str, float]] = {
        "no bias": {"bias": False},
        "half of equal labels": {"equal": True},
        "logits four times larger": {"sharp": 4.0},
        "logits sixteen times larger": {"sharp": 16.0},
        "noise of 1e-6 on every entry": {"noise": 1e-6},
    }
    lines = [
        "## Settings\n",
        "B = 8, C = 100, as above.\n",
        f"| loss | {' | '.join(settings)} |",
        "|---|" + "---|" * len(settings),
    ]
    for name in NAMES:
        cells = [tried([made(name, 8, seed=seed, **how) for seed in range(seeds)]) for how in settings.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines) + "\n"


def crowded(seeds: int) -> str:
    shapes = ((8, 40), (8, 24), (8, 16), (8, 12))
    lines = [
        "## Few classes\n",
        f"| loss | {' | '.join(f'B = {B}, C = {C}' for B, C in shapes)} |",
        "|---|" + "---|" * len(shapes),
    ]
    for name in NAMES:
        cells = [tried([made(name, B, C, seed=seed) for seed in range(seeds)]) for B, C in shapes]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines) + "\n"


def undeclared() -> str:
    """What the solver for plain cross-entropy makes of these gradients when it is told that they are cross-entropy."""
    lines = [
        "## Taken for cross-entropy\n",
        "B = 8, C = 100.\n",
        "| loss | declared as cross-entropy | nothing declared |",
        "|---|---|---|",
    ]
    for name in NAMES:
        case = made(name, 8, seed=0)
        leak = unsum.separate(case.model, case.update)
        lines.append(f"| {name} | {tried([case], declare=False)} | answered as {leak.loss}, exact {leak.exact} |")
    return "\n".join(lines) + "\n"


def contrastive() -> str:
    """Directions of T that the gradient of a contrastive head does not see, at the true features, in float64."""
    lines = [
        "## Contrastive heads\n",
        "NT-Xent with temperature 0.5 over normalized projections; pairs known. Null directions of the Jacobian at the truth, of "
        "B² unknowns, and how far the row space of ∇W is from the features.\n",
        "| B | projections | null directions | (B − 1)(B − 2)/2 | features outside the row space |",
        "|---|---|---|---|---|",
    ]
    for B, C in ((4, 16), (8, 32), (8, 128), (12, 128)):
        null, outside = null_directions(B, C)
        lines.append(f"| {B} | {C} | {null} | {(B - 1) * (B - 2) // 2} | {outside:.0e} |")
    return "\n".join(lines) + "\n"


def null_directions(B: int, C: int) -> tuple[int, float]:
    torch.manual_seed(0)
    W, b = nn.Linear(FEATURES, C).weight.detach().double(), 0.03 * torch.randn(C, dtype=torch.float64)
    first = torch.randn(B // 2, FEATURES, dtype=torch.float64)
    F = torch.cat([first, first + 0.5 * torch.randn_like(first)]).relu()
    partner = torch.cat([torch.arange(B // 2) + B // 2, torch.arange(B // 2)])

    def loss(Z: Tensor) -> Tensor:
        unit = nn.functional.normalize(Z, dim=1)
        alike = unit @ unit.T / 0.5
        return nn.functional.cross_entropy(alike - torch.diag(torch.full((B,), 1e9, dtype=Z.dtype)), partner)

    def sent(T: Tensor) -> Tensor:
        G = torch.func.grad(loss)(T @ A @ W.T + b)
        return torch.cat([G.T @ T, G.sum(0)[:, None]], dim=1)

    gradient = torch.func.grad(loss)(F @ W.T + b).T @ F
    A = torch.linalg.svd(gradient)[2][:B]
    T = F @ A.T
    J = torch.func.jacrev(sent)(T).reshape(-1, T.numel())
    values = torch.linalg.svdvals(J)
    return int((values < 1e-10 * values[0]).sum()), float((F - T @ A).norm() / F.norm())


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
