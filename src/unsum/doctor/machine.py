"""Will the solve fit into memory?"""

from __future__ import annotations

import os

import torch
from torch import nn

from unsum.doctor.finding import Finding, ok, warning
from unsum.head import find_head

_DOUBLE = 8  # bytes
_BLOCK = 1 << 22  # values of the gradient converted at a time


def needed_bytes(classes: int, features: int) -> int:
    """The most that the exact attack holds at once besides the model and the update, in float64.

    A Gram matrix with its eigenvectors, the factors U and A before their rank is known, and two blocks of the gradient; where
    there are fewer features than classes, the whole of it. Measured peaks were 75 to 95 % of this.
    """
    small, whole = min(classes, features), classes * features
    blocks = 2 * min(whole, _BLOCK) + (whole if features < classes else 0)
    return _DOUBLE * (3 * small**2 + 2 * small * (classes + features) + blocks)


def free_bytes(device: torch.device) -> int | None:
    """None where it cannot be known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def memory(model: nn.Module, device: torch.device) -> Finding:
    _, linear = find_head(model)
    needed, free = needed_bytes(linear.out_features, linear.in_features), free_bytes(device)
    if free is None:
        return warning("memory", f"The attack needs about {_size(needed)}; how much is free cannot be told here.")
    if needed > free:
        return warning(
            "memory", f"The attack needs about {_size(needed)}, and {_size(free)} are free on {device.type}."
        )
    return ok("memory", f"The attack needs about {_size(needed)} of the {_size(free)} that are free on {device.type}.")


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(1, round(count / 1e6))} MB"
