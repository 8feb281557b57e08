"""Can an attack be found that passes its ceiling? Evolution over small clients, rewarded for what
an attacker names beyond it.

python -m unsum_bench.scripts.above --minutes 15 --seed 1 --json above.json
python -m unsum_bench.scripts.above --cases 200 --attackers told descent
python -m unsum_bench.scripts.above --merge above-*.json

A case is a client (network, loss, batch, local training, defense, noise), a kind of secret and an
attacker. The product bounds it (`unsum.ceiling.prove`); then the client plays the game that the
bound is of: a secret is drawn, a coin decides between its two values, the client sends one noisy
update through the defenses themselves, and the attacker names the value. Attackers are

- told: knows both noise-free updates, and everything else; likelihood ratio of what was sent, and
  its posterior mean
- descent: gradient descent on the sample, from the truth between the two values
- any attack of the registry, by the sample, features or labels that it answers with, whichever
  world they are nearer to; not those for text, and not those that need a generator that was trained
  before

A case above its ceiling by three standard errors is played again, twenty times as often, with fresh
coins and noise; it counts where it is above by more than four and a half then. A run is resumed
from its record (`--json`).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import unsum
from unsum.attack import attack
from unsum.ceiling import Ceiling, Effort, Simulation, prove
from unsum.ceiling.client import SimulatedClient, World, separated
from unsum.ceiling.secret import Presence, Secret
from unsum.client.capture import capture
from unsum.client.local import capture_local
from unsum.defend import Defense
from unsum.defend.platforms import FlowerFixedClipping, FlowerLocalDP, NvflarePercentile
from unsum.errors import UnsumError
from unsum.gradients import in_eval_mode
from unsum.labels import LABEL_RULES
from unsum.local_training import LocalTraining
from unsum.match import MATCHERS
from unsum.running.deadline import time_limit
from unsum.separate import SEPARATORS
from unsum.update import Update

Genome = dict[str, Any]
CLASSES, INPUTS, SIDE = 4, 16, 4
# for other clients, or in need of a learned generator
OTHERS = {"text", "tokens", "gias", "lti", "hcgla", "ggl"}
SUSPECT, ABOVE, AGAIN = 3.0, 4.5, 20  # standard errors, standard errors, times the games
# pairs of worlds and updates of each; pairs where an attack takes long
PAIRS, NOISES_EACH, FEW = 8, 10, 4
SECONDS = 1.0  # of one attack
# [s] of gradient matching, which is never cut short: on these networks its steps take less
MATCHING = 30.0
# of L-BFGS, with 20 gradients each; other matchers take _STEPS_ELSE of Adam
STEPS = {"dlg": 2, "idlg": 2}
_STEPS_ELSE = 40
MATCHED = {entry.name for entry in MATCHERS} - OTHERS
_LEAST = 0.3  # of a fair coin's deviation: few pairs that agree do not make an error vanish
_TOLD = 0.75  # share of cases of the oracle
_FRESH, _STEP = 0.6, 0.3  # share of cases from anywhere, size of a child's step in orders of noise

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, CLASSES)),
    "relu": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(INPUTS, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    ),
    "tanh": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, CLASSES)
    ),
    "maxpool": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12, CLASSES),
    ),
    "batch norm": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(INPUTS, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
    ),
}
BEFORE: dict[str, Callable[[], list[Defense]]] = {
    "nothing": list,
    "clip": lambda: [unsum.Clip(0.3)],
    "clip layers": lambda: [unsum.ClipLayers(0.2)],
    "sign": lambda: [unsum.Sign(scaled=True)],
    "prune": lambda: [unsum.Prune(0.7)],
    "soteria": lambda: [unsum.Soteria(0.4)],
    "smooth": lambda: [unsum.SmoothLabels(0.3)],
    "mixup": lambda: [unsum.Mixup(0.5)],
    "dp": lambda: [unsum.DPSGD(0.0, clip=0.5)],
    "drop head": lambda: [unsum.DropHead()],
    "drop bias": lambda: [unsum.DropBias()],
    "prune all": lambda: [unsum.PruneGlobal(0.6)],
    "quantize": lambda: [unsum.Quantize(4)],
    "qsgd": lambda: [unsum.QSGD(4)],
    "bfloat16": lambda: [unsum.BFloat16()],
    "flower": lambda: [FlowerFixedClipping(clipping_norm=0.4)],
    "nvflare": lambda: [NvflarePercentile(percentile=30.0, gamma=0.05)],
    "two": lambda: [unsum.Clip(0.5), unsum.Prune(0.3)],
}
AFTER: dict[str, Callable[[], list[Defense]]] = {
    "nothing": list,
    "clip": lambda: [unsum.Clip(0.5)],
    "sign": lambda: [unsum.Sign()],
    "prune": lambda: [unsum.Prune(0.5)],
    "float16": lambda: [unsum.Float16()],
    "quantize": lambda: [unsum.Quantize(6)],
    "laplace": lambda: [unsum.Laplace(1e-3)],
}
CLIP = 0.5  # of DP-SGD and Flower's local one
NOISES: dict[str, Callable[[float, int], Defense]] = {
    "gaussian": lambda noise, _samples: unsum.Noise(noise),
    "laplace": lambda noise, _samples: unsum.Laplace(noise),
    "flower": lambda noise, _samples: FlowerLocalDP(
        clipping_norm=CLIP, sensitivity=noise / math.sqrt(2 * math.log(1.25 / 1e-5))
    ),
    "dp": lambda noise, samples: unsum.DPSGD(noise * samples / CLIP, clip=CLIP),
}
TRAININGS = {
    "gradient": None,
    "two steps": LocalTraining(learning_rate=0.3, steps=2),
    "momentum": LocalTraining(learning_rate=0.3, steps=2, momentum=0.9, epochs=2),
}
SECRETS = ("sample", "label", "presence")


def names() -> list[str]:
    """Every attacker, the oracles first."""
    registered = {entry.name for entry in (*SEPARATORS, *MATCHERS)} - OTHERS
    return [
        "told",
        "descent",
        *sorted(registered),
        *sorted(f"label: {entry.name}" for entry in LABEL_RULES),
    ]


@dataclass(frozen=True)
class Game:
    """A secret of `sample`: two worlds, their noise-free updates, and noisy ones, each with its
    world's number."""

    sample: int
    worlds: tuple[World, World]
    clean: list[Update]
    sent: list[tuple[Update, int]]


