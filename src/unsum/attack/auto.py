"""The one place that chooses the attack: `auto` goes through the rows by priority and keeps the
best answer.

A row that applies is attempted; its answer takes the place of the one before, with the reason as
its first note. Every answer and every refusal stays in `Leak.tried`, so that an audit can count the
strongest sample by sample. `unsum list` prints the rows. A further attack is one more row
(`unsum.attack.rows`), of ours or of a plug-in's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from unsum.attack.case import Case
from unsum.attack.options import AUTO, AttackOptions
from unsum.errors import UnsumError
from unsum.leak import Attempt, Leak
from unsum.registry import Registry
from unsum.running.deadline import out_of_time, trying
from unsum.running.progress import Progress
from unsum.update import Update

Attempted = Callable[[Case], Leak | None]  # None where the answer before it stays


@dataclass(frozen=True)
class AutoRow:
    """A method, when it is tried, and what the user is told where its answer replaces another."""

    method: str
    priority: float  # rows are tried in ascending order
    when: str
    applies: Callable[[Case], bool]
    attempt: Attempted
    reason: str = ""  # with {before} and {after}, the two leaks
    adds: bool = False  # its answer is the one before, with more beside it
    brief: bool = False  # it costs next to nothing, and is tried when time is over, too
    at_head: bool = True  # reads the last layer alone
    follows_steps: bool = False  # its answer stands where local steps were not followed

    @property
    def says(self) -> str:
        """The reason without its figures."""
        return re.sub(r"\{[^}]*\}", "…", self.reason)

    def told(self, before: Leak | None, after: Leak) -> Leak:
        """The answer with the reason for it."""
        if not self.reason:
            return after
        return replace(after, notes=[self.reason.format(before=before, after=after), *after.notes])


RATIO = "ratio"  # the row that `quick` tries after the one it is asked for
ROWS: Registry[AutoRow] = Registry("row of auto", "unsum.attacks")


def row(
    name: str, method: str, priority: float, **declared: Any
) -> Callable[[Attempted], Attempted]:
    """Decorator that makes an attempt a row of `auto`; `declared` are the other fields of
    `AutoRow`."""

    def add(attempt: Attempted) -> Attempted:
        made = AutoRow(method, priority, attempt=attempt, **declared)
        ROWS.register(name, summary=made.when)(made)
        return attempt

    return add


def rows() -> list[AutoRow]:
    """All rows in the order in which they are tried."""
    return sorted((entry.method for entry in ROWS), key=lambda one: one.priority)


class NothingReadError(UnsumError):
    """Every attack refused the update, or read nothing that stands for a sample; `tried` has them
    all."""

    def __init__(self, tried: list[Attempt]) -> None:
        super().__init__(
            next((attempt.refused for attempt in tried if attempt.refused), "No attack applies.")
        )
        self.tried = tried


def auto(model: nn.Module, update: Update, options: AttackOptions, progress: Progress) -> Leak:
    """The best answer of the methods that suit this update, or of the one that the options name."""
    if options.method != AUTO:
        return only(options.method, model, update, options, progress)
    return _best(rows(), Case(model, update, options, progress))


def only(
    method: str, model: nn.Module, update: Update, options: AttackOptions, progress: Progress
) -> Leak:
    """The answer of one separator, whatever others would say."""
    case = Case(model, update, options, progress)
    return replace(case.separate(method, asked=True), tried=case.tried)


def quick(
    method: str, model: nn.Module, update: Update, options: AttackOptions, progress: Progress
) -> Leak:
    """The answer of one separator or, where that is not certain, what the rows of the dense layers
    hold."""
    alone = AutoRow(
        method, 0, "always", lambda _case: True, lambda case: case.separate(method, asked=True)
    )
    return _best([alone, ROWS[RATIO]], Case(model, update, options, progress))


def _best(tried: Iterable[AutoRow], case: Case) -> Leak:
    by, candidates = None, list(tried)
    for place, one in enumerate(candidates, 1):
        if case.best is not None and not one.brief and out_of_time("further attacks"):
            continue
        trying(f"the attack {one.method!r}", place, len(candidates))
        try:
            found = one.attempt(case) if one.applies(case) else None
        except UnsumError as reason:  # another one may not need what this one misses
            refused = Attempt(one.method, refused=str(reason), at_head=one.at_head)
            case.tried.append(refused)
            continue
        if found is not None:
            case.best = one.told(case.best, found)
            if not one.adds:
                by, case.by = one, one.method
    if case.best is None:
        raise NothingReadError(case.tried)
    unfollowed = case.unfollowed_steps
    if unfollowed and by is not None and not by.follows_steps:
        # The other rows took several steps for one, and vouch for nothing.
        return replace(
            case.best, exact=False, tried=case.tried, notes=[*unfollowed, *case.best.notes]
        )
    return replace(case.best, tried=case.tried)
