"""Can the certificate be fooled? Evolution over cases of every path that can claim, rewarded for
every claim that is not so.

python -m unsum_bench.scripts.fool.run --tries 20000 --seed 1 --processes 6 --json fooled.json
python -m unsum_bench.scripts.fool.run --paths head losses losses --processes 3 --minutes 10 \\
    --json fooled.json
# all paths, slow ones twice
python -m unsum_bench.scripts.fool.run --share --processes 16 --minutes 9 --json fooled.json
python -m unsum_bench.scripts.fool.run --merge one.json another.json --json both.json

A path is a module beside this one with `random_genome(chance)`, `attempt(genome, seconds)` and, if
it knows better than to draw a few genes anew, `child` and `kind`. A case is a list of numbers:
sizes, siblings, scale of the head, noise, precision, loss. Only claims can be false, so the search
keeps to the border between what is claimed and what is not: of each kind of case it keeps the claim
with the largest true error, and the answer that errs and was nearly claimed; their children differ
by steps that shrink when claims become rare and grow when they become common. Claims come soon or
hardly ever: most tries end after three times the seconds that claims take in the middle, and every
tenth has the whole deadline, so that late claims are tried as well. A try counts as fooled when the
answer claims to be exact and

- a feature of a sample is off by more than 1 %, or a sample is missing or made up; or
- a label (or an entry of a soft one) is wrong; or
- fewer samples are distinct than it says, or numbers of copies are wrong that it calls certain; or
- the gradient came from no batch at all, and the claimed batch does not even send it.

Predictions are counted besides, of all answers: one is optimistic where a sample that was found is
off by more than 3 % and ten times what the attack predicts.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import math
import multiprocessing
import random
import re
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

# PyTorch imports it in the midst of a try, where the try's deadline would leave half of it behind
import torch._dynamo

from unsum.engine import budget as engine_budget
from unsum.separate.exact import proposals as exact_proposals
from unsum_bench.scripts.fool.common import Genome, Try

PATHS = (
    "head", "many", "losses", "rounds", "steps", "text", "peel", "spans", "maps", "bottlenecks",
    "pixels", "tokens", "networks",
)  # fmt: skip
# Those that claim least in a minute and have the most families have two processes before any other
# has.
_SLOW = ("text", "head", "losses", "spans", "maps", "steps", "bottlenecks", "pixels")
# What cases are bred from, by what their kinds are called.
FAMILIES = {
    "whole-number weights": r"weights are (?!alike)",
    "undeclared objectives and optimizers": r"objective (?!plain)",
    "networks that do not compute what they look like": r"twist (?!none)",
    "scaled logits": r"twist (scaled|in place|soft cap|hook on model)|(client|loss) temperature",
    "samples that several steps meet": r"repeats (some|all|True)",
    "samples that are alike": r"(twins|alike) (?!none)|siblings (?!none|0|1\b)|pictures twins",
}
DEADLINE = 1.5  # seconds of computing for the longest tries
# of a try's time for the solvers' further starts, not the 8 seconds that they take by default
_PATIENCE = 0.2
_WHOLE, _KNOWN, _TIMES, _LEAST = (
    10,
    20,
    3.0,
    0.1,
)  # every tenth try; claims that tell their time, times it, seconds at least
# seconds after its time at which a process is ended; its record of a moment before counts
_LATE = 20.0
# shares of tries from anywhere, from easy cases and from what was not claimed
_FRESH, _TAME, _NEAR = 0.06, 0.06, 0.2
_CLAIMS = 0.65  # share of a claim's children that are claims again, where steps are right
_SHORTEST, _LONGEST = 0.01, 0.4  # step, in parts of a gene's range
_CHILDREN = 30  # of one case, until another of its kind has its turn
_CRASHES = 20  # of one process that are kept
_SAY = 5.0  # seconds between two records


@dataclass
class Record:
    """What came of a search."""

    tries: int = 0
    claimed: int = 0
    refused: int = 0
    stopped: int = 0  # by the deadline: neither claimed nor not
    seconds: float = 0.0  # of all processes together
    worst_claim: float = 0.0  # largest true error of a claim that does not count as fooled
    paths: dict[str, int] = field(default_factory=dict)  # tries on each
    claims: dict[str, int] = field(default_factory=dict)  # by kind of case
    seeds: list[int] = field(default_factory=list)
    crashes: int = 0
    crashed: list[str] = field(default_factory=list)  # the first of them
    fooled_features: list[Genome] = field(default_factory=list)
    fooled_labels: list[Genome] = field(default_factory=list)
    fooled_counts: list[Genome] = field(default_factory=list)
    predicted: int = 0  # answers that predict an error which is known
    # of them, those that are farther off by far
    optimistic: list[Genome] = field(default_factory=list)

    def add(self, tried: Try, kind: str) -> None:
        self._count(kind.partition(":")[0])
        self.claimed += tried.claimed
        self.refused += tried.ended == "refused"
        self.stopped += tried.ended == "stopped"
        if tried.claimed:
            self.claims[kind] = self.claims.get(kind, 0) + 1
        if tried.fooled:
            found = tried.genome | {
                "path": kind.partition(":")[0],
                "error": tried.error,
                "label_error": tried.label_error,
                "how": tried.fooled,
            }
            self._fooled(tried.fooled).append(found)
        elif tried.claimed:
            self.worst_claim = max(self.worst_claim, tried.error, tried.label_error)

        self.predicted += math.isfinite(tried.predicted) and not math.isnan(tried.found_error)
        if tried.optimistic:
            about = {
                "path": kind.partition(":")[0],
                "predicted": tried.predicted,
                "error": tried.found_error,
            }
            self.optimistic.append(tried.genome | about)

    def _fooled(self, how: str) -> list[Genome]:
        by = {"labels": self.fooled_labels, "counts": self.fooled_counts}
        return by.get(how.partition(":")[0], self.fooled_features)

    def _count(self, path: str) -> None:
        self.tries += 1
        self.paths[path] = self.paths.get(path, 0) + 1

    def add_crash(self, path: str, genome: Genome, error: Exception) -> None:
        self._count(path)
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        self.crashes += 1
        if len(self.crashed) < _CRASHES:
            self.crashed.append(
                f"{type(error).__name__} at {place}: {str(error)[:120]} in {json.dumps(genome)}"
            )

    def sentence(self) -> str:
        return (
            f"{self.tries:,} tries in {self.seconds:.0f} s, {self.claimed:,} claimed to be exact "
            f"({len(self.claims)} kinds of cases, largest true error {self.worst_claim:.1e}): "
            f"{len(self.fooled_features)} with wrong features, {len(self.fooled_labels)} with "
            f"wrong labels, {len(self.fooled_counts)} with wrong counts; {len(self.optimistic)} of "
            f"{self.predicted:,} predictions were optimistic; {self.stopped:,} stopped, "
            f"{self.crashes} crashed."
        )

    def claims_of(self, path: str) -> int:
        return sum(count for kind, count in self.claims.items() if kind.startswith(f"{path}:"))

    def families(self) -> str:
        """How many claims there are of what cases are bred from; one case may be of several."""
        counts = {
            family: sum(count for kind, count in self.claims.items() if re.search(pattern, kind))
            for family, pattern in FAMILIES.items()
        }
        return (
            "Claims by what was bred: "
            + "; ".join(f"{family} {n:,}" for family, n in counts.items())
            + "."
        )

    def table(self) -> str:
        """Rows of a page: path, cases, claims, wrong features, wrong labels."""
        lines = [
            (
                "| path | cases | claims | wrong features | wrong labels | wrong counts | "
                "optimistic predictions |"
            ),
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        kinds = self.fooled_features, self.fooled_labels, self.fooled_counts, self.optimistic
        for path in (path for path in PATHS if path in self.paths):
            wrong = " | ".join(str(sum(one["path"] == path for one in some)) for some in kinds)
            lines.append(f"| {path} | {self.paths[path]:,} | {self.claims_of(path):,} | {wrong} |")
        every = " | ".join(str(len(some)) for some in kinds)
        return "\n".join([*lines, f"| **all** | {self.tries:,} | {self.claimed:,} | {every} |"])

    def write(self, path: Path) -> None:
        """In one step: who stops the search keeps a whole record."""
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(asdict(self), indent=1) + "\n")
        part.replace(path)


def merge(records: Sequence[Record]) -> Record:
    """Several searches as one."""
    return Record(
        tries=sum(one.tries for one in records),
        claimed=sum(one.claimed for one in records),
        refused=sum(one.refused for one in records),
        stopped=sum(one.stopped for one in records),
        seconds=sum(one.seconds for one in records),
        worst_claim=max((one.worst_claim for one in records), default=0.0),
        paths=dict(sum((Counter(one.paths) for one in records), Counter())),
        claims=dict(sum((Counter(one.claims) for one in records), Counter())),
        seeds=[seed for one in records for seed in one.seeds],
        crashes=sum(one.crashes for one in records),
        crashed=[crash for one in records for crash in one.crashed],
        fooled_features=[genome for one in records for genome in one.fooled_features],
        fooled_labels=[genome for one in records for genome in one.fooled_labels],
        fooled_counts=[genome for one in records for genome in one.fooled_counts],
        predicted=sum(one.predicted for one in records),
        optimistic=[genome for one in records for genome in one.optimistic],
    )


class Route:
    """One path's module, with what it leaves out."""

    def __init__(self, name: str) -> None:
        self.name, self.module = name, importlib.import_module(f"unsum_bench.scripts.fool.{name}")

    def random_genome(self, chance: random.Random, *, tame: bool = False) -> Genome:
        tames = "tame" in inspect.signature(self.module.random_genome).parameters
        return (
            self.module.random_genome(chance, tame=tame)
            if tames
            else self.module.random_genome(chance)
        )

    def attempt(self, genome: Genome, seconds: float) -> Try:
        # a try that was cut inside a pass without derivatives may have left them off
        torch.set_grad_enabled(True)
        return self.module.attempt(genome, seconds)

    def child(self, first: Genome, second: Genome, chance: random.Random, step: float) -> Genome:
        if hasattr(self.module, "child"):
            return self.module.child(first, second, chance, step)
        fresh = self.random_genome(chance)
        pick = (lambda name: fresh[name]) if chance.random() < 0.7 else (lambda name: second[name])
        return {
            name: pick(name) if chance.random() < max(0.15, step) else value
            for name, value in first.items()
        }

    def kind(self, genome: Genome) -> str:
        if hasattr(self.module, "kind"):
            return f"{self.name}: {self.module.kind(genome)}"
        choices = {name: value for name, value in genome.items() if isinstance(value, str | bool)}
        return f"{self.name}: " + ", ".join(f"{name} {value}" for name, value in choices.items())


