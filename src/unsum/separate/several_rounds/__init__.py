"""One client in several rounds, on the same data: more equations for the same features, one idea per file.

- `method`: from the rounds to one `Leak`;
- `together`: their heads below each other as one, the batch that explains all of them, and what may be claimed.
"""

from unsum.separate.several_rounds.method import separate_rounds

__all__ = ["separate_rounds"]
