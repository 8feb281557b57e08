"""Which tokens or categories occurred, held against those that the client's samples asked its
embeddings for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from unsum.gradients import inputs_of
from unsum.models.language import rows_of

_MOST = 0.5  # share of what a guess leaves open, from which the values that occurred count as read


@dataclass(frozen=True)
class RowsNamed:
    """Of an embedding with so many `rows`, `total` occurred; an attack named some, of which `right`
    did.

    Whoever names as many rows without the update has `named · total / rows` of them right. Where
    every row occurred, there was nothing to tell.

    >>> named = RowsNamed("embedding", rows=1000, total=63, named=63, right=63)
    >>> named.given_away, round(named.by_chance, 1)
    (True, 4.0)
    """

    embedding: str
    rows: int
    total: int
    named: int
    right: int

    @property
    def by_chance(self) -> float:
        return self.named * self.total / self.rows

    @property
    def given_away(self) -> bool:
        left = self.total - self.total * self.total / self.rows
        return left > 0 and self.right - self.by_chance > _MOST * left

    @property
    def sentence(self) -> str:
        wrong = self.named - self.right
        besides = f", and {wrong} that did not" if wrong else ""
        return (
            f"The gradient of the embedding {self.embedding!r} names {self.right} of the "
            f"{self.total} rows (tokens or categories) that occurred, of {self.rows:,} there "
            f"are{besides}."
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"given_away": self.given_away}


def rows_named(
    found: Mapping[str, Tensor], model: nn.Module, run: Callable[[], Any]
) -> list[RowsNamed]:
    """The rows that were named, beside those that the model asks for in the client's own pass,
    `run`."""
    if not found:
        return []
    modules = {name: model.get_submodule(name) for name in found}
    with ExitStack() as hooks:
        seen = {name: hooks.enter_context(inputs_of(module)) for name, module in modules.items()}
        run()
    answers = []
    for name, module in modules.items():
        true = {int(row) for part in seen[name] for row in part.unique()} - {
            getattr(module, "padding_idx", None)
        }
        named = set(found[name].tolist())
        right = len(named & true)
        answers.append(RowsNamed(name, rows_of(module), len(true), len(named), right))
    return answers