@dataclass(frozen=True)
class Client:
    """One case's client: its bound, and the games that it plays."""

    genome: Genome
    case: Simulation
    chain: list[Defense]
    before: list[Defense]
    noise: float

    @classmethod
    def of(cls, genome: Genome) -> Client:
        torch.manual_seed(genome["seed"])
        model = NETWORKS[genome["network"]]()
        with torch.no_grad():
            model[-1].weight.mul_(genome["head"])
        inputs = torch.rand(genome["samples"], 1, SIDE, SIDE)
        targets = torch.randint(CLASSES, (genome["samples"],))
        loss = None if genome["loss"] == "ce" else genome["loss"]
        if loss in ("bce", "mse"):
            targets = nn.functional.one_hot(targets, CLASSES).float()
        before = BEFORE[genome["before"]]()
        how: dict[str, Any] = {
            "training": TRAININGS[genome["training"]],
            "loss": loss,
            "seed": genome["seed"],
        }
        case = Simulation(model, inputs, targets, spread=genome["spread"], **how)
        noise = genome["noise"] * _typical(case, before)
        chain = [*before, NOISES[genome["kind"]](noise, len(inputs)), *AFTER[genome["after"]]()]
        if genome["kind"] == "flower":
            before = [*before, unsum.Clip(CLIP)]
        if genome["kind"] == "dp":
            before = [unsum.DPSGD(0.0, clip=CLIP)]
        return cls(genome, case, chain, before, noise)

    @property
    def secrets(self) -> list[Secret]:
        samples = range(len(self.case.inputs))
        if self.genome["secret"] == "label":
            found = self.case.labels()
            if found is None:
                raise UnsumError("The targets are no classes.")
            return found
        if self.genome["secret"] == "presence":
            return [Presence(self.case.world, i) for i in samples]
        return self.case.secrets()

    def bound(self) -> Ceiling:
        kind = self.genome["secret"]
        effort = Effort(
            pairs=16 if kind == "sample" else 1, labels=kind == "label", presence=kind == "presence"
        )
        return prove(self.case, self.chain, effort=effort)

    def limits(self, ceiling: Ceiling) -> Tensor:
        """(B,) the largest chance to name the secret of each sample."""
        found = {"sample": ceiling.guesses, "label": ceiling.labels, "presence": ceiling.present}[
            self.genome["secret"]
        ]
        assert found is not None
        return found

    def clean(self, world: World) -> Update:
        """What the client computes before the noise; mixup and dropout fall as its seed says."""
        torch.manual_seed(self.case.seed)
        how: dict[str, Any] = {"loss": self.case.loss, "defenses": self.before}
        training = self.case.training
        if training is None:
            return capture(self.case.model, world.inputs, world.targets, **how)
        return capture_local(
            self.case.model, world.inputs, world.targets, learning_rate=training.learning_rate,  # type: ignore[arg-type]
            local_steps=training.steps, epochs=training.epochs, momentum=training.momentum, **how,
        )  # fmt: skip

    def _noisy(self, clean: Update, world: World) -> Update:
        """What is sent, with noise that is drawn now; of DP-SGD the whole step, which draws nothing
        else."""
        if self.genome["kind"] == "dp":
            return capture(
                self.case.model,
                world.inputs,
                world.targets,
                loss=self.case.loss,
                defenses=self.chain,
            )
        for part in self.chain[len(BEFORE[self.genome["before"]]()) :]:
            clean = part(clean)
        return clean

    def games(self, pairs: int, seed: int) -> Iterator[Game]:
        """So many pairs of worlds, and of each some noisy updates."""
        draw, secrets = torch.Generator().manual_seed(seed), self.secrets
        for _ in range(pairs):
            i = int(torch.randint(len(secrets), (), generator=draw))
            secret = secrets[i]
            pair = secret.draw(int(torch.randint(secret.strata, (), generator=draw)), draw)
            clean = [self.clean(pair.one), self.clean(pair.other)]
            sent = []
            for coin in torch.randint(2, (NOISES_EACH,), generator=draw).tolist():
                torch.default_generator.manual_seed(int(torch.randint(2**31, (), generator=draw)))
                sent.append((self._noisy(clean[coin], pair[coin]), coin))
            yield Game(i, (pair.one, pair.other), clean, sent)


