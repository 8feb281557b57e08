"""Name → method, one registry per family; a second method of the same name is refused, never
silently preferred.

Other packages join by an entry point of the family's group (`unsum.attacks`, `unsum.defenses`, …)
that names a module which registers its methods when it is imported. They are imported when a
registry is listed, or asked for a name that it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from unsum.errors import check_name

Method = TypeVar("Method")
COMMANDS = (
    # the group of entry points that name no methods but commands; see `unsum.commands.installed`
    "unsum.commands"
)
# a sentence for every plug-in that could not be loaded; commands that list methods print them
PROBLEMS: list[str] = []
# Modules of ours that register methods of a family and stand above the package that has its
# registry.
_HOMES = {
    "attack": ("unsum.separate", "unsum.spans"),
    "row of auto": ("unsum.attack.rows",),
    "label rule": ("unsum.labels", "unsum.separate.label_rules"),
}
_loaded: set[str] = set()  # groups whose plug-ins were imported


@dataclass(frozen=True)
class Entry(Generic[Method]):
    """A registered method and what a user should know before choosing it."""

    name: str
    method: Method
    summary: str
    needs: str
    origin: str = field(default="", compare=False)  # the module that registered it


class Registry(Generic[Method]):
    """The methods of one family.

    >>> rules = Registry("label rule")
    >>> @rules.register("first", summary="always class 0")
    ... def first():
    ...     return 0
    >>> rules["first"]()
    0
    """

    def __init__(self, family: str, plugins: str | None = None) -> None:
        self.family, self.plugins = family, plugins
        self._entries: dict[str, Entry[Method]] = {}

    def register(self, name: str, *, summary: str, needs: str = "") -> Callable[[Method], Method]:
        """Decorator that makes a method known as `name`; `needs` says what it cannot do without."""
        if name in self._entries:
            raise ValueError(f"the {self.family} {name!r} is registered already")

        def add(method: Method) -> Method:
            # The module of a function or class, also of one that a family wraps in an object of its
            # own (`.find`).
            origin = str(getattr(getattr(method, "find", method), "__module__", ""))
            self._entries[name] = Entry(name, method, summary, needs, origin)
            return method

        return add

    def __getitem__(self, name: str) -> Method:
        if name not in self._entries:
            self._load()
        check_name(self.family, name, self._entries)
        return self._entries[name].method

    def __iter__(self) -> Iterator[Entry[Method]]:
        self._load()
        return iter(self._entries[name] for name in sorted(self._entries))

    def _load(self) -> None:
        for home in _HOMES.get(self.family, ()):
            import_module(home)
        load_plugins(self.plugins)


def load_plugins(group: str | None) -> None:
    """Import every module that an entry point of this group names, once; one that fails is noted,
    and the others go on."""
    if group is None or group in _loaded:
        return
    _loaded.add(group)
    named_by(group)


def named_by(group: str) -> dict[str, Any]:
    """What the entry points of this group name, by their names; one that fails is noted, and the
    others go on."""
    found: dict[str, Any] = {}
    for point in entry_points(group=group):
        try:
            found[point.name] = point.load()
        except Exception as error:  # whatever another package does wrong must not stop an audit
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            PROBLEMS.append(
                f"The plug-in {point.name!r} ({point.value}) could not be loaded: {reason}"
            )
    return found


def from_outside(entry: Entry[Any]) -> bool:
    """Whether another package registered this method."""
    return entry.origin.partition(".")[0] not in ("unsum", "")
