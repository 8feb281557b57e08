"""Pairs of sentences: which of the two a token is of is one more embedding beside the token's own
(`token_type_ids`).

Token t of segment s is the number t + s V for a search over tokens: the vocabulary is tried once
for each segment, and nothing else changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unsum.models.language import embedding_of, rows_asked, vocabulary_of

_USED = 1e-2  # of an embedding's longest row of the gradient: less is noise
_NAME = "token_type_ids"  # as Hugging Face calls them


def segments_used(model: nn.Module, gradients: Mapping[str, Tensor]) -> tuple[str, list[int]]:
    """(the embedding, its rows) of which tokens alone ask for one row, and of which the client has
    used others.

    ("", [0]) where there is none: all texts are of one segment.
    """
    names = {
        module: name for name, module in model.named_modules() if isinstance(module, nn.Embedding)
    }
    tokens = embedding_of(model)
    for module, rows in rows_asked(model).items():
        gradient = gradients.get(f"{names[module]}.weight")
        of_tokens = tokens is not None and tokens[1] is module
        if gradient is None or of_tokens or len(rows) != 3 or not bool((rows == rows[0]).all()):
            continue
        sizes = gradient.norm(dim=1)
        used = (sizes > _USED * sizes.max()).nonzero()[:, 0].tolist()
        if set(used) - {int(rows[0])}:
            return names[module], used
    return "", [0]


def takes_segments(model: nn.Module) -> bool:
    return _NAME in inspect.signature(model.forward).parameters


@contextmanager
def numbered_by_segment(model: nn.Module) -> Iterator[None]:
    """Within it the model takes t + s V for token t of segment s; copies of it that are made
    meanwhile do, too."""
    V = vocabulary_of(model)

    def parted(
        _module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (given[0] % V, *given[1:]), named | {
            _NAME: torch.div(given[0], V, rounding_mode="floor")
        }

    hook = model.register_forward_pre_hook(parted, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
