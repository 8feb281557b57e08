"""One FedSGD step of a language model: the gradient of the mean loss over the next tokens, as the client would send it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsum.client.step import ClientStep, Defenses, Gradients, InsideClient, Stage, after, in_mode, ordered
from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.models.language import IGNORED, gradients_of, is_language_model, next_tokens
from unsum.update import Update


def capture_text(
    model: nn.Module,
    tokens: Tensor,
    labels: Tensor | None = None,
    *,
    train: bool = True,
    defenses: Defenses = (),
) -> Update:
    """The update a client would send after one step on these sequences.

    Args:
        model: a causal language model, called as `model(tokens)`; left exactly as it was.
        tokens: (n, L) token numbers, padded on the right where sequences are shorter.
        labels: (n, L) the tokens again, −100 at those that are not to be predicted (padding, a prompt); position j is
            trained to predict label j + 1. All tokens by default.
        train: train mode, dropout included, as real clients do; False for eval mode.
        defenses: that change the update, as for `capture`; those inside an image client are refused.

    Returns:
        The `Update`: the gradient of the mean over all positions that have a label.

    Examples:
        >>> import torch, unsum
        >>> model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50))  # (n, L) → (n, L, 50)
        >>> update = unsum.capture_text(model, torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]]))
        >>> {name: tuple(g.shape) for name, g in update.gradients.items()}
        {'0.weight': (50, 8), '1.weight': (50, 8), '1.bias': (50,)}
    """
    labels = tokens if labels is None else labels
    _check(model, tokens, labels)
    parts = ordered(defenses)
    for part in parts:
        if isinstance(part, InsideClient) and part.stage != Stage.UPDATE:
            raise UnsumError(
                f"{part!r} works inside a client that trains on images; text clients take those on the update."
            )
    step = ClientStep(model, tokens, labels, train, _gradient)
    return after(parts, Update(step.gradient(step)), step)


def _gradient(step: ClientStep) -> Gradients:
    names = [name for name, parameter in step.model.named_parameters() if parameter.requires_grad]
    with in_mode(step.model, step.train):
        return gradients_of(step.model, step.images, step.targets, names)


def _check(model: nn.Module, tokens: Tensor, labels: Tensor) -> None:
    if not is_language_model(model):
        raise UnsumError("capture_text needs a causal language model: one with a token embedding as wide as its head.")
    if tokens.ndim != 2 or tokens.shape != labels.shape or tokens.is_floating_point() or labels.is_floating_point():
        raise UnsumError(
            f"Tokens and labels must be (n, L) whole numbers alike, not {tuple(tokens.shape)} and {tuple(labels.shape)}."
        )
    if tokens.numel() == 0 or not bool((next_tokens(labels) >= 0).any()):
        raise UnsumError(
            "No position has a label, so there is nothing to learn; give at least two tokens and one label."
        )
    vocabulary = find_head(model)[1].out_features
    outside = torch.cat([tokens.flatten(), labels[labels != IGNORED].flatten()])
    if int(outside.min()) < 0 or int(outside.max()) >= vocabulary:
        raise UnsumError(f"Tokens must lie in 0…{vocabulary - 1}; found {int(outside.min())}…{int(outside.max())}.")
