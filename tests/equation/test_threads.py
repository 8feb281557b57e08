"""One thread for small matrices, and what there was for large ones."""

from __future__ import annotations

import pytest
import torch

from unsum.equation.threads import few_threads


def test_small_ones_run_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    with few_threads(100):
        assert asked == [1]
    with few_threads(1 << 20):
        pass
    assert asked == [1, 5, 5]
