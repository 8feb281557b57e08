"""One FedSGD step of a language model: the gradient of the mean loss over what it predicts, as the
client would send it."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from unsum.client.step import (
    ClientStep,
    Defenses,
    Gradients,
    InsideClient,
    Stage,
    after,
    in_mode,
    ordered,
)
from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.models.language import (
    IGNORED,
    TextTask,
    gradients_of,
    is_language_model,
    targets,
    task_of,
    vocabulary_of,
)
from unsum.models.segments import takes_segments
from unsum.update import Update


def capture_text(
    model: nn.Module,
    tokens: Tensor,
    labels: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    segments: Tensor | None = None,
    train: bool = True,
    defenses: Defenses = (),
) -> Update:
    """The update a client would send after one step on these sequences.

    Args:
        model: a language model, called as `model(tokens)`; left exactly as it was.
        tokens: (n, L) token numbers, padded on the right where sequences are shorter; where a model
            predicts masked tokens, with its mask token in their places.
        labels: (n, L) the tokens again, −100 at those that are not to be predicted (padding, a
            prompt). Position j is trained to predict label j + 1, or label j where tokens are
            masked. All tokens by default. A classifier of text takes (n,) class numbers.
        mask: (n, L) false at padding, given to the model as `attention_mask`, as tokenizers do;
            none by default.
        segments: (n, L) which sentence of a pair each token is of, given to the model as
            `token_type_ids`; none by default.
        train: train mode, dropout included, as real clients do; False for eval mode.
        defenses: that change the update, as for `capture`; those inside an image client are
            refused.

    Returns:
        The `Update`: the gradient of the mean over all positions that have a label.

    Examples:
        >>> import torch, unsum
        >>> model = torch.nn.Sequential(  # (n, L) → (n, L, 50)
        ...     torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50)
        ... )
        >>> update = unsum.capture_text(model, torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]]))
        >>> {name: tuple(g.shape) for name, g in update.gradients.items()}
        {'0.weight': (50, 8), '1.weight': (50, 8), '1.bias': (50,)}
    """
    labels = tokens if labels is None else labels
    _check(model, tokens, labels, mask)
    _check_segments(model, tokens, segments)
    parts = ordered(defenses)
    for part in parts:
        if isinstance(part, InsideClient) and part.stage != Stage.UPDATE:
            raise UnsumError(
                f"{part!r} works inside a client that trains on images; text clients take those on "
                "the update."
            )
    step = ClientStep(
        model, tokens, labels, train, partial(_gradient, mask=mask, segments=segments)
    )
    return after(parts, Update(step.gradient(step)), step)


def _gradient(step: ClientStep, *, mask: Tensor | None, segments: Tensor | None) -> Gradients:
    names = [name for name, parameter in step.model.named_parameters() if parameter.requires_grad]
    with in_mode(step.model, step.train):
        return gradients_of(step.model, step.images, step.targets, names, mask, segments)


def _check(model: nn.Module, tokens: Tensor, labels: Tensor, mask: Tensor | None) -> None:
    if not is_language_model(model):
        raise UnsumError(
            "capture_text needs a language model: one with a token embedding as wide as its head, "
            "or Hugging Face's classifier of text."
        )
    task, whole = task_of(model), not tokens.is_floating_point() and not labels.is_floating_point()
    if task is TextTask.CLASS and (
        tokens.ndim != 2 or labels.shape != tokens.shape[:1] or not whole
    ):
        raise UnsumError(
            f"A classifier of text takes (n, L) tokens and (n,) classes, not {tuple(tokens.shape)} "
            f"and {tuple(labels.shape)}."
        )
    if task is not TextTask.CLASS and (
        tokens.ndim != 2 or tokens.shape != labels.shape or not whole
    ):
        raise UnsumError(
            f"Tokens and labels must be (n, L) whole numbers alike, not {tuple(tokens.shape)} and "
            f"{tuple(labels.shape)}."
        )
    if mask is not None and mask.shape != tokens.shape:
        raise UnsumError(
            f"The mask must be as the tokens, {tuple(tokens.shape)}, not {tuple(mask.shape)}."
        )
    if tokens.numel() == 0 or not bool((targets(task, labels) >= 0).any()):
        raise UnsumError(
            "No position has a label, so there is nothing to learn; give at least two tokens and "
            "one label."
        )
    classes = find_head(model)[1].out_features
    _check_range("Tokens", tokens, vocabulary_of(model))
    _check_range(
        "Labels" if task is TextTask.CLASS else "Tokens", labels[labels != IGNORED], classes
    )


def _check_segments(model: nn.Module, tokens: Tensor, segments: Tensor | None) -> None:
    if segments is None:
        return
    if not takes_segments(model):
        raise UnsumError("The model takes no segments (token_type_ids); leave them out.")
    if segments.shape != tokens.shape or segments.is_floating_point():
        raise UnsumError(
            f"Segments must be whole numbers as the tokens, {tuple(tokens.shape)}, not "
            f"{tuple(segments.shape)}."
        )


def _check_range(what: str, numbers: Tensor, end: int) -> None:
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= end:
        raise UnsumError(f"{what} must lie in 0…{end - 1}; found {low}…{high}.")
