"""What the search for false claims found is counted whole into the page about reliability; see
`scripts/reliability.py`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def reliability() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "scripts"))
    import reliability as found

    yield found
    sys.path.remove(str(ROOT / "scripts"))


def record(**fooled: int) -> dict[str, Any]:
    """Of a search on two paths, with so many false claims of each kind about networks."""
    false = {
        name: [{"path": "networks"}] * fooled.get(name, 0)
        for name in ("features", "labels", "counts")
    }
    return {
        "tries": 70, "claimed": 12, "paths": {"many": 40, "networks": 30}, "crashed": [],
        "seeds": [3], "seconds": 120.0, "claims": {"many: a": 4, "many: b": 3, "networks: a": 5},
        "worst_claim": 1e-3, "refused": 0, "stopped": 0,
        **{f"fooled_{name}": found for name, found in false.items()},
    }  # fmt: skip


def test_every_path_of_the_search_has_a_row(reliability: ModuleType) -> None:
    tree = ast.parse((ROOT / "bench/src/unsum_bench/scripts/fool/run.py").read_text("utf-8"))
    paths = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "PATHS"
    )
    assert set(paths) == reliability.PATHS.keys()
    assert reliability._paths(record(features=1, counts=2))[2:] == [
        "| many updates at once | 40 | 7 | 0 | 0 | 0 |",
        "| networks that do not compute what they look like | 30 | 5 | 1 | 0 | 2 |",
    ]


@pytest.mark.parametrize("kind", ["features", "labels", "counts"])
def test_a_false_claim_of_any_kind_fails_the_run(reliability: ModuleType, kind: str) -> None:
    assert reliability._false(record()) == 0
    assert reliability._false(record(**{kind: 2})) == 2
    rows = reliability._program_rows({"formats": []}, record(**{kind: 2}))[1:]
    survived = [row.split("|")[4].strip() for row in rows]
    assert survived == ["10" if name == kind else "12" for name in ("features", "labels", "counts")]
