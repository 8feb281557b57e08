"""Writes down what `unsum list` shows, so that the command need not import PyTorch; a test says
when it is out of step.

uv run python scripts/list_methods.py
"""

from __future__ import annotations

import json
from pathlib import Path

from unsum.commands.listing import listed_methods


def main() -> None:
    path = Path(__file__).parents[1] / "src" / "unsum" / "commands" / "methods.json"
    path.write_text(json.dumps(listed_methods(), indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
