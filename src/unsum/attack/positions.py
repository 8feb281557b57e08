"""Which embeddings are of positions: they are asked for the same rows whatever the samples are, one
after another from the first.

Categories may be numbered by their frequency and fill the first rows of their embedding just so.
What tells the two apart is what the model does: made-up inputs that differ in every value go in,
and the rows that they ask for are compared.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from unsum.gradients import in_eval_mode, inputs_of

_IN_A_ROW = 8  # [rows] that categories hardly fill without a gap. Chosen by: arbitrary
# [1] numbers of columns that are tried as the shape of an input. Chosen by: arbitrary budget
_COLUMNS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


def positions_among(model: nn.Module, found: Mapping[str, Tensor]) -> list[str]:
    """Embeddings of which the first rows were asked for, by name, and by every sample alike.

    A model that takes no made-up input is judged by its layers: positions are added to something,
    so another embedding has their width. Where there is none, nothing is taken for positions.
    """
    suspects = {
        name: rows for name, rows in found.items() if torch.equal(rows, torch.arange(len(rows)))
    }
    if not suspects:
        return []
    asked = _asked_by_made_up_inputs(model, max(map(len, suspects.values())))
    return [
        name
        for name, rows in suspects.items()
        if (
            all(torch.equal(asked[name][0], other) for other in asked[name][1:])
            if name in asked
            else len(rows) >= _IN_A_ROW and _added_to_another(model, name)
        )
    ]


def _added_to_another(model: nn.Module, name: str) -> bool:
    """Whether another embedding has the same width."""
    tables = {
        other: int(module.weight.shape[1])
        for other, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    return any(other != name and width == tables[name] for other, width in tables.items())


def _asked_by_made_up_inputs(model: nn.Module, length: int) -> dict[str, list[Tensor]]:
    """Embedding → the rows that each of several inputs asks for, which agree in no value; those
    alone that every pass asks. Empty where the model takes no input that was tried."""
    parameter = next(model.parameters())
    if parameter.device.type != "cpu":  # there a row that does not exist ends every computation
        model = copy.deepcopy(model).cpu()
    tables = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    last = sorted({int(module.weight.shape[0]) - 1 for module in tables.values()} - {0, 1})
    for shape in _likely_shapes(model, tables, length):
        for dtype in (torch.long, parameter.dtype):
            inputs = [torch.full((2, *shape), value, dtype=dtype) for value in (0, 1, *last)]
            passes = [read for given in inputs if (read := _asked(model, tables, given))]
            # a table's last row may be beyond another's, but the first two are in all
            if len(passes) > 1:
                common = set.intersection(*map(set, passes))
                return {name: [read[name] for read in passes] for name in common}
    return {}


def _asked(model: nn.Module, tables: Mapping[str, nn.Module], inputs: Tensor) -> dict[str, Tensor]:
    """Embedding → the rows that one pass asks for; empty where the model refuses the input."""
    with ExitStack() as watched:
        seen = {name: watched.enter_context(inputs_of(module)) for name, module in tables.items()}
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]), in_eval_mode(model):
                model(inputs)
        except Exception:  # the user's own forward refuses in its own way
            return {}
    return {
        name: torch.cat([part.flatten() for part in read]) for name, read in seen.items() if read
    }


def _likely_shapes(
    model: nn.Module, tables: Mapping[str, nn.Module], length: int
) -> Iterator[tuple[int, ...]]:
    """Of one sample: the model's own, a sequence as long as the rows asked for, a column for every
    embedding, what the first layer has room for, and the usual ones."""
    own = getattr(model, "input_shape", None)
    if own is not None:
        yield tuple(own)
    first = next((module for module in model.modules() if isinstance(module, nn.Linear)), None)
    room = 0 if first is None else first.in_features
    widths = {int(module.weight.shape[1]) for module in tables.values()}  # type: ignore[index]
    fitting = [room // width for width in widths if room % width == 0]
    yield from ((columns,) for columns in dict.fromkeys([length, len(tables), *fitting, *_COLUMNS]))
    yield ()