class Population:
    """Of each kind of case the fittest claim and the fittest other answer, and how far children go
    from them."""

    def __init__(self, chance: random.Random, path: Route) -> None:
        self.chance, self.path, self.step = chance, path, 0.08
        self.claims: dict[str, Try] = {}
        self.others: dict[str, Try] = {}
        self.children: Counter[str] = Counter()

    def next(self) -> tuple[Genome, bool]:
        """A genome, and whether a claim is its parent."""
        draw = self.chance.random()
        if draw < _FRESH:
            return self.path.random_genome(self.chance), False
        if draw < _FRESH + _TAME or len(self.claims) < 8:
            return self.path.random_genome(self.chance, tame=True), False
        near = draw < _FRESH + _TAME + _NEAR and len(self.others) > 1
        pool = self.others if near else self.claims
        first, second = self._parent(pool), self._parent(pool)
        return self.path.child(first.genome, second.genome, self.chance, self.step), not near

    def _parent(self, pool: dict[str, Try]) -> Try:
        """The fitter of two kinds; who had its children makes place for another of its kind."""
        name = max(self.chance.choices(list(pool), k=2), key=lambda one: pool[one].fitness)
        self.children[name] += 1
        chosen = pool[name]
        if self.children[name] > _CHILDREN and len(pool) > 8:
            del pool[name], self.children[name]
        return chosen

    def add(self, tried: Try, of_claim: bool) -> None:
        if of_claim:
            factor = math.exp(0.05 * (tried.claimed - _CLAIMS))
            self.step = min(_LONGEST, max(_SHORTEST, self.step * factor))
        if tried.ended not in ("claimed", "not claimed"):
            return
        pool, name = (self.claims if tried.claimed else self.others), self.path.kind(tried.genome)
        if name not in pool or tried.fitness > pool[name].fitness:
            pool[name] = tried


