"""`python -m unsum` is `unsum`."""

from __future__ import annotations

from unsum.commands.main import main

if __name__ == "__main__":
    main()
