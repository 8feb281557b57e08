"""Pictures that a malicious server read, as a leak of their own or beside what the last layer gave
away."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.active.method import Reader, Recovered
from unsum.gradients import same_buffers
from unsum.head import collect_features, find_head
from unsum.leak import Leak
from unsum.running.late_scipy import linear_sum_assignment

_MID_GRAY = 0.5  # of a picture of which nothing was read


def alone(model: nn.Module, reader: Reader, recovered: Recovered) -> Leak:
    """A leak whose rows are the pictures that were read. Features are the model's for them; labels
    were not sought."""
    if len(recovered.inputs) == 0:  # a leak has at least one row
        gray, no = torch.full((1, *reader.shape), _MID_GRAY), torch.zeros(1, dtype=torch.bool)
        notes = [*recovered.notes, "Nothing was read; the one picture shown is gray."]
        recovered = Recovered(
            gray, no, torch.full((1,), math.inf), torch.zeros(1, dtype=torch.long), notes
        )
    features = features_of(model, recovered.inputs)
    _, head = find_head(model)
    with torch.no_grad():
        logits = head(features.to(head.weight)).double()
    return Leak(
        method=reader.name,
        targets=torch.full(logits.shape, 1 / logits.shape[1], dtype=torch.float64),
        logits=logits,
        features=features,
        residual=math.nan,
        predicted_error=float(recovered.errors.max()),
        exact=False,
        knowledge=reader.knowledge,
        images=recovered.inputs.clamp(0, 1) if recovered.inputs.ndim == 4 else None,
        inputs=recovered.inputs,
        inputs_exact=recovered.exact,
        notes=[
            *recovered.notes,
            "Labels were not sought: every class is given the same probability.",
        ],
    )


def place(model: nn.Module, leak: Leak, reader: Reader, recovered: Recovered) -> Leak:
    """The leak of the last layer with every picture that was read in the row whose features it has.

    The pictures pass through the model, in its present mode; BatchNorm then sees only those that
    were read, so features agree roughly and the best pairing decides. Samples without a picture get
    a gray one.
    """
    knowledge = replace(leak.knowledge, may_change_model=True, auxiliary_photos=reader.photos)
    source = (
        "The pictures were read out of the server's layer, labels and features out of the last one."
    )
    notes = [*recovered.notes, source, *leak.notes]
    if len(recovered.inputs) == 0:
        return replace(leak, knowledge=knowledge, notes=notes)
    # certain ones first, if there are too many
    order = recovered.exact.long().argsort(descending=True, stable=True)
    inputs, exact = recovered.inputs[order], recovered.exact[order]
    read, told = features_of(model, inputs).double(), leak.features.to(inputs.device).double()
    found = nn.functional.normalize(read, eps=1e-30) @ nn.functional.normalize(told, eps=1e-30).T
    kept = slice(max(leak.batch_size, int(exact.sum())))
    rows, columns = linear_sum_assignment(-found[kept].nan_to_num().cpu().numpy())
    images = torch.full((leak.batch_size, *inputs.shape[1:]), _MID_GRAY, device=inputs.device)
    sure = torch.zeros(leak.batch_size, dtype=torch.bool, device=inputs.device)
    images[columns], sure[columns] = inputs[rows].clamp(0, 1), exact[rows]
    return replace(
        leak,
        method=f"{reader.name} + {leak.method}",
        knowledge=knowledge,
        images=images if images.ndim == 4 else None,
        inputs=images,
        inputs_exact=sure,
        notes=notes,
    )


def features_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """(N, H) without a trace in the model: what BatchNorm counts is put back."""
    with same_buffers(model):
        return collect_features(model, inputs.to(next(model.parameters()))).float()
