"""A stand-in for rich on a machine that lacks it: the bench's runner draws with it, and nothing in these scripts does."""

from __future__ import annotations

import sys
from unittest.mock import MagicMock

try:
    import rich  # noqa: F401 (only its absence matters)
except ImportError:
    import torchmetrics  # noqa: F401 (what it loads looks for rich by itself, and is to find none)

    for name in ("rich", "rich.console", "rich.progress", "rich.table", "rich.text"):
        sys.modules[name] = MagicMock()
