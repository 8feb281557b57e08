"""The Flower integration, where Flower is; in_flower/cases_*.py hold the tests themselves."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from integrations import elsewhere
from unsum import UnsumError


@pytest.fixture(scope="session")
def results(flower_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return elsewhere.run(flower_python, "in_flower", tmp_path_factory.mktemp("results"))


@pytest.mark.long
@pytest.mark.parametrize("name", elsewhere.names("in_flower"))
def test_in_flower(results: dict[str, list[str]], name: str) -> None:
    assert results[name] == []


@pytest.mark.skipif(find_spec("flwr") is not None, reason="Flower is installed here")
def test_without_flower_one_sentence_says_what_to_install() -> None:
    with pytest.raises(UnsumError, match=r"pip install 'unsum\[flower\]'"):
        import unsum.integrations.flower  # noqa: F401
