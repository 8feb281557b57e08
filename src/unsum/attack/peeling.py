"""Peeling inside an attack: whatever a peeler did not foresee is a refusal there, and the attack
goes on with what it has."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from unsum.errors import UnsumError, first_line
from unsum.leak import Leak
from unsum.peel import AUTO, Peeled, peel
from unsum.update import Update


def peeled_or_refused(
    model: nn.Module, update: Update, leak: Leak, method: str = AUTO, **known: Any
) -> Peeled:
    """As `peel`, with an UnsumError for every fault but a lack of memory, which the whole attack
    would meet again.

    An audit must not end at a step that only adds to what it has; the note names the fault, and a
    failed step proves nothing.
    """
    try:
        return peel(model, update, leak, method, **known)
    except (UnsumError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a peeler may be another package's
        fault = f"{type(error).__name__}: {first_line(error)}"
        raise UnsumError(
            f"The peeler broke off by a fault of its own, which proves nothing ({fault})."
        ) from error
