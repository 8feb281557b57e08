"""Samples out of two convolutions: which networks, modes and batches, how exactly, how fast.

python -m unsum_bench.scripts.convolutions small --photos cifar.npz  # ResNet-18 for 32², both modes
# ResNet-50
python -m unsum_bench.scripts.convolutions large --photos photos.tar \\
    --weights resnet50.safetensors --device cuda
# noise and precisions of the gradient
python -m unsum_bench.scripts.convolutions noise --photos cifar.npz
# after some training on other photos
python -m unsum_bench.scripts.convolutions trained --photos cifar.npz
python -m unsum_bench.scripts.convolutions networks  # other networks, embedded photos of 128²
# seconds and memory beside one gradient
python -m unsum_bench.scripts.convolutions speed --photos cifar.npz
# separation, walk and pixels in one
python -m unsum_bench.scripts.convolutions pictures --photos cifar.npz --device cuda

Photos are an npz with `images` (N, h, w, 3), or a tar of JPEG files named CLASS/…. Errors are those
of the features and of the maps of the pair's first convolution, without the factor that all of them
share where BatchNorm hides it. The batch size is granted, as the server of a federation sees it.
"""

from __future__ import annotations

import argparse
import copy
import io
import math
import resource
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import unsum
import unsum.head
from unsum.data.batch import embedded_batch
from unsum.errors import UnsumError
from unsum.gradients import inputs_of
from unsum.models.strides import PHOTOS_DEVIATION as STD
from unsum.models.strides import PHOTOS_MEAN as MEAN
from unsum.running.deadline import time_limit
from unsum.spans.maps.places import read_places


@dataclass(frozen=True)
class Setting:
    """One row of a table."""

    network: str
    B: int
    C: int
    train: bool = True
    buffers: bool = False
    equal: bool = False
    noise: float = 0.0
    precision: str = ""
    steps: int = 0  # of training, on other photos
    seed: int = 0  # of the weights, and of the training


