"""Does a gate ever pass where a simple attack reads what it calls safe? Audits bred for a green,
and held against simple attacks.

    # goes on where the file ends
    python -m unsum_bench.scripts.greens --tries 500 --json greens.json
    python -m unsum_bench.scripts.greens --minutes 8 --seed 3 --json greens-3.json
    python -m unsum_bench.scripts.greens --read greens-*.json  # several files, counted together

Small networks (a perceptron, LeNet, one that pools, one like MobileNet, embeddings over two
columns) at 8² and 16², one to sixteen samples, every kind of defense, the batch size granted or
not. Half of the cases are children of those that passed with the largest leakage: greens are
likeliest to be wrong beside the level. A green is a gate at 20 % that passes; an audit whose gate
is undecided is held against the attacks on labels and rows alone. Either is contradicted when, in
four draws of the noise,

- a row of a dense layer over its bias (∇W_i / ∇b_i) is nine tenths of a sample;
- a label rule, the lowest row sums, or a matched filter of the rows of ∇W with the mean feature of
  public photos reads labels that the report does not count as given away;
- a separator by itself, or with the labels of any rule, or the rows of these labels, read 30 % of a
  sample's features;
- the rows of an embedding that are not zero, or stand out, name what occurred, and the report does
  not; or
- matching at 16², in one of three settings with the labels granted, draws half of a picture.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import unsum
from unsum.audit import Audit
from unsum.audit.leakage import DEFAULT_LEVEL
from unsum.data import embedded_batch
from unsum.defend import parse_defense
from unsum.errors import UnsumError
from unsum_bench.scripts import simple_attacks
from unsum_bench.scripts.simple_attacks import Target

DEFENSES = (
    "", "clip:0.1", "prune:0.5", "prune:0.9", "prune:0.99", "sign", "noise:1e-4", "noise:1e-3",
    "noise:1e-2", "noise:0.1", "noise:1", "laplace:1e-3", "soteria:0.4", "soteria:0.8", "qsgd:4",
    "quantize:2", "quantize:4", "float16", "bfloat16", "drop-bias", "drop-head", "prune-global:0.9",
    "smooth:0.1", "clip-layers:0.1",
)  # fmt: skip
KINDS = ("mlp", "lenet", "lenet relu", "pooled", "mobile", "embedded")
DRAWS = 4  # of a defense's noise, in all of which an attack must read what contradicts a green
COLUMNS = (30, 200)  # values of the two columns


@dataclass(frozen=True)
class Case:
    """A client, its model and its defense, as numbers and names that a file holds."""

    kind: str
    side: int
    samples: int
    classes: int
    defense: str
    size_known: bool
    alike: bool  # whether all samples have one label
    seed: int

    @classmethod
    def drawn(cls, chance: random.Random) -> Case:
        return cls(
            kind=chance.choice(KINDS),
            side=chance.choice((8, 16, 16)),
            samples=chance.choice((1, 2, 2, 2, 4, 8, 16)),
            classes=chance.choice((2, 5, 10, 20, 40)),
            defense=chance.choice(DEFENSES),
            size_known=chance.random() < 0.5,
            alike=chance.random() < 0.1,
            seed=chance.randrange(10_000),
        )

    def child(self, chance: random.Random) -> Case:
        """With one or two genes of another case."""
        other, names = asdict(Case.drawn(chance)), list(asdict(self))
        genes = [*chance.sample(names, chance.choice((1, 2))), "seed"]
        return Case(**asdict(self) | {name: other[name] for name in genes})

    def model(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return _MODELS[self.kind](self)

    def data(self) -> tuple[Tensor, Tensor]:
        torch.manual_seed(self.seed + 1)
        labels = (
            torch.randint(self.classes, (1 if self.alike else self.samples,))
            .expand(self.samples)
            .clone()
        )
        if self.kind == "embedded":
            return torch.stack(
                [torch.randint(size, (self.samples,)) for size in COLUMNS], 1
            ).float(), labels
        photos = embedded_batch(16, image_size=self.side).images
        return photos[torch.randperm(len(photos))[: self.samples]], labels


class Embedded(nn.Module):
    """(B, 2) codes → (B, classes)."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.columns = nn.ModuleList(nn.Embedding(size, 6) for size in COLUMNS)
        self.layers = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, case.classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(
            torch.cat([one(x[:, i].long()) for i, one in enumerate(self.columns)], dim=1)
        )


def _lenet(case: Case, activation: type[nn.Module]) -> nn.Module:
    layers = [nn.Conv2d(3, 12, 5, 2, 2), activation(), nn.Conv2d(12, 12, 5, 2, 2), activation()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * (case.side // 4) ** 2, case.classes))


def _mlp(case: Case) -> nn.Module:
    width = 3 * case.side**2
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, case.classes))


def _pooled(case: Case) -> nn.Module:
    layers = [nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, case.classes)
    )


def _mobile(case: Case) -> nn.Module:
    """Normalized maps, features that may be negative, and dropout."""
    layers = [
        nn.Conv2d(3, 32, 3, 2, 1),
        nn.BatchNorm2d(32),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    ]
    head = [nn.Linear(128, 96), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(96, case.classes)]
    return nn.Sequential(*layers, *head)


