"""From a name to a source of pictures: files, torchvision's data sets by name, Hugging Face's from
a folder."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unsum.data.sources import Source, open_source, unambiguous
from unsum.errors import UnsumError, check_name, first_line, optional

_PICKLED = ("LSUN", "LSUNClass")
_FACES, _PEOPLE = (
    "CelebA",
    10_177,
)  # photos are labeled by who is on them, counted from one; so many are in the data set
# numpy's own way to pickle an array, under the names of its old and new releases.
_ALLOWED = {
    (f"{package}.multiarray", "_reconstruct") for package in ("numpy.core", "numpy._core")
} | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}  # fmt: skip


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"the file asks for {module}.{name}, and unsum runs no code out of files"
            )
        return super().find_class(module, name)


@contextmanager
def plain_pickles() -> Iterator[None]:
    """CIFAR's files are pickles. torchvision checks their digests; here, besides, nothing but
    arrays can come out of them."""
    from torchvision.datasets import cifar  # here and below, because it takes seconds to import

    before = cifar.pickle
    # all that it calls
    cifar.pickle = SimpleNamespace(load=lambda file, **options: _Plain(file, **options).load())
    try:
        yield
    finally:
        cifar.pickle = before


def open_data(spec: str | Path) -> Source:
    """A folder, tar or npz; `torchvision:NAME:ROOT`; or `hf:PATH`."""
    kind, _, rest = str(spec).partition(":")
    if kind == "torchvision":
        name, _, root = rest.partition(":")
        return torchvision_source(name, root)
    if kind == "hf":
        return hugging_face_source(Path(rest))
    return open_source(Path(spec))


def torchvision_source(name: str, root: str) -> Source:
    """`torchvision:NAME:ROOT`, the split that the data set gives by default; nothing is
    downloaded."""
    from torchvision import datasets

    kinds: dict[str, Any] = {kind: getattr(datasets, kind) for kind in datasets.__all__}
    kinds = {kind: made for kind, made in kinds.items() if isinstance(made, type)}
    check_name("torchvision data set", name, kinds)
    if not root:
        raise UnsumError(f"Say where the data set lies on disk: torchvision:{name}:FOLDER.")
    if name in _PICKLED:
        raise UnsumError(
            f"torchvision's {name} keeps pickles beside its pictures, and unsum runs no code out "
            "of files."
        )
    options: dict[str, Any] = (
        {"download": False} if "download" in inspect.signature(kinds[name]).parameters else {}
    )
    if name == _FACES:  # by default it gives forty attributes, not one label
        options["target_type"] = "identity"
    try:
        with plain_pickles():
            held = kinds[name](root, **options)
        count = len(held)
    except Exception as error:  # each of the data sets has its own ways to fail
        raise UnsumError(
            f"torchvision cannot open {name} in {root!r}: {first_line(error)}."
        ) from error
    if name == _FACES:
        labels, people = (
            [int(person) - 1 for person in held.identity.flatten()],
            range(1, _PEOPLE + 1),
        )
        return _source(
            name, labels, [str(person) for person in people], lambda i: _pixels(held[i][0])
        )
    labels = _labels(held, name, count)
    return _source(name, labels, getattr(held, "classes", None), lambda i: _pixels(held[i][0]))


def hugging_face_source(path: Path) -> Source:
    """`hf:PATH`, a folder that `Dataset.save_to_disk` wrote; of several splits the one called
    train."""
    datasets = optional("datasets", "datasets", "Data called hf:PATH need datasets")
    try:
        held = datasets.load_from_disk(str(path))
    except Exception as error:  # it raises nearly anything on a folder of another kind
        raise UnsumError(
            f"{str(path)!r} is no folder written by save_to_disk: {first_line(error)}."
        ) from error
    if isinstance(held, dict):
        if "train" not in held and len(held) != 1:
            raise UnsumError(
                f"{str(path)!r} has the splits {', '.join(held)}; name the folder of one of them."
            )
        held = held["train"] if "train" in held else next(iter(held.values()))
    pictures = [
        column for column, kind in held.features.items() if isinstance(kind, datasets.Image)
    ]
    labels = [
        column for column, kind in held.features.items() if isinstance(kind, datasets.ClassLabel)
    ]
    labels = labels or [column for column in ("label", "labels") if column in held.features]
    if not pictures or not labels:
        raise UnsumError(
            f"{str(path)!r} needs a column of type Image and one of type ClassLabel; it has "
            f"{', '.join(held.features)}."
        )
    names = getattr(held.features[labels[0]], "names", None)
    return _source(path.name, list(held[labels[0]]), names, lambda i: _pixels(held[i][pictures[0]]))


def _labels(held: Any, name: str, count: int) -> list[Any]:
    """Most data sets keep all labels in one place; the others are asked picture by picture."""
    for attribute in ("targets", "labels", "_labels"):
        known = getattr(held, attribute, None)
        if known is not None and len(known) == count:
            return list(known)
    try:
        return [held[i][1] for i in range(count)]
    except Exception as error:
        raise UnsumError(
            f"torchvision's {name} gives no label for each picture: {first_line(error)}."
        ) from error


def _source(
    name: str,
    labels: Sequence[Any],
    class_names: Sequence[str] | None,
    fetch: Callable[[int], NDArray[np.uint8]],
) -> Source:
    try:
        numbers = [int(label) for label in labels]
    except (TypeError, ValueError) as error:
        raise UnsumError(
            f"{name} does not give each picture one label; unsum audits classifiers."
        ) from error
    if not numbers:
        raise UnsumError(f"{name} holds no pictures.")
    if min(numbers) < 0:
        raise UnsumError(f"{name} holds pictures without a label; choose a split that has them.")
    count = max(numbers) + 1
    called = (
        [str(c) for c in class_names]
        if class_names is not None and len(class_names) >= count
        else None
    )
    order = unambiguous(called) if called is not None else [str(number) for number in range(count)]
    return Source.of(
        [f"{name}/{i}" for i in range(len(numbers))], [order[n] for n in numbers], fetch, order
    )


def _pixels(picture: Any) -> NDArray[np.uint8]:
    """(h, w, 3) of a Pillow picture."""
    return np.asarray(picture.convert("RGB"))
