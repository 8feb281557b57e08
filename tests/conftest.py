"""Fixtures: a fresh small network, and the default audit, run once.

PyTorch and unsum are imported where they are needed: the process that only deals tests out to
others starts without them.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from torch import nn

    import unsum

# One thread for each process, because there are as many processes as cores. PyTorch reads it when
# it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Where no compiled Python may lie beside the code, it lies here: hundreds of children would compile
# PyTorch anew, seconds each.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.pycache_prefix = os.environ.setdefault(
        "PYTHONPYCACHEPREFIX", str(Path(__file__).parents[1] / "build" / "compiled")
    )
    sys.dont_write_bytecode = False

# Who starts the tests in a shell's background has children that ignore Ctrl-C, and some tests are
# about it.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Timings belong in bench/: a busy machine must not fail a test. Derandomized, so that a failure
# repeats.
hypothesis.settings.register_profile("unsum", deadline=None, derandomize=True)
hypothesis.settings.load_profile("unsum")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Every test and its fixtures draw the same numbers, whichever tests ran before it in the same
    process."""
    import numpy
    import torch

    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)


@pytest.fixture(scope="session", autouse=True)
def _kept_priors() -> Iterator[None]:
    from support.kept_priors import keep_priors

    with pytest.MonkeyPatch.context() as patch:
        keep_priors(patch)
        yield


@pytest.fixture(scope="module")
def short_matching() -> Iterator[None]:
    """Audits that end in gradient matching take a few of its steps, which draw nothing: what they
    draw is the subject of tests/attack/test_last_resort.py, and takes seconds for each audit."""
    from unsum.attack import last_resort

    with pytest.MonkeyPatch.context() as patch:
        for how in last_resort.SETTINGS.values():
            patch.setitem(how, "steps", 5)
        yield


@pytest.fixture
def net() -> nn.Sequential:
    from support.material import small_net

    return small_net()


@pytest.fixture(scope="session")
def default_audit() -> unsum.Audit:
    import unsum

    return unsum.audit()
