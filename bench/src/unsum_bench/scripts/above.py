"""Can an attack be found that passes its ceiling? Evolution over small clients, rewarded for what
an attacker names beyond it.

python -m unsum_bench.scripts.above --minutes 15 --seed 1 --json above.json
python -m unsum_bench.scripts.above --cases 200 --attackers told descent
python -m unsum_bench.scripts.above --merge above-*.json

A case is a client (data, network, loss, batch, local training, defenses, noise, observer, rounds),
a kind of secret and an attacker: see `above_clients` and `above_attackers`. The product bounds it
(`unsum.ceiling.prove`); then the client plays the game that the bound is of: a pair of worlds is
drawn, around the client's own or around another one at random, the client sends noisy updates of
both through the defenses themselves, and the attacker answers. What it gets is held against two
figures: the limit that the product reports, which rests on pairs of its own, and what the product
finds of the very pairs that were played, which no interval blurs.

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
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from unsum.errors import UnsumError
from unsum_bench.scripts.above_attackers import FEW, MATCHED, ORACLES, PAIRS, measure, names
from unsum_bench.scripts.above_clients import (
    AFTER,
    BEFORE,
    DATA,
    HIDING,
    INSIDE,
    NOISE,
    OBSERVERS,
    PRIVATE,
    SECRETS,
    TEXTS,
    TRAININGS,
    Client,
    Genome,
    networks_for,
)

SUSPECT, ABOVE, AGAIN = 3.0, 4.5, 20  # standard errors, standard errors, times the games
# pairs of worlds of each kind that the product's limit rests on, in a tenth of the cases and else:
# what it finds of the pairs that are played is sharp with any
BOUND, BOUND_QUICKLY, _WELL = 24, 4, 0.1
# shares of the cases: of the oracle that knows all but the secret, and of the one that knows all
# worlds of a sample; the rest is that of attacks, which take longer and find less
_TOLD, _ALL = 0.94, 0.04
_FRESH, _STEP = 0.6, 0.3  # share of cases from anywhere, size of a child's step in orders of noise
_SELDOM = 0.6
_CROWD = 0.4  # share of the cases in which others add noise as well
# noises whose clients compute the same before them, and cases of one client
ALIKE = (("gaussian", "two gaussians"), ("laplace", "laplace, gaussian"))
EACH = 12
# what a kind of case is of
KIND = ("attacker", "secret", "data", "network", "before", "kind", "after", "training", "observer",
        "around")  # fmt: skip


# Breeding.


def fresh(
    chance: random.Random, attackers: Sequence[str], noises: Sequence[str] = tuple(NOISE)
) -> Genome:
    """A case from anywhere."""
    attacker = _attacker(chance, attackers)
    data, secret = _data(chance, attacker)
    network = chance.choice(_networks(attacker, data, secret))
    seldom = PRIVATE if chance.random() < _SELDOM else ()  # they take three times as long
    kinds = [name for name in noises if _adds(name, attacker, data, network, secret)]
    kinds = [name for name in kinds if name not in seldom] or kinds
    kind = chance.choice(kinds or ["gaussian"])
    before = chance.choice([name for name in BEFORE if _before(name, attacker, data, network)])
    if kind in PRIVATE:  # every sample by itself, and nothing is left out that noise is added to
        before = "nothing"
    one_step = before in INSIDE or attacker not in ORACLES or data in TEXTS
    several = not one_step and network != "batch norm" and attacker == "told"
    # steps take longer, and those with noise in each of them the longest
    several = several and chance.random() < (0.1 if kind in PRIVATE else 0.5)
    training = chance.choice([*TRAININGS]) if several else "gradient"
    after = "nothing" if attacker == "descent" else chance.choice([*3 * ["nothing"], *AFTER])
    plain = (
        data in TEXTS
        or kind in PRIVATE
        or before in ("mixup", "smooth", "dp")
        or attacker not in ORACLES
    )
    declared = data in ("picture", "colors", "row") and chance.random() < 0.4
    return {
        "attacker": attacker,
        "secret": secret,
        "data": data,
        "network": network,
        "loss": "ce" if plain else chance.choice(("ce", "ce", "bce", "mse", "focal:2")),
        "training": training,
        "before": before,
        "after": after,
        "kind": kind,
        "observer": _observer(attacker, kind, after, chance),
        "rounds": 1,
        "around": "random" if attacker == "every world" else chance.choice(("own", "random")),
        "samples": _samples(attacker, network, secret, chance) + (training != "gradient"),
        "bound": BOUND if chance.random() < _WELL else BOUND_QUICKLY,
        # What separates before it matches needs updates with hardly any noise.
        "noise": 10 ** (chance.uniform(-4.0, -1.0) if attacker.startswith("soft")
                        else chance.uniform(-1.5, 1.0)),
        # Some with a deviation that is declared, the others mirrored at what anybody would answer.
        "spread": 10 ** chance.uniform(-1.5, 0.5) if declared else None,
        "head": 10 ** chance.uniform(-0.5, 1.0),
        "seed": chance.randrange(2**30),
    }  # fmt: skip


def _observer(attacker: str, kind: str, after: str, chance: random.Random) -> str:
    if attacker not in ORACLES or kind in PRIVATE or (kind == "flower" and after != "nothing"):
        return "server"
    return chance.choice([*OBSERVERS]) if chance.random() < _CROWD else "server"


def _over_rounds(genome: Genome) -> bool:
    return (genome["attacker"], genome["secret"], genome["training"]) == (
        "told",
        "sample",
        "gradient",
    )


def _attacker(chance: random.Random, attackers: Sequence[str]) -> str:
    """The oracles are the strongest, and the quickest."""
    share = chance.random()
    for name, most in (("told", _TOLD), ("every world", _TOLD + _ALL)):
        if name in attackers and share < most:
            return name
    others = [name for name in attackers if name not in ORACLES]
    return chance.choice(others or list(attackers))


def _data(chance: random.Random, attacker: str) -> tuple[str, str]:
    """What the client has, and what of it is in question."""
    if attacker == "every world":
        return "row", "sample"
    if attacker not in ORACLES:
        return "picture", "label" if attacker.startswith("label: ") else "sample"
    data = chance.choice(DATA)
    labels = data not in ("text", "masked")
    secrets = [name for name in SECRETS if labels or "label" not in name]
    return data, chance.choice(["sample", *secrets])


def _networks(attacker: str, data: str, secret: str) -> list[str]:
    if attacker in MATCHED:
        return ["relu", "maxpool"]  # some are written for features of a ReLU
    names = networks_for(data)
    if attacker not in ORACLES:
        names = [name for name in names if name not in (*HIDING, "dropout", "layer norm")]
    if secret == "presence":  # a batch of one is no batch for it
        names = [name for name in names if name != "batch norm"]
    return names if attacker != "every world" else [name for name in names if name != "batch norm"]


def _adds(name: str, attacker: str, data: str, network: str, secret: str) -> bool:
    """Whether this noise can be added there."""
    if name in PRIVATE:
        if attacker == "every world":
            return False  # of all worlds, a step for each noise takes long
        return data not in TEXTS and network != "batch norm" and secret != "presence"
    return attacker != "descent" or name in ("gaussian", "laplace")


def _before(name: str, attacker: str, data: str, network: str) -> bool:
    """Whether this defense can come before the noise there."""
    if attacker == "descent":
        return name == "nothing"
    if data in TEXTS and name in INSIDE:
        return False
    if (name, data) == ("soteria", "codes") or (name, network) == ("drop head", "linear"):
        return False
    return name != "dp" or network != "batch norm"


def _samples(attacker: str, network: str, secret: str, chance: random.Random) -> int:
    """Two or more besides the one that may be missing, where BatchNorm needs them."""
    if attacker in ("every world", "idlg"):
        return 1
    return chance.randint(3 if network == "batch norm" else 2, 3 + (secret == "presence"))


def child(parent: Genome, chance: random.Random) -> Genome:
    """A little further, with other data."""
    scales = [name for name in ("noise", "spread", "head") if parent[name] is not None]
    changed = {name: parent[name] * 10 ** chance.gauss(0, _STEP) for name in scales}
    samples = _samples(parent["attacker"], parent["network"], parent["secret"], chance)
    samples += parent["training"] != "gradient"  # every step has one, whoever takes part
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
    refusals: dict[str, int] = field(default_factory=dict)  # attacker and sentence

    def sentence(self) -> str:
        return (
            f"{self.cases:,} cases of {len(self.kinds)} kinds, {self.games:,} games, "
            f"{len(self.attackers)} attackers in {self.seconds:.0f} s: {len(self.above)} above "
            f"their ceiling ({self.suspects} played again, at most {self.highest:.1f} standard "
            f"errors); {self.refused:,} refused by the attack, {self.crashes} crashed."
        )

    def table(self) -> str:
        lines = ["| of | cases |", "|---|---|"]
        for place, part in enumerate(KIND):
            counts: Counter[str] = Counter()
            for kind, count in self.kinds.items():
                counts[kind.split(", ")[place]] += count
            said = ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
            lines.append(f"| {part} | {said} |")
        return "\n".join(lines)

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


def louder(genome: Genome, chance: random.Random) -> Genome:
    """The same client under another noise: what it computes before is played once for all."""
    alike = next((group for group in ALIKE if genome["kind"] in group), (genome["kind"],))
    after = chance.choice([*3 * ["nothing"], *AFTER])
    changed = {
        "noise": 10 ** chance.uniform(-1.5, 1.0),
        "kind": chance.choice(alike),
        "after": after,
        "observer": _observer(genome["attacker"], genome["kind"], after, chance),
        "rounds": chance.choice((1, 1, 1, 2, 3)) if _over_rounds(genome) else 1,
    }
    return genome | changed


def try_case(
    genome: Genome, record: Record, *, pairs: int = PAIRS, client: Client | None = None
) -> None:
    client, name = client or Client.of(genome), genome["attacker"]
    count = pairs if name in ORACLES else FEW
    found = measure(client, name, count, genome["seed"])
    played = found.games
    if found.above > SUSPECT:
        record.suspects += 1
        found = measure(client, name, AGAIN * count, genome["seed"] + 1)
        played += found.games
    record.cases, record.games = record.cases + 1, record.games + played
    kind = ", ".join(str(genome[part]).replace(", ", " and ") for part in KIND)
    for counts, key in ((record.attackers, name), (record.kinds, kind)):
        counts[key] = counts.get(key, 0) + 1
    if found.above > ABOVE:
        record.above.append(genome | asdict(found))
        return
    record.highest = max(record.highest, found.above)
    # Breeding wants those that come near to their ceiling: of the others there are enough.
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
        genome = fresh(chance, attackers, noises or tuple(NOISE))
        if record.best and chance.random() > _FRESH:
            two = chance.choices(list(record.best.values()), k=2)
            genome = child(max(two, key=lambda one: one[0])[1], chance)
        try:
            client = Client.of(genome)
            try_case(genome, record, pairs=pairs, client=client)
            several = EACH if genome["attacker"] in ORACLES else 1
            for _ in range(int(min(several - 1, cases - done))):
                done += 1
                genome = louder(genome, chance)
                try_case(genome, record, pairs=pairs, client=client.under(genome))
        except UnsumError as refusal:
            record.refused += 1
            said = f"{genome['attacker']}: {refusal}"
            record.refusals[said] = record.refusals.get(said, 0) + 1
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
        "--noises", nargs="*", default=(), choices=NOISE, metavar="NOISE", help=", ".join(NOISE)
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