class Patience:
    """How long a try may take: three times the median of the latest claims, and every tenth the
    whole deadline."""

    def __init__(self, longest: float) -> None:
        self.longest, self.tries = longest, 0
        self.claims: deque[float] = deque(maxlen=200)

    def next(self) -> float:
        self.tries += 1
        usual = statistics.median(self.claims) if self.claims else self.longest / 10
        seconds = (
            min(self.longest, max(_LEAST, _TIMES * usual)) if self.tries % _WHOLE else self.longest
        )
        for module in (exact_proposals, engine_budget):
            module.PATIENCE = _PATIENCE * min(seconds, DEADLINE)
        return seconds

    def add(self, tried: Try) -> None:
        if tried.claimed:
            self.claims.append(tried.seconds)


def evolve(
    tries: int,
    seed: int,
    path: str = "head",
    say: Callable[[Record], None] | None = None,
    minutes: float = math.inf,
    deadline: float = DEADLINE,
) -> Record:
    chance, record, found = random.Random(seed), Record(seeds=[seed]), Route(path)
    population, patience, start = Population(chance, found), Patience(deadline), time.perf_counter()
    said = start
    while record.tries < tries and time.perf_counter() - start < 60 * minutes:
        genome, of_claim = population.next()
        try:
            tried = found.attempt(genome, patience.next())
        except Exception as error:  # a crash is a finding of another kind
            record.add_crash(path, genome, error)
        else:
            record.add(tried, found.kind(tried.genome))
            population.add(tried, of_claim)
            patience.add(tried)
        now = time.perf_counter()
        record.seconds = now - start
        if say is not None and now - said > _SAY:
            said = now
            say(record)
    return record


