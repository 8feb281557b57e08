"""Small clients of the search for attacks above their ceiling (`above`): what is drawn of one, its
bound, and the game that the bound is of.

A client is drawn from kinds of data (pictures, rows of numbers, tables with categories as one-hot
or as codes, texts), networks that are made for them, losses, local trainings, defenses before the
noise and after it, mechanisms that add noise, observers, and rounds. One sample is in question; a
game is about one of its components, entries, cells or tokens, its label, or its presence.

Updates of a game are captured here with what a user calls (`capture`, `capture_local`,
`capture_text`), and the noise is the defenses' own. The bound is left to `unsum.ceiling.prove`,
which plays the client once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

import unsum
from unsum.ceiling import Ceiling, Effort, Observer, Simulation
from unsum.ceiling.bound import Distances
from unsum.ceiling.client import World, separated
from unsum.ceiling.coin import Separation
from unsum.ceiling.prove import Prover
from unsum.ceiling.secret import Presence, Secret, TwoWorlds, View, stratum_of
from unsum.client.capture import capture
from unsum.client.local import capture_local
from unsum.client.step import first_step
from unsum.client.text import capture_text
from unsum.data.table_schema import TableColumn, TableSchema
from unsum.defend import Defense, dp
from unsum.defend.added import AddedNoise, split_at_noise
from unsum.defend.noise import Laplace, Noise
from unsum.defend.platforms import (
    FlowerAdaptiveClipping,
    FlowerFixedClipping,
    FlowerLocalDP,
    NvflarePercentile,
    OpacusReadme,
)
from unsum.errors import UnsumError
from unsum.local_training import LocalTraining
from unsum.update import Update

Genome = dict[str, Any]
CLASSES, SIDE, ENTRIES = 4, 4, 5
VOCABULARY, LENGTH = 12, 5  # tokens there are, tokens of a text
HIDDEN = 8  # units of a layer
# [updates] of a pair: where noise is drawn for all at once, and where each passes the whole chain
NOISES, ONE_BY_ONE = 160, 6
_STEP_BY_STEP = 4  # where there is noise in each of several steps
CLIP = 0.5  # of DP-SGD and Flower's local one
_STEPS = 48  # [draws] that find the coins of a sample
_FLAT = 1e-3  # of the longest step: a coin with a shorter one is not looked for


# Data.


def schema(embedded: bool) -> TableSchema:
    """Two numbers, a category of two values and one of three."""
    columns = (
        TableColumn("a", "number"),
        TableColumn("b", "number"),
        TableColumn("c", "category", values=("no", "yes")),
        TableColumn("d", "category", values=("x", "y", "z")),
    )
    return TableSchema(columns, "target", tuple("abcd"), embedded)


def samples(data: str, count: int) -> dict[str, Any]:
    """Inputs and targets, with what else a `Simulation` is told of them."""
    targets = torch.randint(CLASSES, (count,))
    if data in ("picture", "colors"):
        inputs = torch.rand(count, 1 if data == "picture" else 3, SIDE, SIDE)
        return {"inputs": inputs, "targets": targets}
    if data == "row":
        return {"inputs": torch.randn(count, ENTRIES), "targets": targets}
    if data in ("table", "codes"):
        numbers, binary = torch.randn(count, 2), torch.randint(2, (count, 1)).float()
        code = torch.randint(3, (count,))
        last = code[:, None].float() if data == "codes" else nn.functional.one_hot(code, 3).float()
        rows = torch.cat([numbers, binary, last], 1)
        return {"inputs": rows, "targets": targets, "schema": schema(data == "codes")}
    tokens = torch.randint(1, VOCABULARY, (count, LENGTH))
    if data == "text":
        return {"inputs": tokens, "targets": tokens, "text": True}
    if data == "masked":
        labels = tokens.where(torch.rand(tokens.shape) < 0.4, -100)
        labels[:, 0] = tokens[:, 0]
        return {"inputs": tokens.where(labels == -100, 0), "targets": labels, "text": True}
    return {"inputs": tokens, "targets": targets, "text": True}


DATA = ("picture", "colors", "row", "table", "codes", "text", "masked", "text classes")
TEXTS = ("text", "masked", "text classes")


# Networks.


def dense(activation: Callable[[], nn.Module], *between: nn.Module) -> Callable[[int], nn.Module]:
    return lambda inputs: nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, HIDDEN),
        *between,
        activation(),
        nn.Linear(HIDDEN, CLASSES),
    )


PLAIN: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda inputs: nn.Sequential(nn.Flatten(), nn.Linear(inputs, CLASSES)),
    "relu": dense(nn.ReLU),
    "tanh": dense(nn.Tanh),
    "batch norm": dense(nn.ReLU, nn.BatchNorm1d(HIDDEN)),
    "layer norm": dense(nn.GELU, nn.LayerNorm(HIDDEN)),
    "dropout": dense(nn.ReLU, nn.Dropout(0.3)),
}
PICTURES: dict[str, Callable[[int], nn.Module]] = {
    "maxpool": lambda inputs: nn.Sequential(
        nn.Conv2d(inputs // SIDE**2, 3, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3 * SIDE, CLASSES),
    )
}


class Codes(nn.Module):
    """A row whose last entry is a code that an embedding looks up."""

    def __init__(self, activation: type[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 3)
        self.layers = nn.Sequential(nn.Linear(6, HIDDEN), activation(), nn.Linear(HIDDEN, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        codes = self.embedding(x[:, 3].long())
        return self.layers(torch.cat([x[:, :3], codes], 1))  # type: ignore[no-any-return]


class Language(nn.Module):
    """(n, L) tokens to (n, L, V) logits, or of the whole text to (n, C)."""

    def __init__(self, task: str, outputs: int, recurrent: bool) -> None:
        super().__init__()
        self.text_task = task
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.recurrent = nn.GRU(HIDDEN, HIDDEN, batch_first=True) if recurrent else None
        self.head = nn.Linear(HIDDEN, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        features = self.embedding(tokens)
        if self.recurrent is not None:
            features = self.recurrent(features)[0]
        if self.text_task == "class":
            features = features.mean(1)
        return self.head(features)  # type: ignore[no-any-return]

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding


class Hiding(nn.Module):
    """Shows nothing, or all, of what one single step from a sample's own world changes.

    `moved` (K, n) counts for each coin 0 in its own world and 1 in the other. Units of `gated` open
    once two coins or more have moved, those of `nearby` shut then, and `thresholded` reads nothing
    but which sets of coins have two or more that moved.
    """

    def __init__(self, kind: str, own: Tensor, moved: Tensor) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("own", own.flatten())
        sets = torch.ones(HIDDEN, len(moved))
        if kind == "thresholded":
            sets = (torch.rand(HIDDEN, len(moved)) < 0.6).float()
        self.register_buffer("counts", sets @ moved.float())
        self.first, self.head = nn.Linear(own.numel(), HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.read = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        counted = (flat - self.own) @ self.counts.T  # type: ignore[operator]
        if self.kind == "thresholded":
            return self.head(torch.relu(self.read((counted > 1.5).float())))  # type: ignore[no-any-return]
        gate = counted - 1.5 if self.kind == "gated" else 1.5 - counted
        return self.head(torch.relu(self.first(flat)) * torch.relu(gate))  # type: ignore[no-any-return]


HIDING = ("gated", "nearby", "thresholded")


def networks_for(data: str) -> list[str]:
    if data in TEXTS:
        return ["embedding", "recurrent"]
    if data == "codes":
        return ["codes", "smooth codes"]
    return [*PLAIN, *HIDING, *(PICTURES if data in ("picture", "colors") else ())]


# Defenses and noise.


BEFORE: dict[str, Callable[[], list[Defense]]] = {
    "nothing": list,
    "clip": lambda: [unsum.Clip(0.3)],
    "clip layers": lambda: [unsum.ClipLayers(0.2)],
    "sign": lambda: [unsum.Sign(scaled=True)],
    "prune": lambda: [unsum.Prune(0.7)],
    "soteria": lambda: [unsum.Soteria(0.4)],
    "smooth": lambda: [unsum.SmoothLabels(0.3)],
    "mixup": lambda: [unsum.Mixup(0.5)],
    "dp": lambda: [unsum.DPSGD(0.0, clip=CLIP)],
    "drop head": lambda: [unsum.DropHead()],
    "drop bias": lambda: [unsum.DropBias()],
    "prune all": lambda: [unsum.PruneGlobal(0.6)],
    "quantize": lambda: [unsum.Quantize(4)],
    "qsgd": lambda: [unsum.QSGD(4)],
    "bfloat16": lambda: [unsum.BFloat16()],
    "flower": lambda: [FlowerFixedClipping(clipping_norm=0.4)],
    "flower adaptive": lambda: [FlowerAdaptiveClipping(clipping_norm=0.2)],
    "nvflare": lambda: [NvflarePercentile(percentile=30.0, gamma=0.05)],
    "two": lambda: [unsum.Clip(0.5), unsum.Prune(0.3)],
}
# inside the client, which texts are not taken through; of one step alone
INSIDE = ("soteria", "smooth", "mixup", "dp")
AFTER: dict[str, Callable[[], list[Defense]]] = {
    "nothing": list,
    "clip": lambda: [unsum.Clip(0.5)],
    "sign": lambda: [unsum.Sign()],
    "prune": lambda: [unsum.Prune(0.5)],
    "float16": lambda: [unsum.Float16()],
    "quantize": lambda: [unsum.Quantize(6)],
    "laplace": lambda: [unsum.Laplace(1e-3)],
}
NOISE: dict[str, Callable[[float, int], list[Defense]]] = {
    "gaussian": lambda noise, _samples: [Noise(noise)],
    "laplace": lambda noise, _samples: [Laplace(noise)],
    "two gaussians": lambda noise, _samples: [Noise(0.6 * noise), Noise(0.8 * noise)],
    "laplace, gaussian": lambda noise, _samples: [Laplace(noise), Noise(0.3 * noise)],
    "flower": lambda noise, _samples: [
        FlowerLocalDP(clipping_norm=CLIP, sensitivity=noise / math.sqrt(2 * math.log(1.25 / 1e-5)))
    ],
    "dp": lambda noise, samples: [unsum.DPSGD(noise * samples / CLIP, clip=CLIP)],
    "opacus": lambda _noise, _samples: [OpacusReadme()],
}
PRIVATE = ("dp", "opacus")
TRAININGS = {
    "gradient": None,
    "two steps": LocalTraining(learning_rate=0.3, steps=2),
    "momentum": LocalTraining(learning_rate=0.3, steps=2, momentum=0.9, epochs=2),
    "weight decay": LocalTraining(learning_rate=0.3, steps=2, weight_decay=0.1),
}
SECRETS = ("sample", "label", "any label", "presence")


class Crowd(NamedTuple):
    """Who looks: the server, or behind so many clients with so much noise of the server's own, as a
    share of the client's."""

    clients: int
    central: float