def photos(path: Path, number: int) -> tuple[Tensor, Tensor]:
    """(N, 3, h, w) as the networks take them, and labels."""
    if path.suffix == ".npz":
        held = np.load(path)
        images, labels = (
            torch.tensor(held["images"][:number]),
            torch.tensor(held["labels"][:number]).long(),
        )
    else:
        with tarfile.open(path) as files:
            members = [member for member in files if member.isfile()]
            members = members[:: max(1, len(members) // number)][:number]
            read = [
                Image.open(io.BytesIO(files.extractfile(m).read())).convert("RGB") for m in members
            ]
        images = torch.stack([torch.tensor(np.array(one)) for one in read])
        labels = torch.tensor([int(member.name.split("/")[-2]) for member in members])
    scaled = images.permute(0, 3, 1, 2).float() / 255
    return (scaled - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1), labels


def network(setting: Setting, weights: Path | None) -> nn.Module:
    torch.manual_seed(setting.seed)
    if setting.network == "resnet18":
        model = torchvision.models.resnet18(num_classes=setting.C)
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
        return model
    model = torchvision.models.resnet50()
    for stage in (model.layer2, model.layer3, model.layer4):  # version 1, whose weights these are
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    if weights is not None:
        held = load_file(weights)
        model.load_state_dict(
            {n: t.float() if t.is_floating_point() else t for n, t in held.items()}, strict=False
        )
    if setting.C != 1000:
        model.fc = nn.Linear(2048, setting.C)
    return model


def _cast(x: Tensor, precision: str) -> torch.autocast:
    kind = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)
    return torch.autocast(x.device.type, kind or torch.bfloat16, enabled=kind is not None)


def sent(model: nn.Module, setting: Setting, x: Tensor, y: Tensor) -> unsum.Update:
    with _cast(x, setting.precision):
        update = unsum.capture(model, x, y, train=setting.train, buffers=setting.buffers)
    if not setting.noise:
        return update
    generator = torch.Generator(x.device).manual_seed(0)

    def noisy(_: str, g: Tensor) -> Tensor:
        drawn = torch.randn(g.shape, generator=generator, device=g.device)
        return g + setting.noise * g.norm() / g.numel() ** 0.5 * drawn

    return update.map(noisy)


# (steps, seed, classes) → the model, for rows that share it
_TRAINED: dict[tuple[int, int, int], nn.Module] = {}


def trained(model: nn.Module, setting: Setting, x: Tensor, y: Tensor) -> nn.Module:
    """By SGD with momentum on batches of 64."""
    asked = setting.steps, setting.seed, setting.C
    if asked not in _TRAINED:
        _TRAINED[asked] = _train(model, setting, x, y)
    return copy.deepcopy(_TRAINED[asked])


def _train(model: nn.Module, setting: Setting, x: Tensor, y: Tensor) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(setting.seed)
    model.train()
    for _ in range(setting.steps):
        drawn = torch.randint(len(x), (64,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[drawn]), y[drawn]).backward()
        optimizer.step()
    return model


def prepared(
    setting: Setting, x: Tensor, labels: Tensor, weights: Path | None, device: str
) -> tuple[nn.Module, Tensor, Tensor]:
    """The model as the server sent it, and the client's batch."""
    model = network(setting, weights).to(device)
    if setting.steps:
        others = x[1000:].to(device), labels[1000:].to(device) % setting.C
        model = trained(model, setting, *others)
    x, y = x[: setting.B].to(device), (labels[: setting.B] % setting.C).to(device)
    return model.train(setting.train), x, torch.full_like(y, int(y[0])) if setting.equal else y


def picture_row(
    setting: Setting, x: Tensor, labels: Tensor, weights: Path | None, device: str
) -> str:
    """Everything `unsum.attack` does: samples, maps, the walk below them, pixels."""
    model, x, y = prepared(setting, x, labels, weights, device)
    update = sent(model, setting, x, y)
    start = time.perf_counter()
    leak = unsum.attack(model, update, batch_size=len(x), device=device)
    seconds = time.perf_counter() - start
    order = [name for name, _ in model.named_modules() if name in leak.inner]
    deepest, error = (order[0] if order else ""), ""
    if order:
        true = _truth(model, deepest, x)[0]
        apart = torch.cdist(true, leak.inner[deepest].flatten(1).to(true)).amin(1) / true.norm(
            dim=1
        )
        error = f"{float(apart.max()):.0e}"
    drawn = ""
    if leak.images is not None:
        scale = torch.tensor(STD, device=x.device).view(3, 1, 1)
        apart = (
            torch.cdist((leak.images.to(x) * scale).flatten(1), (x * scale).flatten(1)).amin(0) ** 2
            / x[0].numel()
        )
        decibels = -10 * apart.log10()
        drawn = f"{float(decibels.min()):.0f} / {float(decibels.median()):.0f}"
    sure = "" if leak.inputs_exact is None else f"{int(leak.inputs_exact.sum())} of {len(x)}"
    return (
        f"{_named(setting)} {leak.method}{', exact' if leak.exact else ''} | {deepest} | {error} | "
        f"{drawn} | {sure} | {seconds:.0f} |"
    )


def row(setting: Setting, x: Tensor, labels: Tensor, weights: Path | None, device: str) -> str:
    model, x, y = prepared(setting, x, labels, weights, device)
    update = sent(model, setting, x, y)
    start = time.perf_counter()
    try:
        leak = unsum.separate(model, update, "spans", batch_size=len(x), device=device)
    except UnsumError as reason:
        return f"{_named(setting)} refused: {reason} |"
    seconds = time.perf_counter() - start
    if not leak.batch_size:
        return f"{_named(setting)} 0 | | | | | {leak.notes[0]} | {seconds:.1f} |"
    layer, maps = next(iter(leak.inner.items()))
    true, features = _truth(model, layer, x, setting.precision)
    found = nn.functional.normalize(maps.double().flatten(1))
    error, which = torch.cdist(found, nn.functional.normalize(true)).min(1)
    at_head = (leak.features.double() - features[which]).norm(dim=1) / features[which].norm(dim=1)
    right = int((leak.labels == y[which]).sum())
    distinct = len(set(which[error < 1e-2].tolist()))
    said = "yes" if leak.exact else f"predicted {leak.predicted_error:.0e}"
    if not leak.exact:
        said += f": {leak.notes[0]}"
    return (
        f"{_named(setting)} {distinct} of {setting.B} | {right} | {float(error.max()):.0e} | "
        f"{float(at_head.max()):.0e} | {said} | {seconds:.1f} |"
    )


NETWORKS = (
    "mobilenet_v2",
    "efficientnet_b0",
    "densenet121",
    "convnext_tiny",
    "regnet_x_400mf",
    "regnet_y_400mf",
)


def network_row(name: str, B: int, train: bool, device: str) -> str:
    """An untrained network of torchvision, its running statistics those of photos: what `spans`
    says, and which places' vectors relu's zeros tell."""
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, num_classes=10).to(device).train()
    batch = embedded_batch(16, image_size=128)
    mean, std = (torch.tensor(part, device=device).view(3, 1, 1) for part in (MEAN, STD))
    x = (batch.images.to(device) - mean) / std
    with torch.no_grad():
        for _ in range(20):
            model(x[8:])
    model.train(train)
    for part in model.modules():
        if isinstance(part, nn.Dropout | torchvision.ops.StochasticDepth):
            part.eval()
    x, y = x[:B], torch.arange(B, device=device) % 10
    update = unsum.capture(model, x, y, train=train)
    named = f"| {name} | {'train' if train else 'eval'} | {B} |"
    start = time.perf_counter()
    try:
        leak = unsum.separate(model, update, "spans", batch_size=B, device=device)
        head = copy.deepcopy(model)
        with (
            inputs_of(head.get_submodule(unsum.head.find_head(model)[0])) as features,
            torch.no_grad(),
        ):
            head(x)
        error = torch.cdist(features[-1].double(), leak.features.double()).amin(1) / features[
            -1
        ].norm(dim=1)
        said = (
            f"{leak.batch_size} samples, features to "
            f"{float(error.max()):.0e}{', exact' if leak.exact else ''}"
        )
    except UnsumError as reason:
        said = f"refused: {reason}"
    seconds = time.perf_counter() - start
    found = read_places(model, update, torch.device(device), 0)
    if found is None:
        return f"{named} | | {said} | {seconds:.1f} |"
    copied = copy.deepcopy(model)
    with inputs_of(copied.get_submodule(found.layer.name)) as seen, torch.no_grad():
        copied(x)
    true = nn.functional.normalize(seen[-1].double().permute(0, 2, 3, 1).flatten(0, 2))
    error, which = torch.cdist(nn.functional.normalize(found.vectors), true).min(1)
    right = error < 1e-2
    worst = f" to {float(error[right].max()):.0e}" if bool(right.any()) else ""
    many = f"{len(set(which[right].tolist()))} of {len(true)}{worst}"
    return f"{named} `{found.layer.name}` | {many} | {said} | {seconds:.1f} |"


