"""The layers below the head: what two consecutive dense layers' gradients say about every sample,
whatever the labels are.

In the order of the computation: `method` (the whole), `basis`, `pair`, `roots`, `reflect`,
`search`, `labels`, `settle`, `targets`, `joint`, `judge`. Vision transformers: `tokens`. Several
local steps: `training`, `steps`, `unrolled`.
"""

from unsum.spans.method import spans
from unsum.spans.pair import choose_pair
from unsum.spans.tokens import read_tokens

__all__ = ["choose_pair", "read_tokens", "spans"]
