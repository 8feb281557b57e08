"""What local training leaves for the attack: recovery against the number of local steps, the learning rate and the batch.

    python benchmarks/local_steps.py --out docs/results/tables/local-steps.md

A client trains a small network with BatchNorm on crops of the embedded photos, by SGD, and sends its whole state dict back. The
server takes the difference, as `unsum.integrations.rounds.seen` does, and attacks it twice: with the exact solver, as if the mean
of the steps' gradients were one gradient, and with `local-steps`, which follows the steps. The truth is only compared with.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import unsum
from unsum.client.step import in_mode
from unsum.data import embedded_batch
from unsum.head import collect_features
from unsum.integrations.finding import expected_leakage
from unsum.integrations.rounds import seen
from unsum.integrations.time_limit import OutOfTime, within
from unsum.local_training import LocalTraining

CLASSES, SIDE, PATIENCE = 100, 32, 40.0


@dataclass(frozen=True)
class Case:
    """One way of local training: `steps` steps of `batch` samples, each on a batch of its own or all on the same one."""

    steps: int = 1
    rate: float = 0.1
    batch: int = 8
    same: bool = False  # every step sees the same batch
    momentum: float = 0.0
    decay: float = 0.0
    decay_known: bool = True
    rate_known: bool = True
    size_known: bool = False


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    widths, layers = (3, 16, 32, 64), []
    for channels, width in pairwise(widths):
        layers += [nn.Conv2d(channels, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, CLASSES))


def pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    photos = embedded_batch(16, image_size=48)
    generator = torch.Generator().manual_seed(seed)
    images, labels = [], []
    for which in torch.randperm(max(count, 16), generator=generator)[:count] % 16:
        top, left = torch.randint(16, (2,), generator=generator).tolist()
        images.append(photos.images[which, :, top : top + SIDE, left : left + SIDE])
        labels.append(int(photos.targets[which]))
    return torch.stack(images), torch.tensor(labels)


def trained(model: nn.Module, case: Case, images: Tensor, labels: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The state dict that the client sends, and (visits, samples, H) the features, each in the step that used the sample."""
    local = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(local.parameters(), lr=case.rate, momentum=case.momentum, weight_decay=case.decay)
    features = []
    for step in range(case.steps):
        place = 0 if case.same else step * case.batch
        chosen = slice(place, place + case.batch)
        with in_mode(local, True):
            features.append(collect_features(local, images[chosen]))
        optimizer.zero_grad()
        nn.functional.cross_entropy(local(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    return local.state_dict(), torch.stack(features) if case.same else torch.cat(features)[None]


def attacked(case: Case, seed: int, method: str) -> dict[str, float]:
    model = network(seed)
    images, labels = pictures(case.batch * (1 if case.same else case.steps), seed)
    after, features = trained(model, case, images, labels)
    known = LocalTraining(
        case.rate if case.rate_known else None,
        steps=case.steps,
        batch_size=len(labels) if case.size_known else None,
        weight_decay=case.decay if case.decay_known else 0.0,
        momentum=case.momentum,
        epochs=case.steps if case.same else 1,
    )
    found = seen(model, model.state_dict(), after, known)
    start = time.perf_counter()
    try:
        leak = within(PATIENCE, lambda: unsum.separate(model, found.update, method, seed=seed))
    except OutOfTime:
        return {"late": 1.0, "seconds": PATIENCE}
    seconds = time.perf_counter() - start
    # On the sum, one answer for all visits: compared with their mean. Step by step: with the first.
    truth = features.mean(0) if method == "exact" else features[0]
    scores = unsum.score(leak, features=truth, targets=labels)
    return {
        "late": 0.0,
        "exact": float(leak.exact),
        "wrong": float(leak.exact and scores["worst_feature_error"] > 10 * max(leak.predicted_error, 1e-6)),
        "predicted": leak.predicted_error,
        "leakage": expected_leakage(leak),
        "found": float(leak.batch_size),
        "true": float(len(labels)),
        "labels": scores["label_correct"],
        "error": scores["worst_feature_error"],
        "seconds": seconds,
    }


def row(case: Case, repeats: int) -> str:
    what = "the same" if case.same else "new ones"
    head = f"| {case.steps} | {case.batch} {what} | {case.rate:g}{'' if case.rate_known else ' (unknown)'} | {extras(case)} |"
    parts = [columns([attacked(case, seed, method) for seed in range(repeats)]) for method in ("exact", "local-steps")]
    return f"{head} {' | '.join(parts)} |"


def columns(results: list[dict[str, float]]) -> str:
    """Samples found, labels right, the worst error of any sample's features, prediction, vouched for, seconds."""
    done = [result for result in results if not result["late"]]

    def middle(name: str) -> float:
        return statistics.median(result[name] for result in done)

    if not done:
        return f"out of time ({PATIENCE:g} s) | | | | | "
    exact = sum(int(result["exact"]) for result in done)
    numbers = f"{middle('found'):g} of {middle('true'):g} | {middle('labels'):.0%}"
    errors = f"{middle('error'):.1e} | {middle('predicted'):.1e}"
    late = f" ({len(results) - len(done)} out of time)" if len(done) < len(results) else ""
    wrong = sum(int(result["wrong"]) for result in done)
    said = f"{exact} of {len(done)}{f', {wrong} wrongly' if wrong else ''}{late}"
    return f"{numbers} | {errors} | {said} | {middle('seconds'):.1f}"


def extras(case: Case) -> str:
    parts = []
    if case.momentum:
        parts.append(f"momentum {case.momentum:g}")
    if case.decay:
        parts.append(f"weight decay {case.decay:g}{'' if case.decay_known else ' (unknown)'}")
    if case.size_known:
        parts.append("number of samples known")
    return ", ".join(parts) or "–"


TABLES = {
    "One step": [Case(rate=rate) for rate in (1.0, 0.1, 0.01, 0.001)]
    + [Case(batch=batch) for batch in (2, 16)]
    + [Case(rate_known=False), Case(momentum=0.9), Case(decay=1e-3), Case(decay=1e-3, decay_known=False)],
    "Several steps on the same batch (epochs over one batch)": [
        Case(steps=steps, rate=rate, same=True) for steps in (2, 5) for rate in (0.1, 0.01, 0.001)
    ]
    + [Case(steps=5, rate=0.001, same=True, momentum=0.9), Case(steps=5, rate=0.001, same=True, rate_known=False)]
    + [Case(steps=5, rate=rate, same=True, size_known=True) for rate in (0.1, 0.01, 0.001)],
    "Several steps, each on new samples (one epoch of mini-batches)": [
        Case(steps=steps, rate=rate, batch=batch) for steps, batch in ((2, 4), (4, 2)) for rate in (0.1, 0.01, 0.001)
    ]
    + [Case(steps=2, batch=8, rate=0.01), Case(steps=4, batch=2, rate=0.01, size_known=True)]
    + [Case(steps=4, batch=2, rate=0.001, rate_known=False)]
    + [Case(steps=4, batch=2, rate=rate, momentum=0.9) for rate in (0.1, 0.01, 0.001)]
    + [Case(steps=4, batch=2, rate=0.01, momentum=0.9, decay=1e-3), Case(steps=4, batch=4, rate=0.01)],
}

_EACH = "samples found | labels right | worst error | predicted | vouched for | seconds"
COLUMNS = (
    f"| steps | samples a step | learning rate | besides | *exact*: {_EACH} | *local-steps*: {_EACH} |\n"
    f"|--:|---|---|---|{2 * '---|--:|--:|--:|---|--:|'}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="batches and networks for each row")
    parser.add_argument("--out", type=Path, help="write the tables into this page, below its marker")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    lines: list[str] = []
    for title, cases in TABLES.items():
        lines += [f"## {title}", "", COLUMNS]
        for case in cases:
            lines.append(row(case, chosen.repeats))
            print(lines[-1], flush=True)
        lines.append("")
    if chosen.out:
        marker = "<!-- tables -->"
        page = chosen.out.read_text("utf-8") if chosen.out.exists() else f"# Local training\n\n{marker}\n"
        chosen.out.write_text(page.partition(marker)[0] + marker + "\n" + "\n".join(lines), "utf-8")


if __name__ == "__main__":
    main()