_MODELS = {
    "mlp": _mlp,
    "lenet": lambda case: _lenet(case, nn.Sigmoid),
    "lenet relu": lambda case: _lenet(case, nn.ReLU),
    "pooled": _pooled,
    "mobile": _mobile,
    "embedded": Embedded,
}


@dataclass
class Outcome:
    """What came of one audit; `gate` is empty where the client or the audit refused."""

    case: dict[str, Any]
    gate: str = ""
    level: str = ""
    worst: float = 0.0
    contradicted: dict[str, float] = field(default_factory=dict)  # attack → how much it read
    seconds: float = 0.0

    @property
    def green(self) -> bool:
        return self.gate == "passed"


def tried(case: Case) -> Outcome:
    """One audit, and the simple attacks on the same update where its gate passes."""
    start, outcome = time.perf_counter(), Outcome(asdict(case))
    model, (x, y) = case.model(), case.data()
    defenses = [parse_defense(case.defense)] if case.defense else []
    try:
        attacker = unsum.Attacker(batch_size_known=case.size_known)
        audit = unsum.audit(model, (x, y), defenses=defenses, attacker=attacker, seed=case.seed)
    except UnsumError:
        return outcome
    outcome.gate, outcome.level = audit.gate(DEFAULT_LEVEL).result, audit.verdict.level
    outcome.worst = max((value for value in audit.leakages if value == value), default=0.0)
    if outcome.gate != "failed":
        outcome.contradicted = contradictions(case, model, (x, y), audit)
    outcome.seconds = time.perf_counter() - start
    return outcome


def contradictions(
    case: Case, model: nn.Module, data: tuple[Tensor, Tensor], audit: Audit
) -> dict[str, float]:
    """What simple attacks read of a client that the report calls safe, in every draw of its noise:
    attack → share."""
    target = Target(model, *data, classes=case.classes, size_known=case.size_known, seed=case.seed)
    updates = [sent(case, model, data, draw) for draw in range(case.seed, case.seed + DRAWS)]
    found = dict[str, float]()
    for attack in simple_attacks.attacks(
        target, audit, samples=audit.gate(DEFAULT_LEVEL).result == "passed"
    ):
        least = 1.0
        for update in updates:  # luck does not last
            least = min(least, attack.read(target, update))
            if least < attack.least:
                break
        else:
            found[attack.name] = round(least, 3)
    return found


def sent(case: Case, model: nn.Module, data: tuple[Tensor, Tensor], draw: int) -> unsum.Update:
    """The first is the one that was audited."""
    torch.manual_seed(draw)
    defenses = [parse_defense(case.defense)] if case.defense else []
    return unsum.capture(model, *data, defenses=defenses)


def search(tries: int, seed: int, file: Path | None, minutes: float = math.inf) -> list[Outcome]:
    """So many audits in all, those in `file` among them; each is written there as soon as it is
    done."""
    done, until = (
        outcomes([file] if file is not None and file.exists() else []),
        time.monotonic() + 60 * minutes,
    )
    for number in range(len(done), tries):
        if time.monotonic() > until:
            break
        chance = random.Random(f"{seed} {number}")
        # greens of one kind of model would leave no room for the others
        kind = chance.choice(KINDS)
        near = sorted(
            (one for one in done if one.green and one.case["kind"] == kind),
            key=lambda one: -one.worst,
        )[:8]
        breed = near and chance.random() < 0.6
        case = Case(**chance.choice(near).case).child(chance) if breed else Case.drawn(chance)
        done.append(tried(case))
        if file is not None:
            with file.open("a") as out:
                out.write(json.dumps(asdict(done[-1])) + "\n")
    return done


def outcomes(files: Sequence[Path]) -> list[Outcome]:
    return [Outcome(**json.loads(line)) for file in files for line in file.read_text().splitlines()]


def told(done: list[Outcome]) -> str:
    """Counts, and every report that was contradicted."""
    greens = [one for one in done if one.green]
    wrong = [one for one in done if one.contradicted]
    gates = Counter(one.gate or "refused" for one in done)
    attacks = Counter(name for one in wrong for name in one.contradicted)
    lines = [
        f"{len(done)} audits: "
        + ", ".join(f"{count} {gate}" for gate, count in gates.most_common()),
        f"Levels of the {len(greens)} greens: {dict(Counter(one.level for one in greens))}",
        f"Greens that a simple attack contradicts: {sum(one.green for one in wrong)}",
        (
            "Undecided reports that leave out what a simple attack reads: "
            f"{sum(not one.green for one in wrong)}"
        ),
        *([f"By attack: {dict(attacks)}"] if wrong else []),
        *(f"  {one.level} {one.case} {one.contradicted}" for one in wrong),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--read", type=Path, nargs="+", help="count what these files hold, and play nothing"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(
        told(
            outcomes(given.read)
            if given.read
            else search(given.tries, given.seed, given.json, given.minutes)
        )
    )
