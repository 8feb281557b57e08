"""Does a gate ever pass where a simple attack reads what it calls safe? Audits bred for a green, and held against five attacks.

    python -m unsum_bench.scripts.greens --tries 500 --json greens.json     # goes on where the file ends

Small networks (a perceptron, LeNet, one that pools, embeddings over two columns) at 8² and 16², one to sixteen samples, every
kind of defense, the batch size granted or not. Half of the cases are children of those that passed with the largest leakage:
greens are likeliest to be wrong beside the level. A green is a gate at 20 % that passes; it is
contradicted when, in four draws of the noise,

- a row of a dense layer over its bias (∇W_i / ∇b_i) is nine tenths of a sample;
- a label rule, with what the audit was granted, reads labels, and the verdict does not tell;
- the lowest row sums of the last layer do so;
- the rows of an embedding that are not zero name what occurred, and the verdict does not tell; or
- matching at 16², of one or two samples whose labels are granted, draws half of a picture.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import unsum
from unsum.audit import Audit
from unsum.audit.leakage import DEFAULT_LEVEL, WHOLE
from unsum.data import embedded_batch
from unsum.defend import parse_defense
from unsum.errors import UnsumError
from unsum.gradients import inputs_of
from unsum.labels import LABEL_RULES
from unsum.match import match
from unsum.score.labels import LabelsRead
from unsum.score.pictures import picture_cosine

DEFENSES = (
    "", "clip:0.1", "prune:0.5", "prune:0.9", "prune:0.99", "sign", "noise:1e-4", "noise:1e-3",
    "noise:1e-2", "noise:0.1", "noise:1", "laplace:1e-3", "soteria:0.4", "soteria:0.8", "qsgd:4", "quantize:2", "quantize:4",
    "float16", "bfloat16", "drop-bias", "drop-head", "prune-global:0.9", "smooth:0.1", "clip-layers:0.1",
)  # fmt: skip
KINDS = ("mlp", "lenet", "lenet relu", "pooled", "embedded")
STEPS, HALF = 400, 0.5  # of matching, and the share of a picture that contradicts a green
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
        labels = torch.randint(self.classes, (1 if self.alike else self.samples,)).expand(self.samples).clone()
        if self.kind == "embedded":
            return torch.stack([torch.randint(size, (self.samples,)) for size in COLUMNS], 1).float(), labels
        photos = embedded_batch(16, image_size=self.side).images
        return photos[torch.randperm(len(photos))[: self.samples]], labels


class Embedded(nn.Module):
    """(B, 2) codes → (B, classes)."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.columns = nn.ModuleList(nn.Embedding(size, 6) for size in COLUMNS)
        self.layers = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, case.classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(torch.cat([one(x[:, i].long()) for i, one in enumerate(self.columns)], dim=1))


def _lenet(case: Case, activation: type[nn.Module]) -> nn.Module:
    layers = [nn.Conv2d(3, 12, 5, 2, 2), activation(), nn.Conv2d(12, 12, 5, 2, 2), activation()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * (case.side // 4) ** 2, case.classes))


def _mlp(case: Case) -> nn.Module:
    width = 3 * case.side**2
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, case.classes))


def _pooled(case: Case) -> nn.Module:
    layers = [nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, case.classes))


