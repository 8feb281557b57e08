"""How many samples an answer is of, as far as the update determines it.

A sample that weighs twice sends what two copies of it send: a class weight of 2, micro-batches of 1
and 2 that are averaged, two clients in one sum and weights of tokens look like copies. Under a mean
even a batch that is doubled sends the same.

So the rows of a certified answer are distinct samples of the batch. How many of each there are is
determined only where the batch size is known and leaves no choice: as many distinct samples as it
counts. A single one that was found settles nothing: beside it the model may be sure of the others,
which then send nothing, under a gradient that was multiplied without a word.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.knowledge import Knowledge
from unsum.leak import Counted

# predicted errors of both within which two rows may be one sample: noise leaves copies two or three
# apart
_SAME = 5.0
# of a row: distances out of products of float64 are no finer than the root of its rounding
_FINEST = 1e-7


def count(
    rows: Tensor,
    labels: Tensor,
    errors: Tensor,
    knowledge: Knowledge,
    *,
    copies: Tensor | None = None,
    steps: Tensor | None = None,
) -> Counted:
    """The count of samples read as `rows` (B, …) with `labels` (B,) and predicted relative `errors`
    (B,).

    `copies` (B,) says how often each row was counted, once by default. `steps` (B,) numbers the
    local step that met each row, where a sample that is met again may read otherwise: then only
    those of one step, or of different labels, are distinct.
    """
    total = len(rows) if copies is None else int(copies.sum())
    met = torch.zeros_like(labels) if steps is None else steps
    first = _first_of_their_kind(rows.flatten(1), torch.stack([labels, met], dim=1), errors)
    distinct = {
        y: int(met[first & (labels == y)].bincount().max()) for y in labels.unique().tolist()
    }
    settled = knowledge.known_batch_size == total and _settled(distinct, total, knowledge)
    # a step may have met a sample of another
    settled &= steps is None or sum(distinct.values()) == total
    return Counted(sum(distinct.values()), settled, visits=steps is not None and not settled)


def each_is_one(knowledge: Knowledge, copies: Tensor | None) -> bool:
    """Whether the number that was granted leaves a single sample for each of those found, whatever
    they weigh.

    Where one counts twice it may weigh twice, and another one be two samples that look alike.
    """
    return knowledge.known_batch_size is not None and (
        copies is None or not bool((copies > 1).any())
    )


def _first_of_their_kind(rows: Tensor, kinds: Tensor, errors: Tensor) -> Tensor:
    """(B,) whether no earlier row of the same kind (B, …) may be the same sample."""
    rows = rows.double()
    reach = _SAME * errors.to(rows).clamp_min(_FINEST) * rows.norm(dim=1)
    apart = torch.cdist(rows, rows)
    alike = ~(apart > reach[:, None] + reach) & (kinds[:, None] == kinds).all(2)
    return ~alike.tril(-1).any(1)


def _settled(distinct: dict[int, int], total: int, knowledge: Knowledge) -> bool:
    """Whether there are as many distinct samples as were granted: of the batch or, label by label,
    of the labels."""
    if knowledge.labels is None or knowledge.labels.ndim != 1:
        return sum(distinct.values()) == total
    granted = torch.bincount(knowledge.labels.cpu()).tolist()
    return all(
        label < len(granted) and number == granted[label] for label, number in distinct.items()
    )
