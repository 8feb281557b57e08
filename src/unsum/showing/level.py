"""The leakage that a sample may reach where nobody says otherwise: a fifth of what a guess leaves
open."""

from __future__ import annotations

DEFAULT_LEVEL = 0.2  # chosen; `audit.leakage` says what it is a share of
