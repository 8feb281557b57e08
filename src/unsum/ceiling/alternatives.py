"""What else a label or a token could have been: what the model itself expects most, before it is
trained on them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from unsum.gradients import in_eval_mode, main_output
from unsum.models.language import IGNORED, TextTask, logits_of, task_of, vocabulary_of

# [labels] besides the likeliest that a label is held against; of more classes, evenly spaced ones.
# Chosen by: all classes of the default model
MANY = 16


def other_labels(model: nn.Module, inputs: Tensor, targets: Tensor) -> list[Tensor] | None:
    """For every sample the likeliest other target, as its row of `targets`; None where targets are
    no classes.

    Of rows of probabilities, the largest entry and that of the likeliest other class change places;
    of rows of several labels, the one that the model is least sure of is the other way round.
    """
    with in_eval_mode(model), torch.no_grad():
        outputs = model(inputs)
    if isinstance(outputs, dict) or not isinstance(main_output(outputs), Tensor):
        return None
    logits = main_output(outputs).detach()
    if logits.ndim != 2 or len(logits) != len(targets) or not bool(logits.isfinite().all()):
        return None
    if targets.ndim == 1 and logits.shape[1] == 1:
        return [1 - y for y in targets] if bool(((targets == 0) | (targets == 1)).all()) else None
    if targets.ndim == 1 and not targets.is_floating_point() and logits.shape[1] > 1:
        if int(targets.min()) < 0 or int(targets.max()) >= logits.shape[1]:
            return None  # numbers of something else, for a loss of the user's
        own = torch.nn.functional.one_hot(targets.long(), logits.shape[1]).bool()
        return list(logits.masked_fill(own, -torch.inf).argmax(1).to(targets))
    if targets.ndim != 2 or targets.shape != logits.shape or logits.shape[1] < 2:
        return None
    if bool(((targets.sum(1) - 1).abs() < 1e-4).all()) and bool((targets >= 0).all()):
        return [_exchanged(row, scores) for row, scores in zip(targets, logits, strict=True)]
    if bool(((targets == 0) | (targets == 1)).all()):
        return [_flipped(row, scores) for row, scores in zip(targets, logits, strict=True)]
    return None


def every_label(model: nn.Module, inputs: Tensor, targets: Tensor) -> list[list[Tensor]] | None:
    """For every sample its other labels besides the likeliest one: all of them, or many; of rows of
    targets none. None where targets are no classes."""
    likeliest = other_labels(model, inputs, targets)
    if likeliest is None:
        return None
    with in_eval_mode(model), torch.no_grad():
        classes = main_output(model(inputs)).shape[1]
    if targets.ndim != 1 or classes == 1:
        return [[] for _ in likeliest]
    found = []
    for own, first in zip(targets.tolist(), likeliest, strict=True):
        others = [k for k in range(classes) if k not in (own, int(first))]
        step = max(math.ceil(len(others) / MANY), 1)
        found.append([torch.tensor(k).to(targets) for k in others[::step]])
    return found


def _exchanged(row: Tensor, scores: Tensor) -> Tensor:
    own = int(row.argmax())
    other = int(
        scores.index_fill(0, torch.tensor([own], device=scores.device), -torch.inf).argmax()
    )
    changed = row.clone()
    changed[own], changed[other] = row[other], row[own]
    return changed


def _flipped(row: Tensor, scores: Tensor) -> Tensor:
    changed, place = row.clone(), int(scores.abs().argmin())
    changed[place] = 1 - row[place]
    return changed


def likeliest_tokens(
    model: nn.Module, tokens: Tensor, mask: Tensor | None, labels: Tensor, *, seed: int
) -> Tensor:
    """(n, L) the token other than its own that the model expects most in every place.

    A classifier of text expects none: its tokens are drawn from the vocabulary, by `seed`.
    """
    task, vocabulary = task_of(model), vocabulary_of(model)
    if task is TextTask.CLASS:
        drawn = torch.randint(
            vocabulary - 1, tokens.shape, generator=torch.Generator().manual_seed(seed)
        )
        return drawn.to(tokens.device) + (drawn.to(tokens.device) >= tokens).to(tokens.dtype)
    with in_eval_mode(model), torch.no_grad():
        logits = logits_of(
            model(tokens) if mask is None else model(tokens, attention_mask=mask.long())
        )
    if task is TextTask.NEXT:  # position j is predicted at j − 1, the first by the mean over all
        logits = torch.cat([logits.mean((0, 1)).expand(len(tokens), 1, -1), logits[:, :-1]], 1)
    own = tokens.where(labels == IGNORED, labels)  # of a masked token the label
    return logits.scatter(2, own[:, :, None], -torch.inf).argmax(2)


def changeable(
    model: nn.Module, tokens: Tensor, mask: Tensor | None, labels: Tensor, i: int
) -> Tensor:
    """Places of text `i` that are not padding."""
    if mask is not None:
        return mask[i].nonzero()[:, 0]
    if (
        task_of(model) is TextTask.NEXT
    ):  # the last labels of a padded text are left out; a prompt's are read
        labeled = (labels[i] != IGNORED).nonzero()[:, 0]
        return torch.arange(int(labeled[-1]) + 1 if len(labeled) else 0)
    return torch.arange(tokens.shape[1])