def _typical(case: Simulation, before: Sequence[Defense]) -> float:
    """How far apart two worlds usually are: noise is in this unit."""
    client = SimulatedClient(
        case.model, True, case.training, case.loss, tuple(before), seed=case.seed
    )
    pairs = (secret.draw(0, torch.Generator().manual_seed(case.seed)) for secret in case.secrets())
    apart = [separated(client(pair.one), client(pair.other)).squared for pair in pairs]
    return math.sqrt(max(apart)) or 1.0


# Attackers: from what was sent and what is granted to a number, positive for the second world.


def told(client: Client, clean: list[Update], sent: Update) -> float:
    """The likelihood ratio of the noisy update; after something else a correlation with the
    difference."""
    ratio = 0.0
    for name, arrived in sent.gradients.items():
        one, other = (update.gradients[name].double() for update in clean)
        y = arrived.double()
        if client.genome["kind"] == "laplace" and client.genome["after"] == "nothing":
            ratio += float(((y - one).abs() - (y - other).abs()).sum()) / client.noise
        else:
            ratio += float(((y - (one + other) / 2) * (other - one)).sum()) / client.noise**2
    return ratio


def descent(
    client: Client, i: int, worlds: tuple[World, World], sent: Update, steps: int = 10
) -> float:
    """Moves the sample from halfway between both worlds to where its gradient is nearest to what
    was sent."""
    one, other = (world.inputs[i] for world in worlds)
    middle, model = (one + other) / 2, client.case.model
    moved = middle.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([moved], lr=0.1 * float((other - one).abs().max()) + 1e-6)
    named = {name: p for name, p in model.named_parameters() if name in sent.gradients}
    goal = [sent.gradients[name] for name in named]
    for _ in range(steps):
        inputs = worlds[0].inputs.clone()
        inputs[i] = moved
        loss = nn.functional.cross_entropy(model(inputs), worlds[0].targets)
        found = torch.autograd.grad(loss, list(named.values()), create_graph=True)
        gap = torch.stack([(a - b).square().sum() for a, b in zip(found, goal, strict=True)]).sum()
        (moved.grad,) = torch.autograd.grad(gap, moved)
        optimizer.step()
    return float(((moved.detach() - middle) * (other - one)).sum())


