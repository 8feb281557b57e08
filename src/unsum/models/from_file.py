"""A model out of a Python file that the user names: `path/to/file.py:factory`. The file may import
its neighbors."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from unsum.errors import UnsumError, unknown_name


def build_from_file(
    path: Path, factory_name: str, classes: int, further: Mapping[str, Any] | None = None
) -> nn.Module:
    """Run the file and call its factory, with `num_classes`, and those of the `further` arguments,
    that it takes."""
    if not path.is_file():
        raise UnsumError(f"There is no file {str(path)!r}.")
    top, name = _place(path.resolve())
    with _neighbors_of(top):
        try:
            module = (
                importlib.import_module(name)
                if "." in name
                else _run(path, f"unsum_user_model_{name}")
            )
        except (Exception, SystemExit) as error:
            raise UnsumError(f"{path.name!r} cannot be imported: {_told(error)}.") from error
        factory = _factory(module, path, factory_name)
        try:
            named = inspect.signature(factory).parameters
            given = {name: value for name, value in (further or {}).items() if name in named}
            if "num_classes" in named or any(p.kind is p.VAR_KEYWORD for p in named.values()):
                given["num_classes"] = classes
            model = factory(**given)
        except (Exception, SystemExit) as error:  # the user's own code
            raise UnsumError(
                f"{factory_name!r} of {path.name!r} failed: {_told(error)}."
            ) from error
    if not isinstance(model, nn.Module):
        raise UnsumError(
            f"{factory_name!r} of {path.name!r} must return a torch.nn.Module, not a "
            f"{type(model).__name__}."
        )
    return model


def _place(path: Path) -> tuple[Path, str]:
    """The folder that the file's imports start from, and its dotted name there: a file of a package
    is one of its modules."""
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


@contextmanager
def _neighbors_of(folder: Path) -> Iterator[None]:
    """Its modules go before all others, as when Python runs a file of it; later, as for imports in
    `forward`, behind them."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def _run(path: Path, name: str) -> ModuleType:
    """Under a name of its own, so that a file called torch.py stands in nobody's way."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:  # which a name that ends in .py never gives
        raise UnsumError(f"{path.name!r} cannot be run as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _factory(module: ModuleType, path: Path, name: str) -> Callable[..., Any]:
    own = [
        n
        for n, v in vars(module).items()
        if callable(v) and getattr(v, "__module__", "") == module.__name__
    ]
    factory: Callable[..., Any] | None = getattr(module, name, None)
    if callable(factory):
        return factory
    if name:
        raise unknown_name(f"function in {path.name!r} called", name, own)
    raise UnsumError(
        f"Name a function of {path.name!r} after a colon; it has {', '.join(own) or 'none'}."
    )


def _told(error: BaseException) -> str:
    reason = str(error).strip().split("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__
