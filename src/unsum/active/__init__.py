"""Servers that change the model before they send it out, and read the client's samples out of the
update."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unsum.active import imprint, traps  # noqa: F401 (registers the methods)
from unsum.active.compose import alone, place
from unsum.active.imprint import chance_of_hits
from unsum.active.method import SERVERS, Inserted, Reader, check_server, parse_server
from unsum.errors import UnsumError
from unsum.leak import Leak
from unsum.models.built import USUAL_SIZE
from unsum.update import Update

__all__ = [
    "SERVERS",
    "Reader",
    "attack",
    "chance_of_hits",
    "modify",
    "place",
]


def modify(
    model: nn.Module,
    server: str = "imprint",
    *,
    shape: tuple[int, ...] | None = None,
    auxiliary: Tensor | None = None,
    seed: int = 0,
    **options: Any,
) -> tuple[nn.Module, Reader]:
    """The model as a malicious server would send it out, and what the server must remember to read
    the update.

    Args:
        model: any model; it stays as it is, in the mode it is in, and becomes a part of the new
            one.
        server: a name from `unsum list`, with options after a colon or as keywords:
            `imprint:bins=128`, `traps:rows=512`.
        shape: of one input; by default (3, s, s) with the model's own `image_size`, or 224.
        auxiliary: (N, …) inputs of the server's own, for methods that want to know what inputs are
            like.
        seed: fixes every random choice.

    Returns:
        The changed model and its `Reader`; `attack(changed, update, reader)` reads an update of it.

    >>> changed, reader = modify(
    ...     nn.Sequential(nn.Flatten(), nn.Linear(48, 5)), "imprint:bins=16", shape=(3, 4, 4)
    ... )
    >>> reader
    Reader(imprint: 16 bins of brightness, inputs (3, 4, 4))
    """
    name, written = parse_server(server)
    chosen = check_server(name, written | options)
    side = getattr(model, "image_size", USUAL_SIZE)
    shape = (3, side, side) if shape is None else tuple(shape)
    if auxiliary is not None and tuple(auxiliary.shape[1:]) != shape:
        raise UnsumError(
            f"Auxiliary inputs must be of the shape {shape}, not {tuple(auxiliary.shape[1:])}."
        )
    if auxiliary is not None and len(auxiliary) < 2:
        raise UnsumError(
            "The server needs at least two auxiliary inputs to learn what inputs are like."
        )
    generator = torch.Generator().manual_seed(seed)
    layer, reader = SERVERS[name](shape, generator, auxiliary, **chosen)
    weight = next(model.parameters(), torch.zeros(()))
    return Inserted(layer.to(device=weight.device, dtype=weight.dtype), model), reader


def attack(model: nn.Module, update: Update, reader: Reader) -> Leak:
    """What the server reads out of an update of the model that `modify` made: `.images`, and which
    of them are certain.

    Every row of the leak is a picture that stood in the update, alone (`inputs_exact`) or mixed
    with others. Labels are not sought; `place` joins the pictures to a leak that has them.
    """
    update.validate(model)
    return alone(model, reader, reader.read(update))
