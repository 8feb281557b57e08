"""Name → method, one registry per family; a second method of the same name is refused, never silently preferred."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from unsum.errors import unknown_name

Method = TypeVar("Method")


@dataclass(frozen=True)
class Entry(Generic[Method]):
    """A registered method and what a user should know before choosing it."""

    name: str
    method: Method
    summary: str
    needs: str


class Registry(Generic[Method]):
    """The methods of one family.

    >>> rules = Registry("label rule")
    >>> @rules.register("first", summary="always class 0")
    ... def first(): return 0
    >>> rules["first"]()
    0
    """

    def __init__(self, family: str) -> None:
        self.family = family
        self._entries: dict[str, Entry[Method]] = {}

    def register(self, name: str, *, summary: str, needs: str = "") -> Callable[[Method], Method]:
        """Decorator that makes a method known as `name`; `needs` says what it cannot do without."""
        if name in self._entries:
            raise ValueError(f"the {self.family} {name!r} is registered already")

        def add(method: Method) -> Method:
            self._entries[name] = Entry(name, method, summary, needs)
            return method

        return add

    def __getitem__(self, name: str) -> Method:
        if name not in self._entries:
            raise unknown_name(self.family, name, self._entries)
        return self._entries[name].method

    def __iter__(self) -> Iterator[Entry[Method]]:
        return iter(self._entries[name] for name in sorted(self._entries))
