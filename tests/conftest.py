"""Fixtures: a fresh small network, and the default audit, run once."""

from __future__ import annotations

import hypothesis
import pytest
from torch import nn

import unsum
from material import small_net

# Timings belong in benchmarks/: a busy machine must not fail a test. Derandomised, so that a failure repeats.
hypothesis.settings.register_profile("unsum", deadline=None, derandomize=True)
hypothesis.settings.load_profile("unsum")


@pytest.fixture
def net() -> nn.Sequential:
    return small_net()


@pytest.fixture(scope="session")
def default_audit() -> unsum.Audit:
    return unsum.audit()
