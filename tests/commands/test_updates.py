"""`unsum audit --updates`: what its options make of many updates."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from unsum.commands import audit
from unsum.commands import main as cli


@pytest.mark.parametrize(
    ("words", "granted"),
    [((), None), (("--batch", "5"), None), (("--batch", "5", "--batch-size-known"), 5)],
)
def test_a_batch_size_is_granted_only_where_it_is_said_to_be_known(
    words: tuple[str, ...], granted: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--batch` alone is what a simulated client would have; of a captured update it tells the attacker nothing."""
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(audit, "audit_many", lambda *_asked, **how: heard.append(how))
    monkeypatch.setattr(sys, "argv", ["unsum", "audit", "--updates", str(tmp_path), *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert [how["batch_size"] for how in heard] == [granted]
