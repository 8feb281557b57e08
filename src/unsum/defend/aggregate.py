"""Secure aggregation: the server learns the sum of several clients' updates and no single one.

The cryptography hides the summands perfectly, so that what the server sees is the weighted mean of
FedAvg,

    g = Σ_k n_k g_k / Σ_k n_k,   n_k the number of client k's samples,

which without BatchNorm in train mode is the gradient over all their samples together: a larger
batch, not a protected one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unsum.defend.defense import DEFENSES, Axis, Defense, whole_number
from unsum.errors import UnsumError
from unsum.update import Update


def aggregate(updates: Sequence[Update], *, sizes: Sequence[int] | None = None) -> Update:
    """What the server sees of these clients: their mean, weighted by sample counts (their sum, for
    losses that are sums).

    For every tensor g = Σ_k n_k g_k / Σ_k n_k, of the tensor's own shape.

    Args:
        updates: one per client, of the same model; defend each client's own before.
        sizes: the clients' sample counts, for the weights; by default their disclosed
            `batch_size`s, or equal weights where none discloses one. Only disclosed sizes end up in
            the result.

    Examples:
        >>> import torch, unsum
        >>> clients = [unsum.Update({"w": torch.tensor([value])}) for value in (1.0, 3.0)]
        >>> unsum.aggregate(clients, sizes=[3, 1]).gradients["w"]  # (3 · 1 + 1 · 3) / 4
        tensor([1.5000])
    """
    updates = list(updates)
    _check(updates)
    disclosed = [update.batch_size for update in updates if update.batch_size is not None]
    if sizes is None:
        if disclosed and len(disclosed) < len(updates):
            raise UnsumError(
                "Some clients disclose their batch size and some do not; give sizes= for all of "
                "them."
            )
        sizes = disclosed or [1] * len(updates)
    if len(sizes) != len(updates) or min(sizes) < 1:
        raise UnsumError(
            f"Give one size of at least 1 for each of the {len(updates)} updates, not "
            f"{list(sizes)}."
        )
    total = 1 if updates[0].reduction == "sum" else sum(sizes)
    weights = [1.0 if updates[0].reduction == "sum" else size / total for size in sizes]
    gradients = {
        name: sum(
            (u.gradients[name] * w for u, w in zip(updates, weights, strict=True)),
            start=first.new_zeros(()),
        )
        for name, first in updates[0].gradients.items()
    }
    known = sum(disclosed) if len(disclosed) == len(updates) else None
    return replace(updates[0], gradients=gradients, batch_size=known, num_examples=None)


@DEFENSES.register(
    "secagg",
    summary="secure aggregation: the server sees only the mean over this many clients",
    needs="the other clients' updates (in Python)",
)
class SecAgg(Defense):
    """This client's update together with those of the `clients` − 1 others.

    Examples:
        >>> import torch, unsum
        >>> mine, other = (unsum.Update({"w": torch.tensor([value])}) for value in (1.0, 3.0))
        >>> unsum.SecAgg(2, others=[other])(mine).gradients["w"]
        tensor([2.])
    """

    example = 4
    axis = Axis("clients", spacing="linear", whole=True)

    def __init__(
        self, clients: float, *, others: Sequence[Update] = (), sizes: Sequence[int] | None = None
    ) -> None:
        count = whole_number(clients, 2, "Secure aggregation needs a number of clients")
        if len(others) != count - 1:
            raise UnsumError(
                f"Secure aggregation of {count} clients needs the updates of the {count - 1} "
                f"others, not {len(others)}; capture them in Python and pass SecAgg(clients, "
                "others=[...]), or call unsum.aggregate(updates)."
            )
        super().__init__(count)
        self.others, self.sizes = list(others), sizes

    def __call__(self, update: Update) -> Update:
        return aggregate([update, *self.others], sizes=self.sizes)


def _check(updates: Sequence[Update]) -> None:
    """Refuse what no server could add up, naming what differs."""
    if not updates:
        raise UnsumError("There is nothing to aggregate; give at least one update.")
    first = updates[0]
    shapes = {name: g.shape for name, g in first.gradients.items()}
    for number, update in enumerate(updates[1:], 2):
        if {name: g.shape for name, g in update.gradients.items()} != shapes:
            raise UnsumError(
                f"Update {number} holds other tensors than the first; aggregate updates of one "
                "model."
            )
        for field in ("kind", "reduction", "learning_rate"):
            if getattr(update, field) != getattr(first, field):
                raise UnsumError(
                    f"Update {number} has another {field} than the first; aggregate updates of one "
                    "protocol."
                )
