"""A new user's machine, made once."""

from __future__ import annotations

import os
import shutil

import pytest

from support.newcomer import Newcomer


@pytest.fixture(scope="session")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    if shutil.which("uv") is None:
        advice = (
            "No uv on the PATH; install it (pip install uv) to run the documentation's commands as "
            "a new user would."
        )
        if os.environ.get("UNSUM_REQUIRE_UV") == "1":
            pytest.fail(advice)
        pytest.skip(advice)
    return Newcomer(tmp_path_factory.mktemp("newcomer"))
