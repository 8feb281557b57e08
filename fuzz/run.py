"""Mutated files into every loader: each must be read, or be refused with one `UnsumError` of one
sentence.

    python fuzz/run.py --mutations 1000000 --seed 1

Each format runs in a process of its own, with a limit on its memory and on the time of one file.
Whatever else than a clean error comes out is a finding: its file is kept in `fuzz/found`. Files
that led to a sentence not seen before are mutated further, and `--keep` adds them to `fuzz/corpus`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CORPUS, FOUND = HERE / "corpus", HERE / "found"
_MEMORY = 2 << 30  # bytes that a loader may grow by
_SECONDS = 10  # that one file may take
_LONGEST_SENTENCE = 700
_FRESH = (
    # share of mutations that begin with a sound file; what is broken twice is mostly refused for
    # the first reason
    0.6
)
_MOST_KEPT, _LARGEST_KEPT = 12, 4096


@dataclass
class Tally:
    """What came of one format's mutations."""

    format: str
    mutations: int = 0
    read: int = 0
    refused: int = 0
    sentences: int = 0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)


class HungError(Exception):
    """A file that takes too long."""


def fuzz(
    name: str, mutations: int, seed: int, *, keep: bool = False, limit_memory: bool = True
) -> Tally:
    """`mutations` files of one format, in this process."""
    sys.path.insert(0, str(HERE))
    from formats import FORMATS
    from unsum.errors import UnsumError

    warnings.simplefilter("ignore")
    form, chance, tally = FORMATS[name], random.Random(f"{name}-{seed}"), Tally(name)
    seeds = form.seeds()
    pool = [*seeds, *(file.read_bytes() for file in sorted((CORPUS / name).glob("*")))]
    seen: set[str] = set()
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:
        path = _path(Path(folder), form.file)
        for content in seeds:
            path.write_bytes(content)
            form.read(_given(path))  # a seed that is refused would test nothing
        if limit_memory:
            _limit_memory()
        start = time.perf_counter()
        for _ in range(mutations):
            content = form.mutate(
                chance.choice(seeds if chance.random() < _FRESH else pool), chance
            )
            path.write_bytes(content)
            outcome, clean = _outcome(lambda: form.read(_given(path)), UnsumError)
            tally.mutations += 1
            tally.read += outcome is None
            tally.refused += outcome is not None and clean
            if not clean:
                _record(tally, name, content, str(outcome))
            shape = re.sub(r"\d+|'[^']*'", "#", outcome or "read")[:120]
            if shape not in seen and len(seen) < 4096:
                seen.add(shape)
                pool.append(content)
                if keep and len(content) <= _LARGEST_KEPT:
                    _keep(name, content)
        tally.seconds = time.perf_counter() - start
    tally.sentences = len(seen)
    return tally


def _path(folder: Path, file: str) -> Path:
    """A name without a suffix is a folder with one array in it."""
    if "." in file:
        return folder / file
    (folder / file).mkdir()
    return folder / file / "fc.weight.npy"


def _given(path: Path) -> Path:
    return path.parent if path.suffix == ".npy" else path


def _outcome(read: Any, clean: type[Exception]) -> tuple[str | None, bool]:
    """None if the file was read, else what was said; and whether that is as it must be."""
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        read()
    except clean as error:
        sentence = str(error)
        fine = (
            "\n" not in sentence
            and len(sentence) < _LONGEST_SENTENCE
            and "fit into memory" not in sentence
        )
        return sentence, fine
    except BaseException as error:  # everything else is what is looked for
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {str(error)[:200]}", False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None, True


def _record(tally: Tally, name: str, content: bytes, what: str) -> None:
    if len(tally.findings) < 20:
        FOUND.mkdir(exist_ok=True)
        (FOUND / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}").write_bytes(content)
        tally.findings.append(what)


def _keep(name: str, content: bytes) -> None:
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    if len(list(folder.iterdir())) < _MOST_KEPT:
        (folder / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)


def _limit_memory() -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY, size + _MEMORY))


def _fast_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _alarm(*_: Any) -> None:
    raise HungError(f"it took more than {_SECONDS} s")


def _child(name: str, mutations: int, seed: int, keep: bool, results: Any) -> None:
    signal.signal(signal.SIGALRM, _alarm)
    results.put(asdict(fuzz(name, mutations, seed, keep=keep)))


def run_apart(name: str, mutations: int, seed: int, keep: bool) -> Tally:
    """In a process of its own; one that dies is a finding, too."""
    context = multiprocessing.get_context("fork")  # what is loaded here is loaded there
    results = context.Queue()
    child = context.Process(target=_child, args=(name, mutations, seed, keep, results))
    child.start()
    while child.is_alive() and results.empty():
        child.join(0.2)
    if results.empty() and child.exitcode:
        return Tally(name, mutations, findings=[f"the process died ({child.exitcode})"])
    tally = Tally(**results.get())
    child.join()
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutations", type=int, default=20_000, help="over all formats together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--formats", help="some of them alone, separated by commas")
    parser.add_argument(
        "--keep", action="store_true", help="add what led to new sentences to fuzz/corpus"
    )
    parser.add_argument("--json", type=Path, help="write the tallies there")
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE))
    from formats import FORMATS

    chosen = arguments.formats.split(",") if arguments.formats else list(FORMATS)
    whole = sum(FORMATS[name].share for name in chosen)
    tallies = []
    for name in chosen:
        tally = run_apart(
            name,
            round(arguments.mutations * FORMATS[name].share / whole),
            arguments.seed,
            arguments.keep,
        )
        tallies.append(tally)
        rate = tally.mutations / tally.seconds if tally.seconds else 0
        print(
            f"{name:20} {tally.mutations:>8,} mutations {rate:>8,.0f}/s: {tally.read:,} read, "
            f"{tally.refused:,} refused ({tally.sentences} sentences), {len(tally.findings)} "
            "findings",
            flush=True,
        )
        for finding in tally.findings:
            print(f"    {finding}", flush=True)
        if arguments.json:
            content = {"seed": arguments.seed, "formats": [asdict(t) for t in tallies]}
            arguments.json.write_text(json.dumps(content, indent=2) + "\n")
    return 1 if any(tally.findings for tally in tallies) else 0


if __name__ == "__main__":
    raise SystemExit(main())
