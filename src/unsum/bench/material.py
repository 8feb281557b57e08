"""What a run is given besides its declarations: photos, weights, inverses, options, and where to compute."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import as_file, files
from pathlib import Path

from unsum.bench.declare import Cell
from unsum.bench.networks import WEIGHTED
from unsum.errors import UnsumError

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

    def data_of(self, cell: Cell) -> str | None:
        """Where the photos of this cell lie; None: the embedded ones."""
        return None if cell.data == "embedded" else self.data

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
    """Of the content of a file, or of every file of a folder with its name; a file is read once while it does not change."""
    place = Path(path)
    if place.is_file():
        return _file_fingerprint(place)
    if not place.is_dir():
        raise UnsumError(f"There is no file or folder {path!r}; give photos, weights or an inverse that is there.")
    digest = hashlib.sha256()
    for file in sorted(found for found in place.rglob("*") if found.is_file()):
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
        raise UnsumError(f"--option reads ATTACK:KEY=VALUE, as in gias:generator=net.py:build, not {text!r}.")
    return attack, name, value
