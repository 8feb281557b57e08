"""Rows of a table beside what came back of them, cell by cell and in the table's own units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from unsum.audit.leakage import DEFAULT_LEVEL, WHOLE, Shares, Truth, leakages_of_rows
from unsum.data import Batch
from unsum.data.table_schema import TableSchema
from unsum.leak import Leak
from unsum.models.table_network import first_dense, read_by_first_layer

_LISTED = 6  # categories that a sentence names


@dataclass(frozen=True)
class RecoveredRow:
    """The cells of a true row, and of what was read in its place; `same` says which agree. No
    `found`: it was not read."""

    title: str
    true: list[str]
    found: list[str] | None
    same: list[bool]

    @property
    def exact(self) -> bool:
        return bool(self.same) and all(self.same)

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "true": self.true,
            "recovered": self.found,
            "cells_right": sum(self.same),
        }


@dataclass(frozen=True)
class TableRows:
    """All rows of the client's batch, in its order, and the categories that gradients of embeddings
    name."""

    columns: list[str]
    rows: list[RecoveredRow]
    named: dict[str, list[str]] = field(default_factory=dict)

    @property
    def cells_right(self) -> float:
        """The share of all cells; a row that was not read has none."""
        return sum(sum(row.same) for row in self.rows) / (len(self.rows) * len(self.columns))

    @property
    def rows_exact(self) -> float:
        """The share of rows that came back in every cell."""
        return sum(row.exact for row in self.rows) / len(self.rows)

    @property
    def sentences(self) -> list[str]:
        exact, read = (
            sum(row.exact for row in self.rows),
            sum(row.found is not None for row in self.rows),
        )
        cells, right = len(self.rows) * len(self.columns), sum(sum(row.same) for row in self.rows)
        of_them = f"; {read} of them were read" if read < len(self.rows) else ""
        said = [
            (
                f"{exact} of {len(self.rows)} rows came back in every cell, and {right} of {cells} "
                f"cells in all{of_them}."
            )
            if read
            else f"None of the {len(self.rows)} rows was read."
        ]
        for column, values in self.named.items():
            more = f" and {len(values) - _LISTED} more" if len(values) > _LISTED else ""
            said.append(
                f"The gradient of the embedding of {column!r} names what occurs: "
                f"{', '.join(values[:_LISTED])}{more}."
            )
        return said

    def to_dict(self) -> dict[str, Any]:
        return {
            "columns": self.columns,
            "cells_right": self.cells_right,
            "rows_exact": self.rows_exact,
            "rows": [row.to_dict() for row in self.rows],
            "categories_named": self.named,
        }


def rows_of(
    model: nn.Module, leak: Leak, shares: Sequence[Shares], batch: Batch, held: Truth
) -> TableRows | None:
    """What came back of every row that leaks itself, by its `shares`: of all attacks' answers, and
    of rows that some unit saw alone, the nearest. A row of which only features came back was not
    read.

    None where the batch is no table's.
    """
    if batch.schema is None:
        return None
    schema, inputs, dense = batch.schema, batch.images, first_dense(model)

    def at_first(maps: Mapping[str, Tensor]) -> Tensor | None:
        """(n, width) rows, of what the first dense layer read."""
        read = None if dense is None else maps.get(dense[0])
        if read is None or not len(read):
            return None
        return read_by_first_layer(model, schema.shape, read.detach().double().cpu().flatten(1))

    def answered(answer: Leak) -> Tensor | None:
        if answer.inputs is not None and answer.inputs.shape[1:] == inputs.shape[1:]:
            return answer.inputs.double().cpu()
        return answer.features.double().cpu() if held.are_samples else at_first(answer.inner)

    answers = [leak, *(attempt.leak for attempt in leak.tried if attempt.leak is not None)]
    none = torch.zeros(0, schema.width, dtype=torch.float64)
    found = torch.cat([none, *(part for each in answers if (part := answered(each)) is not None)])
    # Rows of every attack that was tried that reads them one by one, mixtures among them.
    alone = torch.cat(
        [none, *(part for each in answers if (part := at_first(each.readings)) is not None)]
    )
    truth, best = (
        schema.decode(inputs),
        leakages_of_rows(alone, inputs, held) if len(alone) else [0.0] * len(inputs),
    )
    rows = []
    for place, (title, share) in enumerate(zip(batch.titles, shares, strict=True)):
        x = inputs[place].double().cpu()
        candidates = torch.cat([found, alone]) if best[place] >= WHOLE else found
        candidates = candidates[candidates.isfinite().all(1)]
        if not share.sample >= DEFAULT_LEVEL or not len(candidates):
            rows.append(RecoveredRow(title, truth[place], None, []))
            continue
        cells = schema.decode(candidates[(candidates - x).square().sum(1).argmin()][None])[0]
        same = [
            column.same(*pair)
            for column, *pair in zip(schema.columns, cells, truth[place], strict=True)
        ]
        rows.append(RecoveredRow(title, truth[place], cells, same))
    return TableRows([column.name for column in schema.columns], rows, _named(model, leak, schema))


def _named(model: nn.Module, leak: Leak, schema: TableSchema) -> dict[str, list[str]]:
    """The categories whose rows of an embedding were asked for: they occur."""
    coded = [column for column in schema.columns if not column.plain] if schema.embedded else []
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    fits = [
        (column, leak.occurred[name])
        for column, name in zip(coded, layers, strict=False)
        if name in leak.occurred and model.get_submodule(name).num_embeddings == len(column.values)
    ]
    return {column.name: [column.values[row] for row in rows.tolist()] for column, rows in fits}
