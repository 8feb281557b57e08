"""Gradient matching, side by side in one run: unsum's engine, the same mathematics written plainly,
and `breaching`.

# LeNet, 32×32, 100 classes, CPU
uv run --with breaching python -m unsum_bench.scripts.matching_speed
python -m unsum_bench.scripts.matching_speed --model resnet18 --size 224 --batches 1 8 \\
    --device cuda --steps 200

A pass is one evaluation of the objective and its derivative; an L-BFGS step is up to twenty of
these, so that passes are counted: at the model, and for unsum, which replays a recorded pass on a
GPU, at its evaluator. Times are processor seconds of one thread on a CPU, so that other work on the
machine does not count, and wall-clock seconds on a GPU; the best of the repeats is given. Memory is
the peak of what torch's allocator held above the start; on a GPU, of what it had reserved, which a
recording keeps, and in brackets of what it had given out. PSNR is that of the worst picture after
equal steps, the median over repeats, each from another start; of unsum and breaching at the step of
lowest loss, of the plain form at the last. Labels are granted to IG in all three; DLG optimizes
them.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import logging
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from unsum.client import capture
from unsum.data import embedded_batch
from unsum.leak import Leak
from unsum.match import match
from unsum.match.evaluate import Evaluator
from unsum.update import Update

_INNER = 20  # passes of one L-BFGS step
_VARIATION = 1e-3


@dataclass(frozen=True)
class Case:
    model: str
    size: int
    classes: int
    batch: int
    steps: int
    device: str

    def build(self) -> tuple[nn.Module, Tensor, Tensor, Update]:
        torch.manual_seed(0)
        net = (
            lenet(self.classes)
            if self.model == "lenet"
            else torchvision.models.get_model(self.model, num_classes=self.classes)
        )
        net = net.to(self.device).eval()
        batch = embedded_batch(self.batch, image_size=self.size)
        images, labels = batch.images.to(self.device), batch.targets.to(self.device) % self.classes
        return net, images, labels, capture(net, images, labels, train=False)


def lenet(classes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inside, stride in ((3, 2), (12, 2), (12, 1)):
        layers += [nn.Conv2d(inside, 12, 5, stride, 2), nn.Sigmoid()]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(768, classes))
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return net


def convnet(classes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inside, outside, stride in ((3, 32, 1), (32, 32, 2), (32, 64, 2)):
        layers += [nn.Conv2d(inside, outside, 3, stride, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 8 * 8, classes))


OWN: dict[str, Callable[[int], nn.Module]] = {"lenet": lenet, "convnet": convnet}
Attack = Callable[
    [Case, nn.Module, Tensor, Update, int, int], tuple[Tensor, int]
]  # (…, passes, seed) → pictures, passes taken


def ours_ig(
    case: Case, net: nn.Module, labels: Tensor, update: Update, passes: int, seed: int
) -> Tensor:
    options = {"steps": passes, "total_variation": _VARIATION, "image_size": case.size}
    return _images(match(net, update, "ig", labels=labels, seed=seed, **options))


def ours_dlg(
    case: Case, net: nn.Module, labels: Tensor, update: Update, passes: int, seed: int
) -> Tensor:
    options = {"steps": passes // _INNER, "image_size": case.size}
    return _images(match(net, update, "dlg", batch_size=len(labels), seed=seed, **options))


def _images(leak: Leak) -> Tensor:
    assert leak.images is not None
    return leak.images


def plain_ig(
    case: Case, net: nn.Module, labels: Tensor, update: Update, passes: int, seed: int
) -> Tensor:
    """As anyone would write it down: autograd for everything, one small operation per tensor."""
    torch.manual_seed(seed)
    x = torch.randn(len(labels), 3, case.size, case.size, device=case.device, requires_grad=True)
    parameters, sent = (
        list(net.parameters()),
        [update.gradients[name] for name, _ in net.named_parameters()],
    )
    optimizer = torch.optim.Adam([x], lr=0.1)
    milestones = [passes * part // 8 for part in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, 0.1)
    for _ in range(passes):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), labels)
        found = torch.autograd.grad(loss, parameters, create_graph=True)
        inner = sum((a * b).sum() for a, b in zip(found, sent, strict=True))
        lengths = (
            sum(a.square().sum() for a in found).sqrt() * sum(b.square().sum() for b in sent).sqrt()
        )
        across, down = x[..., 1:] - x[..., :-1], x[..., 1:, :] - x[..., :-1, :]
        objective = 1 - inner / lengths + _VARIATION * (across.abs().mean() + down.abs().mean())
        (x.grad,) = torch.autograd.grad(objective, [x])
        x.grad.sign_()
        optimizer.step()
        schedule.step()
        x.data.clamp_(0, 1)
    return x.detach()


def plain_dlg(
    case: Case, net: nn.Module, labels: Tensor, update: Update, passes: int, seed: int
) -> Tensor:
    torch.manual_seed(seed)
    x = torch.randn(len(labels), 3, case.size, case.size, device=case.device, requires_grad=True)
    y = torch.randn(len(labels), case.classes, device=case.device, requires_grad=True)
    parameters, sent = (
        list(net.parameters()),
        [update.gradients[name] for name, _ in net.named_parameters()],
    )
    optimizer = torch.optim.LBFGS([x, y])

    def closure() -> Tensor:
        loss = nn.functional.cross_entropy(net(x), y.softmax(1))
        found = torch.autograd.grad(loss, parameters, create_graph=True)
        objective: Tensor = sum((a - b).square().sum() for a, b in zip(found, sent, strict=True))  # type: ignore[assignment]
        x.grad, y.grad = torch.autograd.grad(objective, [x, y])
        return objective

    for _ in range(passes // _INNER):
        optimizer.step(closure)
    return x.detach()


def breaching_attack(
    name: str, case: Case, net: nn.Module, labels: Tensor, update: Update, passes: int, seed: int
) -> Tensor:
    logging.disable(logging.INFO)
    import breaching

    by_lbfgs = name == "deepleakage"
    overrides = [f"optim.max_iterations={passes // _INNER if by_lbfgs else passes}"]
    overrides += [] if by_lbfgs else [f"regularization.total_variation.scale={_VARIATION}"]
    settings = breaching.get_attack_config(name, overrides=overrides)
    setup = {"dtype": torch.float, "device": torch.device(case.device)}
    metadata = _Metadata(
        shape=(3, case.size, case.size), modality="vision", task="classification",
        classes=case.classes, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0),
    )  # fmt: skip
    payload = {
        "parameters": list(net.parameters()),
        "buffers": list(net.buffers()),
        "metadata": metadata,
    }
    known = {
        "num_data_points": len(labels),
        "labels": None if by_lbfgs else labels,
        "local_hyperparams": None,
    }
    shared = {
        "gradients": [update.gradients[n] for n, _ in net.named_parameters()],
        "buffers": None,
        "metadata": known,
    }
    torch.manual_seed(seed)
    attacker = breaching.attacks.prepare_attack(net, nn.CrossEntropyLoss(), settings, setup)
    found: Tensor = attacker.reconstruct([payload], [shared], {})[0]["data"]
    return found.detach()


class _Metadata(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


def breaching_ig(*arguments: Any) -> Tensor:
    return breaching_attack("invertinggradients", *arguments)


def breaching_dlg(*arguments: Any) -> Tensor:
    return breaching_attack("deepleakage", *arguments)


ATTACKS: dict[str, dict[str, Attack]] = {
    "ig": {"unsum": ours_ig, "plain": plain_ig, "breaching": breaching_ig},
    "dlg": {"unsum": ours_dlg, "plain": plain_dlg, "breaching": breaching_dlg},
}


def measure(case: Case, method: str, library: str, seed: int) -> tuple[float, str, float]:
    """(milliseconds a pass, peak MiB above the start, PSNR of the worst picture) of one run after a
    short one."""
    net, images, labels, update = case.build()
    attack = ATTACKS[method][library]
    attack(case, net, labels, update, 2 * _INNER, 0)
    on_gpu = case.device != "cpu"
    if on_gpu:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    held = (torch.cuda.memory_reserved(), torch.cuda.memory_allocated()) if on_gpu else (0, 0)
    clock = time.perf_counter if on_gpu else time.process_time
    with counted(library, net) as passes:
        start = clock()
        found = attack(case, net, labels, update, case.steps, seed)
        if on_gpu:
            torch.cuda.synchronize()
        seconds = clock() - start
    peaks = (
        (torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()) if on_gpu else (0, 0)
    )
    reserved, given = ((peak - before) / 2**20 for peak, before in zip(peaks, held, strict=True))
    apart = (found.nan_to_num(0.5).clamp(0, 1) - images).square().flatten(1).mean(1)
    return (
        seconds / len(passes) * 1000,
        f"{reserved:.0f} ({given:.0f})",
        float(-10 * apart.max().log10()),
    )


@contextmanager
def counted(library: str, net: nn.Module) -> Iterator[list[None]]:
    """A list with one entry per pass: through unsum's evaluator, or through the model (copies of it
    count, too)."""
    passes: list[None] = []
    if library != "unsum":
        hook = net.register_forward_pre_hook(lambda *_: passes.append(None))
        yield passes
        hook.remove()
        return
    plain = {name: getattr(Evaluator, name) for name in ("one", "all")}

    def counting(evaluate: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any) -> Any:
            passes.append(None)
            return evaluate(*arguments)

        return count

    for name, method in plain.items():
        setattr(Evaluator, name, counting(method))
    yield passes
    for name, method in plain.items():
        setattr(Evaluator, name, method)


def peak_memory(case: Case, method: str, library: str) -> float:
    """The peak of what torch's CPU allocator held above the start, MiB, from its own record of a
    short run."""
    net, _, labels, update = case.build()
    attack = ATTACKS[method][library]
    attack(case, net, labels, update, 2 * _INNER, 0)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as record:
        attack(case, net, labels, update, 6 * _INNER, 0)
    assert record.profiler is not None
    events: Any = record.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="lenet", help="lenet, convnet, or a name of torchvision's"
    )
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument(
        "--steps", type=int, default=400, help="passes of the objective in every run"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=list(ATTACKS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--no-memory",
        action="store_true",
        help="on a CPU: leave out the memory, which takes another run",
    )
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    libraries = ["breaching", "plain", "unsum"]
    if importlib.util.find_spec("breaching") is None:
        print("breaching is not installed; only the plain form is compared.")
        libraries.remove("breaching")
    name = (
        torch.cuda.get_device_name()
        if options.device != "cpu"
        else f"{platform.machine()}, one thread"
    )
    print(
        f"{name}, torch {torch.__version__}, {options.model} {options.size}², {options.classes} "
        "classes\n"
    )
    print(
        "| attack | B | library | ms a pass | times as fast as the first | peak MiB | PSNR of the "
        "worst |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    if options.device == "cpu":
        torch.set_num_threads(1)
    for method in options.methods:
        for batch in options.batches:
            case = Case(
                options.model, options.size, options.classes, batch, options.steps, options.device
            )
            compare(case, method, libraries, options)


def compare(case: Case, method: str, libraries: list[str], options: argparse.Namespace) -> None:
    """Repeats go round the libraries, so that a busy minute of the machine falls on all of them."""
    rows: dict[str, list[tuple[float, str, float]]] = {library: [] for library in libraries}
    for seed in range(options.repeats):
        for library in libraries:
            rows[library].append(measure(case, method, library, seed))
    first = min(rows[libraries[0]])[0]
    for library in libraries:
        milliseconds, memory, _ = min(rows[library])
        quality = statistics.median(psnr for _, _, psnr in rows[library])
        if case.device == "cpu":
            memory = "" if options.no_memory else f"{peak_memory(case, method, library):.1f}"
        ratio = first / milliseconds
        print(
            (
                f"| {method} | {case.batch} | {library} | {milliseconds:.2f} | {ratio:.2f} | "
                f"{memory} | {quality:.1f} |"
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