def registered(
    client: Client, name: str, i: int, worlds: tuple[World, World], sent: Update
) -> float:
    """Which world the answer of an attack is nearer to, by samples, features or labels."""
    rule = name.removeprefix("label: ") if name.startswith("label: ") else None
    options: dict[str, Any] = {"label_rule": rule} if rule else {"method": name}
    size, seconds = len(worlds[0].inputs), SECONDS
    if name in MATCHED:
        seconds = MATCHING
        if client.genome["secret"] == "sample":
            options["labels"] = worlds[0].targets  # all but the secret is granted
        options["options"] = {
            "image_size": (1, SIDE, SIDE),
            "steps": STEPS.get(name, _STEPS_ELSE),
            "restarts": 1,
        }
    with time_limit(seconds):
        leak = attack(
            client.case.model,
            sent,
            loss=client.case.loss,
            batch_size=size,
            time_limit=seconds,
            **options,
        )
    if client.genome["secret"] != "sample":
        counts = torch.nn.functional.one_hot(leak.targets.argmax(1), CLASSES).sum(0).double()
        own = [_counts(world.targets) for world in worlds]
        return float((counts - own[0]).norm() - (counts - own[1]).norm())
    rows = next(
        (part for part in (leak.images, leak.inputs, leak.features) if part is not None), None
    )
    if rows is None or len(rows) == 0:
        return 0.0
    flat = rows.detach().flatten(1).double()
    if flat.shape[1] == INPUTS:
        truths = [world.inputs[i].flatten().double() for world in worlds]
    else:
        with in_eval_mode(client.case.model), torch.no_grad():
            truths = [client.case.model[:-1](world.inputs)[i].double() for world in worlds]  # type: ignore[index]
        if flat.shape[1] != len(truths[0]):
            return 0.0
    nearest = [float((flat - truth).norm(dim=1).min()) for truth in truths]
    return nearest[0] - nearest[1]


def _counts(targets: Tensor) -> Tensor:
    rows = targets if targets.ndim == 2 else nn.functional.one_hot(targets, CLASSES)
    return rows.sum(0).double()


@dataclass(frozen=True)
class Measured:
    """How an attacker did, in standard errors above the limit: of what it names, and of what it
    explains."""

    games: int
    right: float
    limit: float
    named: float
    explained: float = -math.inf

    @property
    def above(self) -> float:
        return max(self.named, self.explained)


def measure(client: Client, name: str, ceiling: Ceiling, pairs: int, seed: int) -> Measured:
    """Means over pairs of worlds, whose updates are alike; limits beside them."""
    limits, right, bounds, shares = client.limits(ceiling), [], [], []
    oracle = name == "told"
    for game in client.games(pairs, seed):
        named, explained = [], []
        for sent, coin in game.sent if oracle else game.sent[:2]:
            ratio = _answer(client, name, game, sent)
            named.append(0.5 if ratio == 0 else float((ratio > 0) == bool(coin)))
            explained.append(1 - (math.tanh(ratio / 2) - (2 * coin - 1)) ** 2)
        right.append(sum(named) / len(named))
        bounds.append(float(limits[game.sample]))
        shares.append(sum(explained) / len(explained) - float(ceiling.samples[game.sample]))
    over = [one - bound for one, bound in zip(right, bounds, strict=True)]
    exact = (
        name == "told"
        and client.genome["after"] == "nothing"
        and client.genome["secret"] == "sample"
    )
    games = len(right) * (NOISES_EACH if oracle else 2)
    return Measured(
        games,
        _mean(right),
        _mean(bounds),
        _errors(over, games),
        _errors(shares, games) if exact else -math.inf,
    )


def _answer(client: Client, name: str, game: Game, sent: Update) -> float:
    """Positive for the second world."""
    if name == "told":
        return told(client, game.clean, sent)
    if name == "descent":
        return descent(client, game.sample, game.worlds, sent)
    return registered(client, name, game.sample, game.worlds, sent)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _errors(over: Sequence[float], games: int) -> float:
    """How many standard errors the mean lies above 0; the deviation is that of pairs, or of coins
    if that is larger."""
    values = torch.tensor(over, dtype=torch.float64)
    deviation = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 1.0
    return float(values.mean()) / max(deviation, 0.5 / math.sqrt(games) * _LEAST, 1 / games)


# Breeding.


