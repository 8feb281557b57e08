"""A short name for a backbone's exact weights, so that an inverse is never used with another one."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from unsum.head import find_head


def backbone_fingerprint(model: nn.Module) -> str:
    """16 hex digits over every parameter but the head's, which changes from task to task."""
    head_name, _ = find_head(model)
    prefix = f"{head_name}." if head_name else ""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if not (prefix and name.startswith(prefix)):
            digest.update(name.encode())
            digest.update(parameter.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