@dataclass(frozen=True)
class _Order:
    """What one process is to do, and where it leaves its record."""

    route: str
    seed: int
    tries: int
    minutes: float
    deadline: float
    path: Path

    def run(self) -> None:
        """A path that cannot be searched at all leaves a record that says so, and the others go
        on."""
        torch.set_num_threads(1)
        try:
            record = evolve(
                self.tries, self.seed, self.route, self._say, self.minutes, self.deadline
            )
        except Exception as error:
            record = _taken(self.path) if self.path.exists() else Record(seeds=[self.seed])
            record.add_crash(self.route, {"seed": self.seed}, error)
        record.write(self.path)

    def _say(self, record: Record) -> None:
        record.write(self.path)
        print(f"{self.route}, seed {self.seed}: {record.sentence()}", file=sys.stderr, flush=True)


def _shared(paths: Sequence[str], processes: int, fill: bool) -> list[str]:
    """Every path as often as all of them fit into the processes; `fill` gives the slow ones what is
    left over."""
    named = [*paths] * max(1, processes // len(paths))
    spare = max(0, processes - len(named)) if fill else 0
    return named + [path for path in _SLOW if path in paths][:spare]


def search(options: argparse.Namespace) -> Record:
    """Every path as often as it is named, or as often as all of them fit into the processes; each
    with a seed of its own."""
    named = _shared(options.paths, options.processes, options.share)
    tries = options.tries or (5000 if math.isinf(options.minutes) else sys.maxsize)
    tries = -(-tries // len(named))
    with tempfile.TemporaryDirectory() as folder:
        records = options.json.parent if options.json else Path(folder)
        orders = [
            _Order(
                path,
                seed,
                tries,
                options.minutes,
                options.deadline,
                records / f"fool-{path}-{seed}.part.json",
            )
            for seed, path in enumerate(named, options.seed)
        ]
        if options.processes == 1:
            for order in orders:
                order.run()
        else:
            for first in range(0, len(orders), options.processes):
                _together(orders[first : first + options.processes], options.minutes)
        return merge([_taken(order.path) for order in orders if order.path.exists()])


def _together(orders: Sequence[_Order], minutes: float) -> None:
    """One process each, all from this one's memory, so that nothing is imported again; who is late
    is ended."""
    for path in {order.route for order in orders}:
        with suppress(Exception):  # it is told of the process that searches it
            Route(path)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=order.run) for order in orders]
    end = time.monotonic() + 60 * minutes + _LATE
    for process in processes:
        process.start()
    for process in processes:
        process.join(None if math.isinf(end) else max(0.0, end - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _taken(path: Path) -> Record:
    record = Record(**json.loads(path.read_text()))
    path.unlink()
    return record


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--paths",
        nargs="+",
        choices=PATHS,
        default=list(PATHS),
        help="one named twice has two processes",
    )
    parser.add_argument(
        "--share",
        action="store_true",
        help="processes that are left over search the slow paths, too",
    )
    parser.add_argument(
        "--tries", type=int, help="of all processes together; 5,000, or as many as --minutes allow"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first process; the others have the next ones"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="stop after these, however many tries were made",
    )
    parser.add_argument("--json", type=Path, help="the record, written again and again on the way")
    parser.add_argument(
        "--deadline",
        type=float,
        default=DEADLINE,
        help="seconds of computing for the longest tries",
    )
    parser.add_argument(
        "--merge",
        type=Path,
        nargs="+",
        metavar="RECORD",
        help="add records up instead of searching",
    )
    options = parser.parse_args()
    if options.merge:
        record = merge([Record(**json.loads(path.read_text())) for path in options.merge])
    else:
        record = search(options)
    if options.json:
        record.write(options.json)
    for crash in record.crashed[:_CRASHES]:
        print(f"Crashed: {crash}", file=sys.stderr)
    print(record.sentence())
    print(record.families())
    print(record.table())


if __name__ == "__main__":
    main()