def fresh(
    chance: random.Random, attackers: Sequence[str], noises: Sequence[str] = tuple(NOISES)
) -> Genome:
    others = [name for name in attackers if name != "told"]
    # The oracle is the strongest, and the quickest.
    attacker = (
        "told"
        if "told" in attackers and (not others or chance.random() < _TOLD)
        else chance.choice(others)
    )
    secret = "label" if attacker.startswith("label: ") else chance.choice(SECRETS)
    if attacker not in ("told",) and secret == "presence":
        secret = "sample"
    if attacker == "descent":
        secret = "sample"
    kind = chance.choice(
        [name for name in noises if attacker != "descent" or name in ("gaussian", "laplace")]
    )
    before = chance.choice([name for name in BEFORE if attacker != "descent" or name == "nothing"])
    if kind == "dp":  # every sample by itself, and nothing is left out that noise is added to
        before, secret = "nothing", "sample" if secret == "presence" else secret
    private = "dp" in (before, kind)
    one_step = private or before == "soteria" or attacker == "descent"
    training = "gradient" if one_step else chance.choice(list(TRAININGS))
    mixed = not private and training == "gradient"  # whether BatchNorm can be there
    networks = [name for name in NETWORKS if mixed or name != "batch norm"]
    network = chance.choice(networks)
    # they are written for one gradient of cross-entropy, and some for features of a ReLU
    if attacker in MATCHED:
        training, network = "gradient", chance.choice(("relu", "maxpool"))
    plain = attacker == "descent" or attacker in MATCHED or private or before in ("mixup", "smooth")
    return {
        "attacker": attacker,
        "secret": secret,
        "network": network,
        "loss": "ce" if plain else chance.choice(("ce", "ce", "bce", "mse", "focal:2")),
        "training": training,
        "before": before,
        "after": "nothing" if attacker == "descent" else chance.choice(["nothing", *AFTER]),
        "kind": kind,
        "samples": 1 if attacker == "idlg" else _samples(network, chance),
        # What separates before it matches needs updates with hardly any noise.
        "noise": 10 ** (chance.uniform(-4.0,
        -1.0) if attacker.startswith("soft") else chance.uniform(-1.5, 1.0)),
        # Half of them mirrored at what anybody would answer, half with a deviation that is
        # declared.
        "spread": chance.choice((None, 10 ** chance.uniform(-1.5, 0.5))),
        "head": 10 ** chance.uniform(-0.5, 1.0),
        "seed": chance.randrange(2**30),
    }  # fmt: skip


def _samples(network: str, chance: random.Random) -> int:
    """Two or more besides the one that may be missing, where BatchNorm needs them."""
    return chance.randint(3 if network == "batch norm" else 2, 4)


def child(parent: Genome, chance: random.Random) -> Genome:
    """A little further, with other data."""
    scales = [name for name in ("noise", "spread", "head") if parent[name] is not None]
    changed = {name: parent[name] * 10 ** chance.gauss(0, _STEP) for name in scales}
    samples = (
        parent["samples"] if parent["attacker"] == "idlg" else _samples(parent["network"], chance)
    )
    return parent | changed | {"seed": chance.randrange(2**30), "samples": samples}


@dataclass
class Record:
    """What came of a search."""

    cases: int = 0
    games: int = 0
    seconds: float = 0.0
    suspects: int = 0  # three standard errors above at first
    refused: int = 0
    attackers: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    best: dict[str, tuple[float, Genome]] = field(
        default_factory=dict
    )  # of every kind of case the nearest to its ceiling
    highest: float = -math.inf  # standard errors, of all cases that do not count as above
    above: list[Genome] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    crashes: int = 0
    crashed: list[str] = field(default_factory=list)  # the first of them
    refusals: dict[str, int] = field(default_factory=dict)  # by attacker

    def sentence(self) -> str:
        return (
            f"{self.cases:,} cases of {len(self.kinds)} kinds, {self.games:,} games, "
            f"{len(self.attackers)} attackers in {self.seconds:.0f} s: {len(self.above)} above "
            f"their ceiling ({self.suspects} played again, at most {self.highest:.1f} standard "
            f"errors); {self.refused:,} refused by the attack, {self.crashes} crashed."
        )

    def table(self) -> str:
        rows = [
            f"| {name} | {count:,} |"
            for name, count in sorted(self.attackers.items(), key=lambda item: -item[1])
        ]
        return "\n".join(["| attacker | cases |", "|---|---:|", *rows])

    @classmethod
    def merged(cls, records: Sequence[Record]) -> Record:
        """Of searches that ran side by side; their seconds are those of all processes."""
        whole = cls()
        for one in records:
            for name in ("cases", "games", "seconds", "suspects", "refused", "crashes"):
                setattr(whole, name, getattr(whole, name) + getattr(one, name))
            for name in ("above", "seeds", "crashed"):
                getattr(whole, name).extend(getattr(one, name))
            for name in ("attackers", "kinds", "refusals"):
                counts = getattr(whole, name)
                for key, count in getattr(one, name).items():
                    counts[key] = counts.get(key, 0) + count
            whole.highest = max(whole.highest, one.highest)
        return whole

    def write(self, path: Path) -> None:
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(asdict(self), indent=1) + "\n")
        part.replace(path)

    @classmethod
    def read(cls, path: Path) -> Record:
        record = cls(**json.loads(path.read_text()))
        record.best = {name: (value, genome) for name, (value, genome) in record.best.items()}
        return record


