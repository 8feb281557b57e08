"""The exact solver without some of its starts, to show what they are needed for."""

from __future__ import annotations

import pytest

from unsum.separate.exact import search
from unsum.separate.exact.proposals import STARTS


def without_starts(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    assert set(names) <= {start.name for start in STARTS}
    monkeypatch.setattr(
        search, "STARTS", tuple(start for start in STARTS if start.name not in names)
    )
