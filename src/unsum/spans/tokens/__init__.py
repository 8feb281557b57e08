"""Networks that cut a picture into patches and read them as tokens: the picture back out of the
first layers' gradients.

In the order of the computation: `network` and `block` (what the model does, found by trying),
`solve` (one picture), `search` and `unwind` (a batch), `replay`, `polish`, `judge`, `method`.
"""

from unsum.spans.tokens.method import read_tokens
from unsum.spans.tokens.network import PatchNetwork, find_patches, is_patched

__all__ = ["PatchNetwork", "find_patches", "is_patched", "read_tokens"]
