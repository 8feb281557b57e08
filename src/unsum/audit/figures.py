"""How figures are written, in every output alike."""

from __future__ import annotations

import math

NOT_MEASURED = "–"


def percent(value: float) -> str:
    """
    >>> percent(0.298), percent(0.004)
    ('30 %', '0.4 %')
    """
    return NOT_MEASURED if math.isnan(value) else f"{100 * value:.{1 if 5e-4 < value < 0.01 else 0}f} %"


def error(value: float) -> str:
    """Powers of ten only where they help.

    >>> error(1.7e-07), error(0.354)
    ('1.7e-07', '0.35')
    """
    return f"{value:.1e}" if 0 < value < 0.01 else fixed(value, 2)


def fixed(value: float, digits: int) -> str:
    if math.isnan(value):
        return NOT_MEASURED
    return f"{value:.{digits}f}" if math.isfinite(value) else "∞"


def sample_count(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"
