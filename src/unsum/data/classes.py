"""Which class of the data is which of a trained head's: a head that was trained has given its
classes a meaning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from unsum.data.pictures import numbered
from unsum.data.sources import Source
from unsum.errors import UnsumError, shown

_LARGEST = 1 << 22  # bytes of a file of names


def class_order(path: Path) -> list[str]:
    """A head's classes in its order: the lines of a file, or the folders that it was trained on, by
    number or by name."""
    if path.is_dir():
        folders = [
            folder.name
            for folder in path.iterdir()
            if folder.is_dir() and not folder.name.startswith(".")
        ]
        numbers = all(name.isascii() and name.isdigit() for name in folders)
        names = sorted(folders, key=int) if numbers else sorted(folders)
    elif path.is_file() and path.stat().st_size <= _LARGEST:
        try:
            names = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
        except UnicodeDecodeError as error:
            raise UnsumError(
                f"{str(path)!r} is no text; --classes-from takes one class name a line."
            ) from error
    else:
        raise UnsumError(f"There is no file of class names or folder of classes {str(path)!r}.")
    if len(set(names)) < max(len(names), 1):
        raise UnsumError(f"{str(path)!r} must name every class of the head once, in its order.")
    return names


def fitting_order(order: list[str], classes: int) -> list[str]:
    """The same, unless a head of `classes` classes has more or fewer."""
    if len(order) != classes:
        raise UnsumError(
            f"--classes-from names {len(order)} classes, and the model's head has {classes}."
        )
    return order


def fitted(source: Source, classes: int, order: list[str] | None, *, trained: bool) -> Source:
    """The source with labels that mean what a head of `classes` classes means by them; refused
    where nobody can tell."""
    if order is not None:
        strange = next(
            (name for name in source.classes if name not in fitting_order(order, classes)), None
        )
        if strange is not None:
            raise UnsumError(
                f"The data have a class {shown(strange)}, and --classes-from does not name it."
            )
        return replace(source, class_order=order)
    names, _ = numbered([source], source.classes)
    called = set(source.classes)
    if trained and source.class_order is None and len(called) == classes < len(names):
        # numbers that do not count from 0: 1 to 10, say
        return replace(source, class_order=sorted(called, key=int))
    by_number = source.class_order is None and names == [
        str(number) for number in range(len(names))
    ]
    if not trained or len(names) == classes or (by_number and len(names) < classes):
        return source
    raise UnsumError(
        f"The model's trained head has {classes} classes and the data have {len(names)}; say which "
        "is which with --classes-from (a file with the head's class names in its order, or the "
        "folder it was trained on), call the data's folders by the head's numbers, or put a new "
        "head on with --fresh-head."
    )