def try_case(genome: Genome, record: Record, *, pairs: int = PAIRS) -> None:
    client, name = Client.of(genome), genome["attacker"]
    count = pairs if name == "told" else FEW
    ceiling = client.bound()
    found = measure(client, name, ceiling, count, genome["seed"])
    played = found.games
    if found.above > SUSPECT:
        record.suspects += 1
        found = measure(client, name, ceiling, AGAIN * count, genome["seed"] + 1)
        played += found.games
    record.cases, record.games = record.cases + 1, record.games + played
    kind = ", ".join(
        str(genome[part])
        for part in ("attacker", "secret", "network", "before", "kind", "training")
    )
    for counts, key in ((record.attackers, name), (record.kinds, kind)):
        counts[key] = counts.get(key, 0) + 1
    if found.above > ABOVE:
        record.above.append(genome | asdict(found))
        return
    record.highest = max(record.highest, found.above)
    if kind not in record.best or found.above > record.best[kind][0]:
        record.best[kind] = (found.above, genome)


def search(
    record: Record, seed: int, *, cases: float = math.inf, minutes: float = math.inf,
    attackers: Sequence[str] = (), say: Callable[[Record], None] = lambda _record: None,
    pairs: int = PAIRS, noises: Sequence[str] = (),
) -> Record:  # fmt: skip
    chance, start, before, told_at = (
        random.Random(f"{seed}-{record.cases}"),
        time.perf_counter(),
        record.seconds,
        0.0,
    )
    attackers = attackers or names()
    record.seeds.append(seed)
    done = 0
    while done < cases and time.perf_counter() - start < 60 * minutes:
        done += 1
        genome = fresh(chance, attackers, noises or tuple(NOISES))
        if record.best and chance.random() > _FRESH:
            two = chance.choices(list(record.best.values()), k=2)
            genome = child(max(two, key=lambda one: one[0])[1], chance)
        try:
            try_case(genome, record, pairs=pairs)
        except UnsumError:
            record.refused += 1
            record.refusals[genome["attacker"]] = record.refusals.get(genome["attacker"], 0) + 1
        except Exception as error:
            # an attack that crashes on a small network is a finding of another kind
            record.crashes += 1
            frames = traceback.extract_tb(error.__traceback__)[:-5:-1]
            where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
            record.crashed = [
                *record.crashed,
                f"{type(error).__name__}: {error} at {where} in {genome}",
            ][:20]
        record.seconds = before + time.perf_counter() - start
        if record.seconds - told_at > 10:
            told_at = record.seconds
            say(record)
    return record


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=None)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attackers", nargs="*", default=(), choices=names(), metavar="NAME")
    parser.add_argument(
        "--noises", nargs="*", default=(), choices=NOISES, metavar="NOISE", help=", ".join(NOISES)
    )
    parser.add_argument(
        "--merge",
        nargs="*",
        type=Path,
        help="records of searches that ran side by side, in one summary",
    )
    parser.add_argument(
        "--json", type=Path, help="the record; where it exists, the search goes on from it"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.merge:
        whole = Record.merged([Record.read(path) for path in options.merge])
        print(
            whole.table(),
            "refused: " + ", ".join(f"{n} {c}" for n, c in sorted(whole.refusals.items())),
            sep="\n\n",
        )
        print(*whole.crashed, *map(str, whole.above), sep="\n")
        print(whole.sentence())
        return
    record = Record.read(options.json) if options.json and options.json.exists() else Record()

    def say(record: Record) -> None:
        print(record.sentence(), file=sys.stderr, flush=True)
        if options.json:
            record.write(options.json)

    cases = options.cases or (math.inf if math.isfinite(options.minutes) else 1000)
    with suppress(KeyboardInterrupt):
        search(
            record,
            options.seed,
            cases=cases,
            minutes=options.minutes,
            attackers=options.attackers,
            noises=options.noises,
            say=say,
        )
    if options.json:
        record.write(options.json)
    print(record.sentence())
    print(record.table())


if __name__ == "__main__":
    main()
