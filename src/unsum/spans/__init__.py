"""The layers below the head: what two consecutive dense layers' gradients say about every sample, whatever the labels are.

In the order of the computation: `method` (the whole), `basis`, `roots`, `reflect`, `search`, `labels`, `targets`, `judge`.
"""

from unsum.spans.method import choose_pair, spans

__all__ = ["choose_pair", "spans"]