def speed_row(setting: Setting, x: Tensor, labels: Tensor, device: str) -> str:
    """Seconds of the separation beside those of the client's own gradient, and memory beside the
    gradient's size."""
    model, x, y = prepared(setting, x, labels, None, device)
    sent(model, setting, x, y)
    _peak(device)
    start = time.perf_counter()
    update = sent(model, setting, x, y)
    _peak(device)
    client = time.perf_counter() - start
    size = sum(g.numel() * g.element_size() for g in update.gradients.values())
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    before = _peak(device)
    start = time.perf_counter()
    leak = unsum.separate(model, update, "spans", batch_size=len(x), device=device)
    seconds = time.perf_counter() - start
    more = max(0, _peak(device) - before)
    return (
        f"{_named(setting)} {leak.batch_size} of {setting.B} | {seconds:.1f} | "
        f"{seconds / client:.1f} | {more / 1e6:.0f} | {more / size:.1f} |"
    )


def _peak(device: str) -> int:
    """Bytes at most so far, of the process or of the device, whose work is done by then."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def _truth(model: nn.Module, layer: str, x: Tensor, precision: str = "") -> tuple[Tensor, Tensor]:
    """What the client's layers read, in the client's own arithmetic: half precision moves maps by a
    few percent by itself."""
    copied = copy.deepcopy(model)
    head = copied.get_submodule(unsum.head.find_head(model)[0])
    with (
        inputs_of(copied.get_submodule(layer)) as maps,
        inputs_of(head) as features,
        torch.no_grad(),
        _cast(x, precision),
    ):
        copied(x)
    return maps[-1].double().flatten(1), features[-1].double()


def _named(setting: Setting) -> str:
    mode = "train" if setting.train else "eval"
    statistics = "sent" if setting.buffers else "unknown" if setting.train else "running"
    labels = "equal" if setting.equal else "any"
    kind = setting.precision or (f"noise {setting.noise:g}" if setting.noise else "float32")
    name = f"{setting.network}, {setting.steps} steps" if setting.steps else setting.network
    return f"| {name} | {mode} | {statistics} | {setting.B} | {setting.C} | {labels} | {kind} |"


def settings(table: str) -> Iterator[Setting]:
    if table == "small":
        for B in (1, 4, 8, 16, 24, 30):
            for train, buffers in ((False, False), (True, True), (True, False)):
                yield Setting("resnet18", B, 10, train, buffers)
        yield Setting("resnet18", 16, 2)
        yield Setting("resnet18", 16, 10, equal=True)
    if table == "large":
        base = Setting("resnet50", 8, 1000)
        yield from (replace(base, C=10, equal=True), replace(base, C=2), replace(base, B=10, C=10))
        yield from (
            base,
            replace(base, equal=True),
            replace(base, train=False),
            replace(base, buffers=True),
        )
    if table == "trained":
        for B in (4, 8, 16):
            for train, buffers in ((False, False), (True, True), (True, False)):
                yield Setting("resnet18", B, 10, train, buffers, steps=300)
    if table == "pictures":
        for B in (1, 4, 8):
            for steps in (0, 300):
                for train, buffers in ((False, False), (True, True)):
                    yield Setting("resnet18", B, 10, train, buffers, steps=steps)
    if table == "speed":
        yield from (
            Setting("resnet18", B, 10, train) for B in (4, 16, 30) for train in (False, True)
        )
    if table == "noise":
        base = Setting("resnet18", 8, 10)
        yield from (replace(base, noise=noise) for noise in (1e-5, 1e-4, 1e-3, 1e-2))
        for train, buffers in ((True, False), (True, True), (False, False)):
            coarse = replace(base, train=train, buffers=buffers)
            yield from (
                replace(coarse, precision=precision) for precision in ("float16", "bfloat16")
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "table", choices=["small", "large", "noise", "trained", "pictures", "networks", "speed"]
    )
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, help="only rows of this batch size")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, and of the training")
    parser.add_argument("--names", nargs="*", default=NETWORKS, help="of other networks")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = (
        False  # or the client's own rounding is larger
    )
    if options.table == "networks":
        print("| network | mode | B | layer | places told | answer | s |\n|" + "---|" * 7)
        for name in options.names:
            for train in (False, True):
                for B in (options.batch,) if options.batch else (1, 2):
                    print(network_row(name, B, train, options.device), flush=True)
        return
    if options.photos is None:
        parser.error("--photos is needed")
    rows = (replace(one, seed=options.seed) for one in settings(options.table))
    chosen = [one for one in rows if options.batch in (None, one.B)]
    x, labels = photos(
        options.photos,
        5000 if chosen[0].steps or chosen[-1].steps else max(one.B for one in chosen),
    )
    if options.table == "speed":
        columns = "found | s | times the client's gradient | MB more | times the gradient's size |"
        print(
            "| network | mode | statistics | B | C | labels | gradient | "
            + columns
            + "\n|"
            + "---|" * 12
        )
        # each in a process of its own: a process's largest memory never shrinks
        for setting in chosen:
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                print(
                    pool.submit(speed_row, setting, x, labels, options.device).result(), flush=True
                )
        return
    pictures = options.table == "pictures"
    columns = "answer | deepest map | its error | dB, least / median | pixels certified | s |"
    plain = "found | labels right | maps | features | exact | s |"
    print(
        "| network | mode | statistics | B | C | labels | gradient | "
        + (columns if pictures else plain)
    )
    print("|" + "---|" * 13)
    for setting in chosen:
        make = picture_row if pictures else row
        print(make(setting, x, labels, options.weights, options.device), flush=True)


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
