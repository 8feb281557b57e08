"""What does a server read that changes the model first, and does a client notice?

python -m unsum_bench.scripts.active_servers hits [--photos FOLDER_OR_TAR] [--size 64] [--draws 20]
python -m unsum_bench.scripts.active_servers detector [--weights FILE:MODEL ...]

Without --photos, batches are random crops of the embedded photos.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator

import torch
import torchvision
from torch import Tensor, nn

import unsum
from unsum import active
from unsum.data import embedded_batch, photo_count, read_photos
from unsum.doctor.tampering import tampering
from unsum.files.tensor_file import read_tensors
from unsum.models import load_model

BATCH, BINS = 64, 128
CLOSE = 60.0  # dB
Make = Callable[[int], tuple[nn.Module, active.Reader]]  # seed → changed model and reader


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["hits", "detector"])
    parser.add_argument("--photos", help="a folder, tar or npz of photos")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--model", default="resnet18", help="of torchvision's, at random weights")
    parser.add_argument(
        "--weights",
        nargs="*",
        default=[],
        help="FILE of trained weights to look for false alarms in",
    )
    parser.add_argument("--disguises-only", action="store_true", help="leave out the honest models")
    options = parser.parse_args()
    if options.what == "hits":
        print_hits(options.photos, options.size, options.draws, options.model)
    else:
        if not options.disguises_only:
            print_false_alarms(options.weights)
        print_detections()


# --- hits -----------------------------------------------------------------------------------------


def print_hits(photos: str | None, size: int, draws: int, name: str) -> None:
    pool = crops(size) if photos is None else read_photos(photos, size=size).images.float() / 255
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None, num_classes=1000)
    model.image_size = size
    source = "crops of the embedded photos" if photos is None else f"{len(pool)} photos"
    print(
        f"{name}, {size}², {source}; {BATCH} samples a batch, {draws} draws, train mode, random "
        "labels.\n"
    )
    print(
        "| server | alone | read and certified | PSNR of those (least / mean) | certified wrongly "
        "| others above 60 dB | s |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(len(pool), generator=generator)
    cut = 6 * len(pool) // 10
    # the server's photos are none of the client's
    own, private = pool[order[:cut]], pool[order[cut:]]
    imprint = f"imprint:bins={BINS}"
    servers: dict[str, Make] = {
        f"{imprint}, declared Gaussian": lambda seed: active.modify(model, imprint, seed=seed),
        f"{imprint}, quantiles of {len(own)} photos": lambda seed: active.modify(
            model, imprint, auxiliary=own, seed=seed
        ),
        f"{imprint}, thresholds are {BINS - 1} photos": lambda seed: order_statistics(
            model, own, seed
        ),
        "traps:rows=256": lambda seed: active.modify(model, "traps:rows=256", seed=seed),
        "traps:rows=256,factor=0.95": lambda seed: active.modify(
            model, "traps:rows=256,factor=0.95", seed=seed
        ),
    }
    for title, make in servers.items():
        print(row_of_hits(title, make, private, draws), flush=True)
    fair, published = (
        active.chance_of_hits(BATCH, BINS),
        active.chance_of_hits(BATCH, BINS, auxiliary=BINS - 1),
    )
    print(
        f"\nExpected: {fair:.2f} with equally likely bins, {published:.2f} where thresholds are "
        "samples themselves."
    )


def row_of_hits(title: str, make: Make, private: Tensor, draws: int) -> str:
    generator = torch.Generator().manual_seed(2)
    alone, sure, wrong, missed, quality, seconds = 0, 0, 0, 0, [], 0.0
    for draw in range(draws):
        changed, reader = make(draw)
        x = private[torch.randperm(len(private), generator=generator)[:BATCH]]
        update = unsum.capture(changed, x, torch.randint(1000, (len(x),), generator=generator))
        start = time.perf_counter()
        found = reader.read(update)
        seconds += time.perf_counter() - start
        apart = torch.cdist(found.inputs.flatten(1).double(), x.flatten(1).double()).min(1).values
        psnr = -20 * (apart / x[0].numel() ** 0.5).clamp_min(1e-7).log10()
        alone += in_bins_alone(reader, x)
        sure += int(found.exact.sum())
        wrong += int((found.exact & (psnr < CLOSE)).sum())
        missed += int((~found.exact & (psnr >= CLOSE)).sum())
        quality += psnr[found.exact].tolist()
    counted = f"{alone / draws:.2f}" if alone else "–"
    decibel = f"{min(quality):.0f} / {sum(quality) / len(quality):.0f} dB" if quality else "–"
    return (
        f"| {title} | {counted} | {sure / draws:.2f} | {decibel} | {wrong} | {missed} | "
        f"{seconds / draws:.2f} |"
    )


def order_statistics(model: nn.Module, own: Tensor, seed: int) -> tuple[nn.Module, active.Reader]:
    """Thresholds that are themselves as many photos: the published count assumes that every filling
    of bins is equally likely."""
    few = own[torch.randperm(len(own), generator=torch.Generator().manual_seed(seed))[: BINS - 1]]
    changed, reader = active.modify(model, f"imprint:bins={BINS}", seed=seed)
    reader.thresholds[1:] = (few.flatten(1).double() @ reader.h.double()).sort().values
    with torch.no_grad():
        for layer in (changed.front.rows, changed.front.witness):
            layer.bias.copy_(-reader.thresholds)
    return changed, reader


def in_bins_alone(reader: active.Reader, x: Tensor) -> int:
    if reader.name != "imprint":
        return 0
    places = torch.bucketize(x.flatten(1).double() @ reader.h.double(), reader.thresholds)
    return sum(count == 1 for count in Counter(places.tolist()).values())


def crops(size: int, count: int = 1000) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    whole = embedded_batch(photo_count(), image_size=4 * size).images
    made = []
    for i in range(count):
        side = int(torch.randint(size, 3 * size, (1,), generator=generator))
        top, left = torch.randint(4 * size - side, (2,), generator=generator).tolist()
        crop = whole[i % len(whole), :, top : top + side, left : left + side]
        made.append(nn.functional.interpolate(crop[None], size=size, mode="area")[0])
    return torch.stack(made)


# --- detector -------------------------------------------------------------------------------------

_TOO_LARGE = (
    "vit_h", "vit_l", "regnet_y_128", "regnet_x_32", "regnet_y_32", "regnet_x_16", "regnet_y_16",
    "convnext_large", "convnext_base", "efficientnet_b7", "efficientnet_v2_l", "wide_resnet101",
    "resnext101", "vgg13", "vgg16", "vgg19", "swin_b", "swin_v2_b", "densenet161",
    "efficientnet_b6", "efficientnet_v2_m",
)  # fmt: skip
_TIMM = (
    "test_resnet", "test_vit", "test_convnext", "test_efficientnet", "mobilevit_xxs",
    "mixer_s32_224", "gmlp_ti16_224", "resnetv2_50", "nf_resnet50", "deit_tiny_patch16_224",
    "convmixer_768_32", "poolformer_s12", "repvgg_a0",
)  # fmt: skip


def models(weights: list[str]) -> Iterator[tuple[str, nn.Module | dict[str, Tensor]]]:
    for name in torchvision.models.list_models(module=torchvision.models):
        if not name.startswith(_TOO_LARGE):
            extra = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
            yield f"torchvision {name}", torchvision.models.get_model(name, weights=None, **extra)
    for name in _TIMM:
        yield f"timm {name}", load_model(f"timm:{name}", classes=100).model
    for name in ("default", "mlp"):
        yield f"unsum {name}", load_model(name, classes=100).model
    for path in weights:
        from pathlib import Path

        yield f"trained {Path(path).stem}", read_tensors(Path(path), "weights").tensors


def print_false_alarms(weights: list[str]) -> None:
    groups: Counter[str] = Counter()
    alarms, slowest = [], (0.0, "")
    for name, model in models(weights):
        start = time.perf_counter()
        found = [finding for finding in tampering(model) if finding.mark != "ok"]
        slowest = max(slowest, (time.perf_counter() - start, name))
        groups[name.split()[0]] += 1
        alarms += [f"{name}: {finding.sentence}" for finding in found]
    tried = ", ".join(f"{count} {group}" for group, count in groups.items())
    print(f"Honest models tried: {sum(groups.values())} ({tried}). False alarms: {len(alarms)}. "
          f"Slowest: {slowest[1]}, {slowest[0]:.1f} s.\n", flush=True)  # fmt: skip
    for alarm in alarms:
        print(f"- {alarm}")


def print_detections() -> None:
    """Detected of ten, and what the attack itself still reads, for disguises of growing
    strength."""
    seeds, size = 10, 32
    pool = crops(size, 200)
    print(f"| server | disguise | detected of {seeds} | samples it still reads (of 16) |")
    print("|---|---|--:|--:|")
    for server in (
        f"imprint:bins={BINS}",
        "imprint:bins=16",
        "traps:rows=256",
        "traps:rows=256,factor=0.95",
    ):
        for title, disguise in disguises().items():
            caught, read = 0, 0
            for seed in range(seeds):
                torch.manual_seed(seed)
                net = nn.Sequential(
                    nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16 * 16, 100)
                )
                changed, _ = active.modify(net, server, shape=(3, size, size), seed=seed)
                disguise(changed)
                # an easy catch
                plain = {name: p for name, p in changed.named_parameters() if "witness" not in name}
                caught += any(finding.mark == "tampered" for finding in tampering(plain))
                x = pool[torch.randperm(len(pool))[:16]]
                update = unsum.capture(changed, x, torch.arange(16))
                read += still_read(changed, update, x)
            print(f"| {server} | {title} | {caught} | {read / seeds:.1f} |", flush=True)


def still_read(model: nn.Module, update: unsum.Update, x: Tensor) -> int:
    """Samples that a row or a difference of neighboring thresholds gives away at 30 dB: the truth
    judges, not the reader.

    The server knows its own disguise: rows are taken in the order of their thresholds, negated ones
    by themselves.
    """
    W, b = (update.gradients[f"front.rows.{part}"].double() for part in ("weight", "bias"))
    rows, readings = model.front.rows, [W / b[:, None]]
    with torch.no_grad():
        side, thresholds = rows.weight.sum(1).sign(), -rows.bias / rows.weight.norm(dim=1)
    for sign in (-1, 1):
        order = (side == sign).nonzero().flatten()
        order = order[thresholds[order].argsort()]
        readings.append(W[order].diff(dim=0) / b[order].diff()[:, None])
    apart = (
        torch.cdist(torch.cat(readings).nan_to_num(1e3, 1e3, -1e3), x.flatten(1).double())
        .min(0)
        .values
    )
    return int((-20 * (apart / x[0].numel() ** 0.5).log10() > 30).sum())


def disguises() -> dict[str, Callable[[nn.Module], None]]:
    changes: dict[str, Callable[[nn.Module], None]] = {"none": lambda _model: None}
    changes["rows scaled by 0.1 … 10"] = lambda model: scale_rows(
        model, 10 ** (2 * torch.rand(rows_of(model)) - 1)
    )
    changes["rows permuted"] = permute_rows
    changes["half of the rows negated"] = lambda model: scale_rows(
        model, torch.rand(rows_of(model)).sub(0.5).sign()
    )
    changes["identity convolution in front"] = put_identity_in_front
    for share in (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0):
        changes[f"noise of {share:g} of a row's size"] = lambda model, share=share: add_noise(
            model, share
        )
    changes["scaled, permuted, negated and noise of 0.1"] = everything
    return changes


def rows_of(model: nn.Module) -> int:
    return len(model.front.rows.weight)


@torch.no_grad()
def scale_rows(model: nn.Module, factors: Tensor) -> None:
    model.front.rows.weight *= factors[:, None]
    model.front.rows.bias *= factors


@torch.no_grad()
def permute_rows(model: nn.Module) -> None:
    order = torch.randperm(rows_of(model))
    for parameter in model.front.rows.parameters():
        parameter.copy_(parameter[order])


@torch.no_grad()
def add_noise(model: nn.Module, share: float) -> None:
    weight = model.front.rows.weight
    noise = torch.randn_like(weight)
    weight += share * noise * weight.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True)


class Behind(nn.Module):
    """A layer behind a convolution that changes nothing; the names under which its rows are read
    stay."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.rows, self.layer = layer.rows, layer
        self.convolution = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        nn.init.dirac_(self.convolution.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.convolution(x))


def put_identity_in_front(model: nn.Module) -> None:
    model.front = Behind(model.front)


def everything(model: nn.Module) -> None:
    scale_rows(
        model,
        10 ** (2 * torch.rand(rows_of(model)) - 1) * torch.rand(rows_of(model)).sub(0.5).sign(),
    )
    permute_rows(model)
    add_noise(model, 0.1)


if __name__ == "__main__":
    main()
