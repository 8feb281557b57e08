"""What a run is given besides its declarations: photos, weights, inverses, options, and where to
compute.

The key of a cell: the same declaration, code and data make the same key, and anything else another
one.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from unsum.defend import DEFENSES
from unsum.errors import UnsumError
from unsum.files.walk import files_under
from unsum.match import MATCHERS
from unsum.registry import Entry, from_outside
from unsum.separate import SEPARATORS
from unsum_bench.declare import NONE, Cell
from unsum_bench.networks import WEIGHTED

Options = tuple[tuple[str, str, str], ...]  # (attack, option, value) of --option


@dataclass(frozen=True)
class Material:
    """Files are given by their paths; on a cluster every node must find them there."""

    data: str | None = None  # a folder, tar or npz; None: the embedded photos
    weights: str | None = None
    inverse: str | None = None
    options: Options = ()
    device: str = "cpu"
    threads: int = 1
    cifar: str | None = None  # photos of CIFAR-100, for the tables that a paper has on them

    def data_of(self, cell: Cell) -> str | None:
        """Where the photos of this cell lie; None: the embedded ones."""
        return {"embedded": None, "photos": self.data, "cifar": self.cifar}[cell.data]

    def data_name(self, cell: Cell) -> str:
        data = self.data_of(cell)
        return "embedded photos" if data is None else Path(data).name

    def fingerprint(self, cell: Cell) -> dict[str, str]:
        """The content of every file that this cell's result depends on."""
        found = {"data": self.data_fingerprint(cell)}
        if cell.network.name in WEIGHTED and self.weights is not None:
            found["weights"] = fingerprint(self.weights)
        if self.inverse is not None:
            found["inverse"] = fingerprint(self.inverse)
        for option, value in self.options_of(cell):
            path = value.rpartition(":")[0] or value
            content = fingerprint(path) if Path(path).is_file() else ""
            found[f"option {option}"] = f"{value} {content}".strip()
        return found | {"device": self.device.partition(":")[0]}

    def data_fingerprint(self, cell: Cell) -> str:
        data = self.data_of(cell)
        return _embedded_fingerprint() if data is None else fingerprint(data)

    def options_of(self, cell: Cell) -> list[tuple[str, str]]:
        """What --option adds for the attack of this cell."""
        return [(name, value) for attack, name, value in self.options if attack == cell.attack.name]


def fingerprint(path: str) -> str:
    """Of the content of a file, or of every file of a folder with its name; a file is read once
    while it does not change."""
    place = Path(path)
    if place.is_file():
        return _file_fingerprint(place)
    if not place.is_dir():
        raise UnsumError(
            f"There is no file or folder {path!r}; give photos, weights or an inverse that is "
            "there."
        )
    digest = hashlib.sha256()
    for file in sorted(files_under(place)):
        digest.update(f"{file.relative_to(place)} {_file_fingerprint(file)}\n".encode())
    return digest.hexdigest()[:16]


def _file_fingerprint(path: Path) -> str:
    facts = path.stat()
    return _read(path, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=100_000)
def _read(path: Path, changed: int, size: int) -> str:  # noqa: ARG001 (a file that changed is read again)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


@lru_cache(maxsize=1)
def _embedded_fingerprint() -> str:
    with as_file(files("unsum.data") / "photos") as folder:
        return fingerprint(str(folder))


def parse_option(text: str) -> tuple[str, str, str]:
    """`ATTACK:KEY=VALUE`, as in `gias:generator=net.py:build`."""
    attack, colon, rest = text.partition(":")
    name, equals, value = rest.partition("=")
    if not (colon and equals and attack and name and value):
        raise UnsumError(
            f"--option reads ATTACK:KEY=VALUE, as in gias:generator=net.py:build, not {text!r}."
        )
    return attack, name, value


# What shows results or calls measurements, and changes none of them.
# `bench`: this package
_FRONT_ENDS = ("app", "audit", "bench", "commands", "doctor", "integrations")
_MEASURING = ("audit/leakage.py", "audit/round.py", "bench/networks.py", "bench/measure/")


def key_of(cell: Cell, material: Material) -> str:
    """Of the cell's declaration, the code that measures it and the files that it reads."""
    return _digest(
        {
            "cell": cell.content(),
            "code": code_version(),
            **material.fingerprint(cell),
            **_plugins(cell),
        }
    )


def declaration_of(cell: Cell) -> str:
    """The cell's declaration alone: what tables look results up by, whatever code and data made
    them."""
    return _digest(cell.content())


@lru_cache(maxsize=1)
def code_version() -> str:
    """A fingerprint of every source file of unsum and of the bench that can change a measurement,
    weights included."""
    digest = hashlib.sha256()
    for name, content in _measuring():
        digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()[:12]


def _measuring() -> Iterator[tuple[str, bytes]]:
    """Those files by name, the bench's own below `bench/`, and what they hold."""
    for package, below in (("unsum", ""), ("unsum_bench", "bench/")):
        with as_file(files(package)) as folder:
            for path in sorted(
                found for found in folder.rglob("*") if found.suffix in (".py", ".safetensors")
            ):
                name = below + path.relative_to(folder).as_posix()
                if name.startswith(_MEASURING) or name.partition("/")[0] not in _FRONT_ENDS:
                    yield name, path.read_bytes()


def _plugins(cell: Cell) -> dict[str, str]:
    """The source of third-party methods that the cell uses."""
    stems = [part.partition(":")[0] for part in cell.defense.split("|") if cell.defense != NONE]
    used: list[Entry[Any]] = [entry for entry in DEFENSES if entry.name in stems]
    for registry in (SEPARATORS, MATCHERS):
        used += [
            entry
            for entry in registry
            if entry.name == cell.attack.name and cell.attack.family == "attack"
        ]
    return {f"plug-in {entry.name}": _source(entry) for entry in used if from_outside(entry)}


def _source(entry: Entry[Any]) -> str:
    try:
        path = inspect.getsourcefile(inspect.unwrap(getattr(entry.method, "find", entry.method)))
    except TypeError:
        path = None
    return fingerprint(path) if path is not None and Path(path).is_file() else entry.origin


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, ensure_ascii=True).encode()
    ).hexdigest()[:32]
