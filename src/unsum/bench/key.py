"""The key of a cell: the same declaration, code and data make the same key, and anything else another one."""

from __future__ import annotations

import hashlib
import inspect
import json
from functools import lru_cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from unsum.bench.declare import NONE, Cell
from unsum.bench.material import Material, fingerprint
from unsum.defend import DEFENSES
from unsum.match import MATCHERS
from unsum.registry import Entry, from_outside
from unsum.separate import SEPARATORS

# What shows results or calls measurements, and changes none of them.
_FRONT_ENDS = ("app", "audit", "bench", "commands", "doctor", "integrations")
_MEASURING = ("audit/leakage.py", "audit/round.py", "bench/networks.py", "bench/measure/")


def key_of(cell: Cell, material: Material) -> str:
    """Of the cell's declaration, the code that measures it and the files that it reads."""
    return _digest({"cell": cell.content(), "code": code_version(), **material.fingerprint(cell), **_plugins(cell)})


def declaration_of(cell: Cell) -> str:
    """The cell's declaration alone: what tables look results up by, whatever code and data made them."""
    return _digest(cell.content())


@lru_cache(maxsize=1)
def code_version() -> str:
    """A fingerprint of every source file of unsum that can change a measurement, weights included."""
    digest = hashlib.sha256()
    with as_file(files("unsum")) as package:
        for path in sorted(found for found in package.rglob("*") if found.suffix in (".py", ".safetensors")):
            name = path.relative_to(package).as_posix()
            if _measures(name):
                digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _measures(name: str) -> bool:
    return name.startswith(_MEASURING) or name.partition("/")[0] not in _FRONT_ENDS


def _plugins(cell: Cell) -> dict[str, str]:
    """The source of third-party methods that the cell uses."""
    stems = [part.partition(":")[0] for part in cell.defense.split("|") if cell.defense != NONE]
    used: list[Entry[Any]] = [entry for entry in DEFENSES if entry.name in stems]
    for registry in (SEPARATORS, MATCHERS):
        used += [entry for entry in registry if entry.name == cell.attack.name and cell.attack.family == "attack"]
    return {f"plug-in {entry.name}": _source(entry) for entry in used if from_outside(entry)}


def _source(entry: Entry[Any]) -> str:
    try:
        path = inspect.getsourcefile(inspect.unwrap(getattr(entry.method, "find", entry.method)))
    except TypeError:
        path = None
    return fingerprint(path) if path is not None and Path(path).is_file() else entry.origin


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:32]