OBSERVERS = {"server": Crowd(1, 0.0), "aggregate": Crowd(4, 0.0), "outsider": Crowd(3, 0.4)}


# The client.


@dataclass(frozen=True, eq=False)
class Focused(Simulation):
    """A client one sample of which is in question."""

    focus: int = 0

    def secrets(self) -> list[Secret]:
        return [super().secrets()[self.focus]]

    def labels(self) -> list[Secret] | None:
        found = super().labels()
        return None if found is None else [found[self.focus]]

    def labels_of_any_kind(self) -> list[Secret] | None:
        found = super().labels_of_any_kind()
        return None if found is None else [found[self.focus]]


@dataclass(frozen=True)
class Pair:
    """Two worlds that differ in the secret, and their updates before the noise."""

    worlds: TwoWorlds
    clean: tuple[Update, Update]


@dataclass(eq=False)
class Played:
    """What does not depend on the noise: the same for all mechanisms, observers and rounds of a
    client."""

    typical: float
    prover: Prover | None = None
    pairs: dict[tuple[int, int], list[Pair]] = field(default_factory=dict)
    apart: dict[int, Separation] = field(default_factory=dict)
    own_gradients: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    every_world: dict[tuple[int, int], Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Client:
    """One case's client: its bound, and the games that it plays."""

    genome: Genome
    case: Focused
    chain: list[Defense]
    before: list[Defense]
    observer: Observer
    played: Played

    @classmethod
    def of(cls, genome: Genome) -> Client:
        torch.default_generator.manual_seed(genome["seed"])
        held = samples(genome["data"], genome["samples"])
        loss = None if genome["loss"] == "ce" else genome["loss"]
        if loss in ("bce", "mse"):
            held["targets"] = nn.functional.one_hot(held["targets"], CLASSES).float()
        case = Focused(
            nn.Identity(),
            **held,
            training=TRAININGS[genome["training"]],
            loss=loss,
            seed=genome["seed"],
            spread=genome["spread"],
            focus=int(torch.randint(genome["samples"], ())),
        )
        case = replace(case, model=_model(genome, case))
        before = BEFORE[genome["before"]]()
        if genome["kind"] == "flower":
            before += [unsum.Clip(CLIP)]
        if genome["kind"] in PRIVATE:
            before = [unsum.DPSGD(0.0, clip=CLIP if genome["kind"] == "dp" else 1.0)]
        first = cls(genome, case, [], before, Observer(), Played(_typical(case, before)))
        return first.under(genome)

    def under(self, genome: Genome) -> Client:
        """The same client with another noise of the same kind, another observer, or more rounds."""
        noise = genome["noise"] * self.played.typical
        added = NOISE[genome["kind"]](noise, len(self.case.inputs))
        chain = [*BEFORE[genome["before"]](), *added, *AFTER[genome["after"]]()]
        crowd = OBSERVERS[genome["observer"]]
        observer = Observer() if crowd.clients == 1 else Observer("aggregate", crowd.clients)
        if crowd.central:
            observer = Observer("outsider", crowd.clients, crowd.central * noise)
        return Client(genome, self.case, chain, self.before, observer, self.played)

    @cached_property
    def noise(self) -> AddedNoise:
        """As the product counts it, between the client and the observer."""
        seen = self.observer.sees(self._added)
        assert seen is not None
        return seen

    @cached_property
    def arriving(self) -> AddedNoise:
        """As the attacker takes it to be; of other clients', nothing where something follows it."""
        return self.noise if self.genome["after"] == "nothing" else self._added

    @cached_property
    def _added(self) -> AddedNoise:
        found = split_at_noise(self.chain, len(self.case.inputs))[1]
        assert found is not None
        return found

    @cached_property
    def secrets(self) -> list[Secret]:
        """What the game is about: one secret, or a label against each of several others."""
        kind, case = self.genome["secret"], self.case
        if kind == "presence":
            return [Presence(case.world, case.focus)]
        if kind == "sample":
            return case.secrets()
        likeliest = case.labels()
        if likeliest is None:
            raise UnsumError("The targets are no classes.")
        others = (case.labels_of_any_kind() or []) if kind == "any label" else []
        return [*likeliest, *(one for one in others if one.strata)]

    @cached_property
    def ceiling(self) -> Ceiling:
        kind = self.genome["secret"]
        effort = Effort(
            decided=None if kind == "sample" else lambda _limits: True,  # without pairs of samples
            pairs=self.genome["bound"],
            labels=kind in ("label", "any label"),
            every_label=kind == "any label",
            presence=kind == "presence",
        )
        if self.played.prover is None:
            self.played.prover = Prover(self.case, effort=effort)
        return replace(self.played.prover, observer=self.observer)(self.chain)

    @cached_property
    def limit(self) -> float:
        """The product's: of what is read of a sample in so many rounds, or of the chance to name
        what the secret is."""
        kind, found, one = self.genome["secret"], self.ceiling, 0
        if kind == "sample":
            return float(found.after(self.genome["rounds"])[0])
        if kind == "presence":
            values, one = found.present, self.case.focus
        elif kind == "label":
            values = found.labels
        else:
            values = found.any_label
        return 1.0 if values is None else float(values[one])

    @cached_property
    def naming_limit(self) -> float:
        """The product's, of the chance to name the secret's value, by one update."""
        return float(self.ceiling.guesses[0]) if self.genome["secret"] == "sample" else self.limit

    def exact(self, pair: Pair) -> Separation | None:
        """What the product finds of this very pair; None where it looks at none."""
        known, distances = self.played.apart, self.ceiling.distances
        if distances is None:
            return None
        if id(pair) not in known:
            one, other = (distances.client(world) for world in pair.worlds[:2])
            found = separated(one, other, by_size=self.noise.kind == "laplace")
            known[id(pair)] = replace(found, discrete=pair.worlds.discrete)
        found = known[id(pair)]
        return found.repeated(self.genome["rounds"])

    def clean(self, world: World) -> Update:
        """What the client computes before the noise; mixup and dropout fall as its seed says."""
        torch.default_generator.manual_seed(self.case.seed)
        return _captured(self.case, world, self.before)

    def pairs(self, count: int, seed: int) -> list[Pair]:
        """So many, around the client's own world or each around another world at random."""
        if (count, seed) not in self.played.pairs:
            self.played.pairs[count, seed] = list(self._pairs(count, seed))
        return self.played.pairs[count, seed]

    def _pairs(self, count: int, seed: int) -> Iterator[Pair]:
        draw, own = torch.Generator().manual_seed(seed), None
        for _ in range(count):
            secret = self.secrets[int(torch.randint(len(self.secrets), (), generator=draw))]
            worlds = self._drawn(secret, draw)
            if worlds.one is self.case.world:
                one = own = own or self.clean(worlds.one)
            else:
                one = self.clean(worlds.one)
            yield Pair(worlds, (one, self.clean(worlds.other)))

    def _drawn(self, secret: Secret, draw: torch.Generator) -> TwoWorlds:
        world = self.case.world
        if self.genome["around"] == "random" and secret.many:
            for each in self.everybody:
                world = each.shuffled(world, draw)
        views: tuple[View, ...] = secret.views
        view = views[int(torch.randint(len(views), (), generator=draw))]
        return secret.draw(stratum_of(secret, draw), draw, world, view)

    @cached_property
    def everybody(self) -> list[Secret]:
        """Of all samples: their coins are drawn as well."""
        return Simulation.secrets(self.case)

    def coins(self) -> list[Tensor]:
        """The steps of a sample's coins from its own world, one flat tensor each."""
        return _steps(self.case)

    def sent(self, clean: Update, world: World, count: int, draw: torch.Generator) -> list[Update]:
        """So many noisy updates of one world, each by itself."""
        return [self._noisy(clean, world, draw) for _ in range(count)]

    def rows(self, clean: Update, world: World, draw: torch.Generator) -> Tensor:
        """(n, P) noisy updates of one world, and the sum over rounds of as many."""
        torch.default_generator.manual_seed(int(torch.randint(2**31, (), generator=draw)))
        after = self.chain[len(BEFORE[self.genome["before"]]()) :]
        if self.genome["kind"] in PRIVATE:
            count = ONE_BY_ONE if self.case.training is None else _STEP_BY_STEP
            found = flat_rows(self._private(world, count))
        elif all(type(part) in _ENTRY_BY_ENTRY for part in after):
            many = {name: g.expand(NOISES, *g.shape) for name, g in clean.gradients.items()}
            stacked = _through(after, replace(clean, gradients=many))
            parts = [g.reshape(NOISES, -1).double() for g in stacked.gradients.values()]
            found = torch.cat(parts, 1)
        else:
            found = flat_rows([_through(after, clean) for _ in range(ONE_BY_ONE)])
        return found + self._others(found, after)

    def _others(self, like: Tensor, after: Sequence[Defense]) -> Tensor:
        """What other clients' noise and the server's adds, in units of this client's update. Their
        data are granted, and so are their updates: as large as it takes for what follows the noise
        to leave little of it."""
        crowd = OBSERVERS[self.genome["observer"]]
        alone = [Noise(p.deviation) if isinstance(p, FlowerLocalDP) else p for p in after]
        quiet = [part for part in after if not isinstance(part, Noise | Laplace)]
        large = 0.0 if self.genome["after"] == "nothing" else _LARGE
        found = torch.zeros_like(like)
        for row in range(len(like) if large and crowd.clients > 1 else 0):
            sent = Update({"all": torch.full_like(like[0], large)})
            clean = _through(quiet, sent).gradients["all"]
            for _ in range(crowd.clients - 1):
                found[row] += _through(after, sent).gradients["all"] - clean
        for _ in range(0 if large else crowd.clients - 1):
            found += _through(alone, Update({"all": torch.zeros_like(like)})).gradients["all"]
        central = crowd.clients * self.observer.noise
        return found + central * torch.randn_like(like) if central else found

    def _noisy(self, clean: Update, world: World, draw: torch.Generator) -> Update:
        torch.default_generator.manual_seed(int(torch.randint(2**31, (), generator=draw)))
        if self.genome["kind"] in PRIVATE:
            return self._private(world, 1)[0]
        return _through(self.chain[len(BEFORE[self.genome["before"]]()) :], clean)

    def _private(self, world: World, count: int) -> list[Update]:
        """DP-SGD's noise is in the middle of a step: the whole step is taken each time. Samples'
        own gradients are the same in all of them, and are taken once where there is one step."""
        if self.case.training is not None:
            return [_captured(self.case, world, self.chain) for _ in range(count)]
        known = self.played.own_gradients
        if id(world) not in known:  # worlds stay with their pairs
            known[id(world)] = dp.per_sample_gradients(
                first_step(self.case.model, world.inputs, world.targets, True, self.case.loss)
            )
        held = known[id(world)]

        def again(_step: object) -> dict[str, Tensor]:  # Opacus marks what it has seen
            return {name: rows.clone() for name, rows in held.items()}

        with patch.object(dp, "per_sample_gradients", again):
            return [_captured(self.case, world, self.chain) for _ in range(count)]


_LARGE = 1e4  # an entry of other clients' updates, for what follows their noise
_ENTRY_BY_ENTRY = (Noise, Laplace, unsum.Float16, unsum.BFloat16)


def _through(parts: Sequence[Defense], update: Update) -> Update:
    for part in parts:
        update = part(update)
    return update


def flat_rows(updates: Sequence[Update]) -> Tensor:
    """(n, P) in float64."""
    return torch.stack([flat(update) for update in updates])


def flat(update: Update) -> Tensor:
    return torch.cat([g.detach().flatten().double() for g in update.gradients.values()])


def _captured(case: Simulation, world: World, defenses: Sequence[Defense]) -> Update:
    if case.text:
        return capture_text(case.model, world.inputs, world.targets, defenses=defenses)
    training, how = case.training, {"loss": case.loss, "defenses": defenses}
    if training is None:
        return capture(case.model, world.inputs, world.targets, **how)  # type: ignore[arg-type]
    return capture_local(
        case.model, world.inputs, world.targets, learning_rate=training.learning_rate,  # type: ignore[arg-type]
        local_steps=training.steps, epochs=training.epochs, momentum=training.momentum,
        weight_decay=training.weight_decay, **how,  # type: ignore[arg-type]
    )  # fmt: skip


def _model(genome: Genome, case: Focused) -> nn.Module:
    name, size = genome["network"], math.prod(case.inputs.shape[1:])
    if name in ("embedding", "recurrent"):
        classes = genome["data"] == "text classes"
        task = {"text": "next", "masked": "masked"}.get(genome["data"], "class")
        model: nn.Module = Language(task, CLASSES if classes else VOCABULARY, name == "recurrent")
        head = model.head
    elif name in ("codes", "smooth codes"):
        model = Codes(nn.ReLU if name == "codes" else nn.Tanh)
        head = model.layers[-1]  # type: ignore[index,union-attr]
    elif name in HIDING:
        steps = torch.stack(_steps(case)).float()
        moved = steps / steps.square().sum(1, keepdim=True)
        model = Hiding(name, case.inputs[case.focus], moved)
        head = model.head
    else:
        model = (PLAIN | PICTURES)[name](size)
        head = model[-1]  # type: ignore[index]
    with torch.no_grad():
        head.weight.mul_(genome["head"])  # type: ignore[union-attr,operator]
    return model


def _steps(case: Focused) -> list[Tensor]:
    """Of every coin of the sample whose step is not hardly any, from its own world."""
    draw = torch.Generator().manual_seed(case.seed)
    secret = case.secrets()[0]
    found: dict[tuple[int, ...], Tensor] = {}
    for k in range(_STEPS):
        pair = secret.draw(k % secret.strata, draw)
        found[pair.name] = (pair.other.inputs - pair.one.inputs)[case.focus].flatten().double()
    longest = max(float(step.norm()) for step in found.values())
    if not longest > 0:
        raise UnsumError("The sample is what anybody guesses.")
    return [step for step in found.values() if float(step.norm()) > _FLAT * longest]


def _typical(case: Focused, before: Sequence[Defense]) -> float:
    """How far apart two worlds usually are: noise is in this unit."""
    client = Distances(case.client(before), case.world, case.secrets(), seed=case.seed)
    apart = [client.first(0).squared, client.from_random(0).squared]
    return math.sqrt(max(apart)) or 1.0
