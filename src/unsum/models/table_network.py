"""Networks that read rows of a table: dense layers, below them embeddings of the categories where
these come as codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError, unknown_name
from unsum.models.built import RANDOM, dense_layers
from unsum.models.from_file import build_from_file
from unsum.models.weights_file import load_weights

EMBEDDED = "mlp:embedded"
_HIDDEN = 100  # units of each of two layers, as in Vero et al. 2023 (TabLeak)
_DIMENSION = 4  # numbers that stand for a category; rules of thumb give 3 to 8 for tables of people


@dataclass(frozen=True)
class RowShape:
    """The inputs of a network for rows: how many, which of them are numbers, and how many values
    each of the others has."""

    width: int
    plain: Sequence[int]
    sizes: Sequence[int] = ()


class TableNetwork(nn.Module):
    """(B, width) rows → (B, outputs). The first dense layer reads the numbers, then the embedding
    of every code, in order."""

    def __init__(self, shape: RowShape, outputs: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, _DIMENSION) for size in shape.sizes)
        self.plain = list(shape.plain)
        self.coded = [place for place in range(shape.width) if place not in self.plain]
        read = len(self.plain) + _DIMENSION * len(shape.sizes)
        self.layers = dense_layers(read, _HIDDEN, _HIDDEN, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        codes = zip(self.embeddings, self.coded, strict=True)
        return self.layers(
            torch.cat(
                [rows[:, self.plain], *(layer(rows[:, i].long()) for layer, i in codes)], dim=1
            )
        )


def table_network(
    spec: str,
    dense: RowShape,
    coded: RowShape,
    outputs: int,
    *,
    seed: int = 0,
    weights: str | Path | None = None,
) -> tuple[nn.Module, str]:
    """A network by name, and the name it goes by in reports: for rows without codes, or with codes
    for its embeddings."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, kind = _built(spec, dense, coded, outputs)
    origin = RANDOM
    if weights is not None:
        if not load_weights(model, Path(weights)):
            raise UnsumError(
                f"The head in {Path(weights).name!r} does not fit the {outputs} outputs that the "
                "table needs."
            )
        origin = f"weights of {Path(weights).name}"
    return model, f"{kind}, {origin}"


def embeds(model: nn.Module) -> bool:
    """Whether a network takes codes."""
    return any(isinstance(module, nn.Embedding) for module in model.modules())


def _built(spec: str, dense: RowShape, coded: RowShape, outputs: int) -> tuple[nn.Module, str]:
    if spec in ("default", "mlp"):
        # Without embeddings, layers alone: attacks and people read those more easily.
        return dense_layers(
            dense.width, _HIDDEN, _HIDDEN, outputs
        ), f"fully connected for {dense.width} inputs"
    if spec == EMBEDDED:
        return TableNetwork(coded, outputs), f"fully connected over {len(coded.sizes)} embeddings"
    file, _, factory = spec.rpartition(":")
    if file.endswith(".py"):
        given = {"num_features": dense.width, "categories": list(coded.sizes)}
        return build_from_file(
            Path(file), factory, outputs, given
        ), f"{factory} of {Path(file).name}"
    raise unknown_name("model for tables", spec, ["mlp", EMBEDDED, "path/to/file.py:factory"])


def read_by_first_layer(model: nn.Module, shape: RowShape, read: Tensor) -> Tensor | None:
    """(n, width) rows, from what the first dense layer read: each code is that of the nearest
    embedding.

    None where the layer does not read the numbers and then the embeddings, in order.
    """
    if not shape.sizes:
        return read if read.shape[1] == shape.width else None
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    widths = [module.embedding_dim for module in embeddings]
    fits = [module.num_embeddings for module in embeddings] == list(shape.sizes)
    if not fits or read.shape[1] != len(shape.plain) + sum(widths):
        return None
    rows = read.new_zeros(len(read), shape.width)
    numbers, *parts = read.split([len(shape.plain), *widths], dim=1)
    rows[:, list(shape.plain)] = numbers
    coded = [place for place in range(shape.width) if place not in set(shape.plain)]
    for place, module, part in zip(coded, embeddings, parts, strict=True):
        rows[:, place] = torch.cdist(part, module.weight.detach().to(part)).argmin(1).to(rows)
    return rows


def first_dense(model: nn.Module) -> tuple[str, nn.Linear] | None:
    """The first dense layer, in the order of the model's modules."""
    return next(
        ((name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)),
        None,
    )
