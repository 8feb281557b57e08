"""What the tutorial shows of Flower, run as it stands there; the blocks that need no Flower run
when the site is built."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "tutorials" / "flower.md"


def test_the_tutorials_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert (tmp_path / "audit").is_dir()
    assert type(names["strategy"]).__name__ == "StoreUpdates"
    assert type(names["app"]).__name__ == "ClientApp"
