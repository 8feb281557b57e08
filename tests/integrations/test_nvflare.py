"""The NVFlare integration, where NVFlare is; in_nvflare/cases_*.py hold the tests themselves."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from integrations import elsewhere
from support.environments import environment
from unsum import UnsumError


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    python = environment(tmp_path_factory.mktemp("nvflare"), "nvflare")
    return elsewhere.run(python, "in_nvflare", tmp_path_factory.mktemp("nvflare-results"))


@pytest.mark.long
@pytest.mark.parametrize("name", elsewhere.names("in_nvflare"))
def test_in_nvflare(results: dict[str, list[str]], name: str) -> None:
    assert results[name] == []


@pytest.mark.skipif(find_spec("nvflare") is not None, reason="NVFlare is installed here")
def test_without_nvflare_one_sentence_says_what_to_install() -> None:
    with pytest.raises(UnsumError, match="pip install nvflare"):
        import unsum.integrations.nvflare  # noqa: F401
