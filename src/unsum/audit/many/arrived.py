"""One update among many: where it comes from, and what an attack makes of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from unsum.attack.options import AttackOptions
from unsum.audit.finding import ClientFinding, finding_of, reason_of
from unsum.audit.round import attacked
from unsum.client.step import in_mode
from unsum.errors import UnsumError
from unsum.files.walk import files_under
from unsum.models.received import Received
from unsum.update import Update

SUFFIXES = (".safetensors", ".npz", ".pt", ".pth", ".pb")  # of files that hold one update
_ROUND = re.compile(r"round[-_ ]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Arrived:
    """One client's update in one round, in memory or in a file.

    Examples:
        >>> import torch, unsum
        >>> model = torch.nn.Linear(6, 4)
        >>> update = unsum.capture(model, torch.rand(2, 6), torch.tensor([0, 3]))
        >>> unsum.Arrived("hospital-3", update, round=7).client
        'hospital-3'
    """

    client: str
    update: Update | Received
    round: int = 0

    @property
    def fingerprint(self) -> str:
        """Changes with the update: of a file by its size and date, else by the size of every
        tensor."""
        digest = hashlib.sha256()
        if isinstance(self.update, Received):
            files = [
                path
                for path in (self.update.update, self.update.before, self.update.after)
                if path is not None
            ]
            known = [
                (path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.exists()
            ]
            digest.update(repr((self.update, known)).encode())
        else:
            for name, gradient in self.update.gradients.items():
                size = float(torch.linalg.vector_norm(gradient))
                # To a few digits: sums in another order round differently.
                digest.update(f"{name} {tuple(gradient.shape)} {size:.4g}".encode())
        return digest.hexdigest()[:16]

    @property
    def sha256(self) -> str:
        """Of the file that holds the update; empty where it is in no file, or that is gone."""
        path = None if isinstance(self.update, Update) else self.update.update or self.update.after
        return "" if path is None else file_sha256(path)

    def look(self, model: nn.Module, options: AttackOptions, train: bool) -> ClientFinding:
        """The finding; whatever is wrong with this update is one, too, and never ends the
        others."""
        try:
            update = self.update if isinstance(self.update, Update) else self.update.read(model)
            update.validate(model)
            sent = update.map(lambda _name, tensor: tensor.to(options.device))
            with in_mode(model, train):
                leak = attacked(model, sent, options)
        except Exception as error:
            return ClientFinding(
                self.round,
                self.client,
                "failed",
                notes=(reason_of(error),),
                reason=reason_of(error),
            )
        return finding_of(self.round, self.client, update, leak)


def file_sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def arrivals(updates: Iterable[Arrived | Update | Received | str | Path]) -> Iterator[Arrived]:
    """Each with a name: its own, its file's, or its place."""
    for place, update in enumerate(updates):
        if isinstance(update, Arrived):
            yield update
        elif isinstance(update, Update):
            yield Arrived(str(place), update)
        elif isinstance(update, Received):
            held = update.update or update.after
            yield Arrived(held.stem if held else str(place), update)
        else:
            yield of_file(Path(update))


def of_file(path: Path, received: Received | None = None, base: Path | None = None) -> Arrived:
    """A client by its path under `base` without the ending; the round by a folder or a name like
    `round-3`.

    >>> of_file(Path("round-3/anna.npz")).round, of_file(Path("round-3/anna.npz")).client
    (3, 'anna')
    """
    found = _ROUND.search(str(path if base is None else path.relative_to(base)))
    name = (
        path.with_suffix("").name
        if base is None
        else path.relative_to(base).with_suffix("").as_posix()
    )
    made = Received(update=path) if received is None else replace(received, update=path)
    return Arrived(name, made, int(found[1]) if found else 0)


def in_folder(folder: Path, received: Received | None = None) -> Iterator[Arrived]:
    """Every update under a folder, in the order of their paths; `received` says what all of them
    have in common."""
    if not folder.is_dir():
        raise UnsumError(
            f"There is no folder {str(folder)!r}; --updates takes a folder of updates."
        )
    paths = sorted(path for path in files_under(folder) if path.suffix in SUFFIXES)
    if not paths:
        raise UnsumError(
            f"{str(folder)!r} holds no update; updates are {', '.join(SUFFIXES)} files."
        )
    return (of_file(path, received, folder) for path in paths)
