"""Parameters that are tried in the long run only: more examples of what the others show already."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.mark import ParameterSet


def long(*values: Any) -> list[ParameterSet]:
    """Each value, or each tuple of values, as a parameter of `pytest.mark.parametrize` that carries
    the marker."""
    return [
        pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=pytest.mark.long) for v in values
    ]
