"""Labels of single samples by the backward spans, and the gradients without them: what is needed to
look for the rest.

Of the C labels that a found sample may carry, one sends its gradient δ into the column spaces of
both layers. Its weight in the gradient follows from Wedderburn's identity: taking β d aᵀ out of ∇W
lowers the rank exactly for β = 1 / (aᵀ ∇W⁺ d).
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.engine.found import FoundPoints
from unsum.network.chain import Step, backward, forward
from unsum.spans.basis import LayerSpan
from unsum.spans.roots import Condition, Further

_LABELS = 64  # the most likely classes that are tried of many
_EQUAL = 1e-6  # of δ outside the spans: labels that differ by less fit equally


def deflate(condition: Condition, steps: list[Step], found: FoundPoints) -> Condition | None:
    """The condition without the found samples; None where nothing would be left."""
    here, X = condition.here, found.points
    if len(condition.next) <= len(X) or (len(here) <= len(X) and not here.full):
        return None
    labels, weights = read_labels(steps, here, condition.next, X)
    read, written = forward(steps, X)
    Y = torch.nn.functional.one_hot(labels, written[-1].shape[1]).to(X)
    sent = backward(steps, written, (written[-1].softmax(1) - Y) * weights[:, None])
    spans = [here, *condition.spans]
    rest = [
        # Rows shorter than the batch is large: those that are left still span everything.
        span
        if span.lacking
        else span.without(
            d, a, len(span) if span.full else len(span) - len(X), left_behind(found.errors, d, a)
        )
        for span, d, a in zip(spans, sent, read, strict=False)
    ]
    further = condition.further and Further(condition.further.step, rest[2])
    return Condition.of(condition.step, rest[0], rest[1], further)


def left_behind(errors: Tensor, delta: Tensor, read: Tensor) -> float:
    """The size of an entry of what samples leave behind that are known to relative `errors`."""
    behind = float((errors * delta.norm(dim=1) * read.norm(dim=1)).norm())
    return behind / (delta.shape[1] * read.shape[1]) ** 0.5


def read_labels(
    steps: list[Step], here: LayerSpan, following: LayerSpan, X: Tensor
) -> tuple[Tensor, Tensor]:
    """(R,) for each sample by itself the label that fits best, under cross-entropy, and (R,) its
    weight in the gradient."""
    read, z = forward(steps, X)
    P, C = z[-1].softmax(1), z[-1].shape[1]
    rows = steps[-1].grad_W.norm(dim=1)  # largest where samples have the class
    tried = range(C) if C <= _LABELS else rows.topk(_LABELS).indices.tolist()
    best, weights = torch.full_like(P[:, 0], torch.inf), torch.zeros_like(P[:, 0])
    labels = torch.zeros(len(X), dtype=torch.long, device=X.device)
    # or the first layer's column space lacks samples' δ
    complete = following.lacking or len(here) == len(following)
    for label in tried:
        deltas = backward(steps, z, P - torch.eye(C).to(P)[label])[:2]
        outside = _outside(deltas[1], following.columns) + complete * _outside(
            deltas[0], here.columns
        )
        own = (
            wedderburn(here, X, deltas[0])
            if following.lacking
            else wedderburn(following, read[1], deltas[1])
        )
        # Two classes send in one direction: the label is the one whose weight is positive.
        better = (outside < best - _EQUAL) | (
            (outside < best + _EQUAL) & (own > 0) & (weights <= 0)
        )
        best, weights = torch.where(better, outside, best), torch.where(better, own, weights)
        labels[better] = label
    return labels, weights


def _outside(delta: Tensor, columns: Tensor) -> Tensor:
    rest = delta - (delta @ columns.T) @ columns
    return rest.norm(dim=1) / delta.norm(dim=1).clamp_min(1e-300)


def wedderburn(span: LayerSpan, a: Tensor, d: Tensor) -> Tensor:
    """(R,) 1 / (aᵀ ∇W⁺ d), in the coordinates of the two spaces."""
    turned = torch.linalg.solve(span.core, (d @ span.columns.T).T)  # (N, R)
    weights: Tensor = ((span.extended(a) @ span.rows.T) * turned.T).sum(1).reciprocal()
    return weights.nan_to_num(posinf=0.0, neginf=0.0)
