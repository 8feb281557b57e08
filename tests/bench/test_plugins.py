"""Another package's attack and defense, known by entry points alone, in a process that has it on
its path."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.bench_process import with_plugin
from unsum.registry import Registry

pytestmark = pytest.mark.long
PROGRAM = """
import json
import unsum
from unsum_bench.experiments import EXPERIMENTS
from unsum_bench.plan import cells_of
from unsum.defend import DEFENSES, parse_defense
from unsum.registry import PROBLEMS
from unsum.separate import SEPARATORS

print(json.dumps({
    "attacks": [entry.name for entry in SEPARATORS],
    "defenses": [entry.name for entry in DEFENSES],
    "parsed": repr(parse_defense("shrink:0.5")),
    "attacked": {n: any(c.attack.name == "class-means" for c in cells_of(e, "smoke")) for n, e in EXPERIMENTS.items()},
    "defended": {n: any(c.defense == "shrink:0.25" for c in cells_of(e, "smoke")) for n, e in EXPERIMENTS.items()},
    "families": {n: sorted({c.attack.family for c in cells_of(e, "smoke")}) for n, e in EXPERIMENTS.items()},
    "problems": PROBLEMS,
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder: Path = tmp_path_factory.mktemp("plugin")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env=with_plugin(),
        capture_output=True,
        text=True,
        check=True,
    )
    content: dict[str, object] = json.loads(done.stdout)
    return content


def test_registries_list_what_entry_points_name(found: dict[str, list[str]]) -> None:
    assert "class-means" in found["attacks"]
    assert "shrink" in found["defenses"]
    assert found["parsed"] == "Shrink(0.5)"


def test_every_table_of_attacks_has_the_plug_in(found: dict[str, dict[str, object]]) -> None:
    """Tables of a rule's estimate or of soft labels alone have no room for another attack."""
    for name, attacked in found["attacked"].items():
        assert attacked == ("attack" in found["families"][name]), name  # type: ignore[operator]
    assert all(found["defended"].values())


def test_a_broken_plug_in_is_told_and_stops_nothing(found: dict[str, list[str]]) -> None:
    (sentence,) = found["problems"]
    assert sentence.startswith(
        "The plug-in 'broken' (unsum_that_is_not_there) could not be loaded: "
    )


def test_a_registry_without_plug_ins_loads_none() -> None:
    assert list(Registry("thing")) == []
