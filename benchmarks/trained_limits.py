"""Where trained models end: samples that they are sure of, soft labels, and label rows with a positive bias gradient.

    python benchmarks/trained_limits.py sure cases/*.pt         # error against 1 − p_y, from one round and from two
    python benchmarks/trained_limits.py soft cases/*.pt         # smoothing and mixup
    python benchmarks/trained_limits.py positive cases/*.pt     # labels that the bias gradient's sign hides
    python benchmarks/trained_limits.py crowded cases/*.pt      # more samples than half the classes: 32 of 50

The cases are those that `trained_map.py` writes. Nothing is given to the attack.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor, nn

import unsum
from trained_networks import REACH, RECOVERED
from unsum.deadline import time_limit
from unsum.score import score_samples

EPSILON = torch.finfo(torch.float32).eps / 2  # what rounding leaves of p − 1
HEAD_MOVES = 0.01  # standard deviations of the head's weights, from one round to the next


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["sure", "soft", "positive", "crowded"])
    parser.add_argument("cases", type=Path, nargs="+")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 8, 16, 32])
    parser.add_argument("--modes", nargs="+", default=["train", "eval"])
    parser.add_argument("--batches", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    {"sure": sure, "soft": soft, "positive": positive, "crowded": crowded}[options.table](options)


def read_case(path: Path) -> tuple[dict[str, object], nn.Linear]:
    cases = torch.load(path, weights_only=True)
    classes, width = cases["head"]["weight"].shape
    head = nn.Linear(width, classes)
    head.load_state_dict(cases["head"])
    return cases, head


def probabilities(head: nn.Linear, features: Tensor) -> Tensor:
    with torch.no_grad():
        return copy.deepcopy(head).double()(features.double()).softmax(1)


# ---- samples that the model is sure of --------------------------------------------------------------------------------


def sure(options: argparse.Namespace) -> None:
    """Batches of half sure, half ordinary samples; every sample's error by the decade of its 1 − p_y."""
    errors: dict[int, list[tuple[float, float]]] = defaultdict(list)
    gains: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for path in options.cases:
        cases, head = read_case(path)
        for mode in options.modes:
            for features, labels in sure_batches(cases, head, mode, options.batches):
                left = left_over(head, features, labels)
                alone = one_round(head, features, labels)
                both = two_rounds(head, features, labels)
                for rest, single, double in zip(left.tolist(), alone, both, strict=True):
                    decade = math.floor(math.log10(max(rest, 1e-12)))
                    errors[decade].append((single, EPSILON / max(rest, 1e-12)))
                    gains[decade].append((single, double))
    print("| 1 − p_y | samples | found | median error of those | ε / (1 − p_y) | two rounds: found | median error |")
    print("|---|---|---|---|---|---|---|")
    for decade in sorted(errors, reverse=True):
        single = [error for error, _ in errors[decade] if error < 0.5]
        double = [error for _, error in gains[decade] if error < 0.5]
        limit = statistics.median(limit for _, limit in errors[decade])
        print(
            f"| 1e{decade} to 1e{decade + 1} | {len(errors[decade])} | {len(single)} | {middle(single)} | {limit:.0e} "
            f"| {len(double)} | {middle(double)} |"
        )


def middle(values: list[float]) -> str:
    return f"{statistics.median(values):.0e}" if values else "–"


def sure_batches(cases: dict, head: nn.Linear, mode: str, count: int) -> list[tuple[Tensor, Tensor]]:  # type: ignore[type-arg]
    """Batches of 8: four samples of the largest p_y that are left, four from the middle."""
    size = max(B for m, B in cases["batches"] if m == mode)
    features = torch.cat([f for f, _ in cases["batches"][mode, size]])
    labels = torch.cat([y for _, y in cases["batches"][mode, size]])
    order = left_over(head, features, labels).argsort()
    half = len(order) // 2
    picked = [torch.cat([order[4 * i : 4 * i + 4], order[half + 4 * i : half + 4 * i + 4]]) for i in range(count)]
    return [(features[part], labels[part]) for part in picked]


def left_over(head: nn.Linear, features: Tensor, labels: Tensor) -> Tensor:
    """(B,) 1 − p_y, summed over the other classes so that nothing cancels."""
    P = probabilities(head, features)
    P[torch.arange(len(P)), labels] = 0
    return P.sum(1)


def one_round(head: nn.Linear, features: Tensor, labels: Tensor) -> list[float]:
    leak = unsum.separate(head, unsum.capture(head, features, labels))
    return [row.feature_error for row in score_samples(leak, targets=labels, features=features)]


def two_rounds(head: nn.Linear, features: Tensor, labels: Tensor) -> list[float]:
    torch.manual_seed(0)
    later = copy.deepcopy(head)
    with torch.no_grad():
        later.weight.add_(HEAD_MOVES * head.weight.std() * torch.randn_like(head.weight))
    rounds = [(model, unsum.capture(model, features, labels)) for model in (head, later)]
    leak = unsum.separate_rounds(rounds)
    return [row.feature_error for row in score_samples(leak, targets=labels, features=features)]


