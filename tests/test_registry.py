from __future__ import annotations

import subprocess
import sys

import pytest

from unsum import UnsumError
from unsum.errors import unknown_name
from unsum.registry import Registry


def test_a_second_method_of_the_same_name_is_refused() -> None:
    registry: Registry[int] = Registry("number")
    registry.register("one", summary="the first")(1)
    with pytest.raises(ValueError, match="'one' is registered already"):
        registry.register("one", summary="an impostor")
    assert registry["one"] == 1


def test_entries_come_sorted_with_what_they_need() -> None:
    registry: Registry[int] = Registry("number")
    registry.register("two", summary="b", needs="more")(2)
    registry.register("one", summary="a")(1)
    assert [(e.name, e.method, e.needs) for e in registry] == [("one", 1, ""), ("two", 2, "more")]


def test_unknown_names_get_the_nearest_valid_one() -> None:
    registry: Registry[int] = Registry("number")
    registry.register("seven", summary="")(7)
    with pytest.raises(
        UnsumError, match=r"no number 'sevne'; did you mean 'seven'\? Known: seven\."
    ):
        registry["sevne"]


def test_long_lists_are_shown_only_when_nothing_is_near() -> None:
    names = [f"name{i}" for i in range(40)]
    assert "Known" not in str(unknown_name("thing", "name4", names))
    assert "name39" in str(unknown_name("thing", "zzz", names))


@pytest.mark.parametrize(
    ("module", "registry", "name"),
    [
        ("unsum.separate.method", "SEPARATORS", "spans"),
        ("unsum.labels.method", "LABEL_RULES", "adaptive"),
    ],
)
def test_methods_of_packages_above_are_found_by_name(module: str, registry: str, name: str) -> None:
    """In a process that has imported nothing but the registry."""
    code = (
        f"from {module} import {registry} as r; r[{name!r}]; assert {name!r} in [entry.name for "
        "entry in r]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
