"""The loss of a causal language model: every position is a sample, and its label is the next token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError

IGNORED = -100  # the label of a position that takes no part, as PyTorch and Hugging Face have it


def logits_of(output: Any) -> Tensor:
    """(n, L, V) logits out of what a language model returns: a tensor, a tuple, or an object with `.logits`."""
    found = getattr(output, "logits", output)
    found = found[0] if isinstance(found, tuple | list) else found
    if not isinstance(found, Tensor) or found.ndim != 3:
        raise UnsumError("A language model must return (n, L, V) logits for (n, L) tokens; this one does not.")
    return found


def next_tokens(labels: Tensor) -> Tensor:
    """(n, L − 1) what positions 0…L−2 are to predict; IGNORED where they take no part.

    >>> next_tokens(torch.tensor([[7, 3, -100, 5]]))
    tensor([[   3, -100,    5]])
    """
    return labels[:, 1:]


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over the positions that take part, of logits (n, L, V) and labels (n, L) not yet shifted."""
    kept = next_tokens(labels)
    flat = logits[:, :-1].reshape(-1, logits.shape[-1])
    return nn.functional.cross_entropy(flat, kept.reshape(-1), ignore_index=IGNORED)


def gradients_of(model: nn.Module, tokens: Tensor, labels: Tensor, names: list[str]) -> dict[str, Tensor]:
    """The gradient of `next_token_loss` for the named parameters, in the mode that the model is in."""
    parameters = dict(model.named_parameters())
    with torch.enable_grad():
        loss = next_token_loss(logits_of(model(tokens)), labels)
        found = torch.autograd.grad(loss, [parameters[name] for name in names], allow_unused=True)
    return {name: g.detach() for name, g in zip(names, found, strict=True) if g is not None}