# ---- soft labels ------------------------------------------------------------------------------------------------------


def soft(options: argparse.Namespace) -> None:
    print(
        "| model | mode | labels | B | samples recovered | worst target error of those | called exact | false claims | median s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for path in options.cases:
        cases, head = read_case(path)
        for mode in options.modes:
            for kind in ("smoothed 0.1", "mixup"):
                for size in options.sizes:
                    print(
                        f"| {cases['accuracy']:.0%} | {mode} | {kind} | {size} | "
                        + soft_cell(cases, head, mode, kind, size, options.batches),
                        flush=True,
                    )


def soft_cell(cases: dict, head: nn.Linear, mode: str, kind: str, size: int, count: int) -> str:  # type: ignore[type-arg]
    """Features of mixed photos are not those of the photos; here they are taken as they come and only labels are mixed."""
    recovered, samples, exact, false, seconds, targets_off = 0, 0, 0, 0, [], [0.0]
    largest = max(B for m, B in cases["batches"] if m == mode)
    for number in range(count):
        features, labels = (part[:size] for part in cases["batches"][mode, largest][number])
        torch.manual_seed(number)
        targets = soft_targets(labels, head.out_features, kind)
        update = unsum.capture(head, features, targets)
        start = time.perf_counter()
        leak = unsum.separate(head, update)
        seconds.append(time.perf_counter() - start)
        rows = score_samples(leak, targets=targets, features=features)
        good = [row for row in rows if row.feature_error < RECOVERED]
        recovered, samples, exact = recovered + len(good), samples + size, exact + leak.exact
        false += leak.exact and any(row.feature_error > 1e-2 for row in rows)
        targets_off += [row.target_error for row in good]
    median = statistics.median(seconds)
    return f"{recovered} of {samples} | {max(targets_off):.0e} | {exact} of {count} | {false} | {median:.1f} |"


def soft_targets(labels: Tensor, classes: int, kind: str) -> Tensor:
    hard = nn.functional.one_hot(labels, classes).float()
    if kind != "mixup":
        return 0.9 * hard + 0.1 / classes
    share = torch.rand(len(labels), 1)
    return share * hard + (1 - share) * hard[torch.randperm(len(labels))]


# ---- positive label rows ----------------------------------------------------------------------------------------------


def positive(options: argparse.Namespace) -> None:
    print(
        "| model | mode | B | labels | in rows of positive ∇b | batches with such | all labels right there | by sign alone |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for path in options.cases:
        cases, head = read_case(path)
        for mode in options.modes:
            for size in options.sizes:
                total, hidden, batches, right, by_sign = 0, 0, 0, 0, 0
                for features, labels in cases["batches"][mode, size][: options.batches]:
                    grad_b = (probabilities(head, features) - nn.functional.one_hot(labels, head.out_features)).mean(0)
                    rows = labels[grad_b[labels] > 0]
                    total, hidden = total + size, hidden + len(rows)
                    if len(rows) == 0 or bool((left_over(head, features, labels) < REACH).any()):
                        continue
                    batches += 1
                    update = unsum.capture(head, features, labels)
                    found = unsum.separate(head, update).targets.argmax(1).sort().values
                    right += found.tolist() == labels.sort().values.tolist()
                    signs = (grad_b < 0).nonzero()[:, 0]
                    by_sign += signs.tolist() == labels.sort().values.tolist()
                print(
                    f"| {cases['accuracy']:.0%} | {mode} | {size} | {total} | {hidden} | {batches} | {right} | {by_sign} |",
                    flush=True,
                )


# ---- more samples than half the classes -------------------------------------------------------------------------------


def crowded(options: argparse.Namespace) -> None:
    """The first 50 classes of the head and 32 samples of them: as crowded as 64 of 100, and a tenth of the work."""
    print("| model | mode | batch | distinct labels | in rows of positive ∇b | recovered of 32 | called exact | s |")
    print("|---|---|---|---|---|---|---|---|")
    for number in range(options.batches):
        for path in options.cases:
            cases, full = read_case(path)
            head = nn.Linear(full.in_features, 50)
            head.load_state_dict({"weight": full.weight[:50], "bias": full.bias[:50]})
            for mode in options.modes:
                pairs = cases["batches"][mode, 64]
                features, labels = torch.cat([f for f, _ in pairs]), torch.cat([y for _, y in pairs])
                known = (labels < 50).nonzero()[:, 0]
                part = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(number))[:32]]
                update = unsum.capture(head, features[part], labels[part])
                hidden = int((update.gradients["bias"][labels[part]] > 0).sum())
                leak = unsum.separate(head, update)
                rows = score_samples(leak, features=features[part])
                found = sum(row.feature_error < RECOVERED for row in rows)
                distinct = len(labels[part].unique())
                cells = (
                    f"{cases['accuracy']:.0%}",
                    mode,
                    number + 1,
                    distinct,
                    hidden,
                    found,
                    leak.exact,
                    f"{leak.seconds:.0f}",
                )
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
