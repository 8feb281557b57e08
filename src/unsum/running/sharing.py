"""What one attack computes once, however many of its parts ask for it; and what all attacks on one
model share.

    with sharing_models():           # around attacks on many updates of one model
        for update in updates:
            with sharing():          # an attack on one update
                …                    # its parts ask with `once(name, objects, make)`

Values are told apart by the objects that they were made from, which are kept as long as the values.
Outside of any scope nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from torch import Tensor

Value = TypeVar("Value")
_Kept = dict[tuple[Any, ...], tuple[Any, ...]]
_ATTACK: ContextVar[_Kept | None] = ContextVar("unsum-sharing", default=None)
_MODEL: ContextVar[_Kept | None] = ContextVar("unsum-sharing-models", default=None)


@contextmanager
def sharing() -> Iterator[None]:
    """One attack; inside of another it is a part of that one."""
    if _ATTACK.get() is not None:
        yield
        return
    token = _ATTACK.set({})
    try:
        yield
    finally:
        _ATTACK.reset(token)


@contextmanager
def sharing_models() -> Iterator[None]:
    """Many attacks, which keep what they compute of the model alone; inside of others they are a
    part of those."""
    if _MODEL.get() is not None:
        yield
        return
    token = _MODEL.set({})
    try:
        yield
    finally:
        _MODEL.reset(token)


def once(
    name: str,
    objects: tuple[Any, ...],
    make: Callable[[], Value],
    *more: Any,
    of_model: bool = False,
) -> Value:
    """What `make()` gave for these very objects and equal `more`; `of_model` where no update has a
    part in it.

    >>> made = []
    >>> with sharing():
    ...     [
    ...         once("length", (made,), lambda: len(made)),
    ...         made.append(1),
    ...         once("length", (made,), lambda: len(made)),
    ...     ]
    [0, None, 0]
    >>> once("length", (made,), lambda: len(made))
    1
    """
    kept = _ATTACK.get()
    if of_model and _MODEL.get() is not None:
        kept = _MODEL.get()
    if kept is None:
        return make()
    key = (name, *map(id, objects), *more)
    if key not in kept:
        kept[key] = (make(), objects)
    return kept[key][0]


def version(tensor: Tensor) -> int:
    """Changes whenever the tensor is changed in place, as far as PyTorch counts that."""
    return -1 if tensor.is_inference() else tensor._version
