"""Flower in an environment of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.environments import environment

# run by those environments' own pytest, see test_flower.py
collect_ignore = ["in_flower", "in_nvflare"]


@pytest.fixture(scope="session")
def flower_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with unsum from this tree, Flower and its simulation
    engine."""
    return environment(
        tmp_path_factory.mktemp("flower"), "flwr[simulation]", "tensorboard", extras="[flower]"
    )