_MODELS = {
    "mlp": _mlp,
    "lenet": lambda case: _lenet(case, nn.Sigmoid),
    "lenet relu": lambda case: _lenet(case, nn.ReLU),
    "pooled": _pooled,
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
        audit = unsum.audit(model, (x, y), defenses=defenses, batch_size_known=case.size_known, seed=case.seed)
    except UnsumError:
        return outcome
    outcome.gate, outcome.level = audit.gate(DEFAULT_LEVEL).result, audit.verdict.level
    outcome.worst = max((value for value in audit.leakages if value == value), default=0.0)
    if outcome.green:
        for draw in range(case.seed, case.seed + DRAWS):  # of a defense's noise: luck does not last
            torch.manual_seed(draw)
            update = unsum.capture(model, x, y, defenses=defenses)
            read = contradictions(case, model, update, (x, y), audit)
            both = outcome.contradicted.keys() & read.keys() if draw != case.seed else read.keys()
            outcome.contradicted = {name: read[name] for name in sorted(both)}
            if not read:
                break
    outcome.seconds = time.perf_counter() - start
    return outcome


def contradictions(
    case: Case, model: nn.Module, update: unsum.Update, data: tuple[Tensor, Tensor], audit: Audit
) -> dict[str, float]:
    """What simple attacks read of a green: attack → share."""
    (x, y), found = data, dict[str, float]()
    if (share := by_ratio(model, update, x)) >= WHOLE:
        found["ratio"] = share
    if audit.labels is None or not audit.labels.given_away:
        found |= by_labels(case, model, update, y)
    if not any(named.given_away for named in audit.occurred) and (share := by_embeddings(model, update, x)) > HALF:
        found["embedding rows"] = share
    if x.ndim == 4 and case.side == 16 and case.samples <= 2 and (share := by_matching(model, update, x, y)) >= HALF:
        found["matching"] = share
    return found


def by_ratio(model: nn.Module, update: unsum.Update, x: Tensor) -> float:
    """The largest share of a sample in one row over its bias, of the dense layers that read it."""
    most = 0.0
    for name, layer in model.named_modules():
        grad_W, grad_b = (update.gradients.get(f"{name}.{part}") for part in ("weight", "bias"))
        if not isinstance(layer, nn.Linear) or grad_W is None or grad_b is None:
            continue
        with inputs_of(layer) as seen, torch.no_grad():
            model(x)
        true = seen[-1].flatten(1).double()
        rows = grad_W.double() / grad_b.double()[:, None]
        rows = rows[rows.isfinite().all(1)]
        others = true.mean(0) if len(true) > 1 else torch.zeros_like(true[0])
        for sample in true:
            typical = float((others - sample).square().sum())
            if len(rows) and typical > 1e-6 * float(sample.square().sum()):
                most = max(most, 1 - float((rows - sample).square().sum(1).min()) / typical)
    return most


def by_labels(case: Case, model: nn.Module, update: unsum.Update, y: Tensor) -> dict[str, float]:
    """Label rules, with the batch size where it is granted, and the lowest row sums."""
    true, size = nn.functional.one_hot(y, case.classes).double(), len(y) if case.size_known else None
    answers = dict[str, Tensor]()
    for entry in LABEL_RULES:
        try:
            answers[entry.name] = unsum.labels(model, update, entry.name, batch_size=size, seed=case.seed)
        except UnsumError:
            continue
    name = next((n for n, layer in reversed(list(model.named_modules())) if isinstance(layer, nn.Linear)), "")
    if f"{name}.weight" in update.gradients:
        sums = update.gradients[f"{name}.weight"].double().sum(1)
        answers["row sums"] = (sums < 0).nonzero()[:, 0] if size is None else sums.argsort()[:size]
    read = {
        rule: LabelsRead.of(nn.functional.one_hot(found, case.classes).double(), true)
        for rule, found in answers.items()
    }
    return {rule: one.share for rule, one in read.items() if one.given_away}


def by_embeddings(model: nn.Module, update: unsum.Update, x: Tensor) -> float:
    """The largest share of an embedding's rows in question that those which are not zero tell, beyond a guess."""
    most = 0.0
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding):
            with inputs_of(layer) as seen, torch.no_grad():
                model(x)
            true = set(seen[-1].flatten().tolist())
            rows = set(update.gradients[f"{name}.weight"].any(1).nonzero()[:, 0].tolist())
            guess = len(true) / layer.num_embeddings
            most = max(most, (len(rows & true) - guess * len(rows)) / max(len(true) * (1 - guess), 1e-9))
    return most


def by_matching(model: nn.Module, update: unsum.Update, x: Tensor, y: Tensor) -> float:
    """The largest share of a picture, up to its tone, with the labels granted."""
    try:
        leak = match(model, update, "ig", labels=y, image_size=tuple(x.shape[1:]), steps=STEPS, masked=True)
    except UnsumError:
        return 0.0
    assert leak.images is not None
    cosines = [picture_cosine(found, true) for found in leak.images for true in x]
    return max((cosine * abs(cosine) for cosine in cosines if cosine == cosine), default=0.0)


def search(tries: int, seed: int, file: Path | None) -> list[Outcome]:
    """So many audits in all, those in `file` among them; each is written there as soon as it is done."""
    lines = file.read_text().splitlines() if file is not None and file.exists() else []
    done = [Outcome(**json.loads(line)) for line in lines]
    for number in range(len(done), tries):
        chance = random.Random(f"{seed} {number}")
        kind = chance.choice(KINDS)  # greens of one kind of model would leave no room for the others
        near = sorted((one for one in done if one.green and one.case["kind"] == kind), key=lambda one: -one.worst)[:8]
        breed = near and chance.random() < 0.6
        case = Case(**chance.choice(near).case).child(chance) if breed else Case.drawn(chance)
        done.append(tried(case))
        if file is not None:
            with file.open("a") as out:
                out.write(json.dumps(asdict(done[-1])) + "\n")
    return done


def told(done: list[Outcome]) -> str:
    """Counts, and every green that was contradicted."""
    greens = [one for one in done if one.green]
    wrong = [one for one in greens if one.contradicted]
    gates = Counter(one.gate or "refused" for one in done)
    attacks = Counter(name for one in wrong for name in one.contradicted)
    lines = [
        f"{len(done)} audits: " + ", ".join(f"{count} {gate}" for gate, count in gates.most_common()),
        f"Levels of the {len(greens)} greens: {dict(Counter(one.level for one in greens))}",
        f"Greens that a simple attack contradicts: {len(wrong)} {dict(attacks) if wrong else ''}".rstrip(),
        *(f"  {one.case} {one.contradicted}" for one in wrong),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(told(search(given.tries, given.seed, given.json)))
