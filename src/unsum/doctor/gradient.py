"""Checks of a captured update: does it fit the model, and what was done to it?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsum.doctor.finding import Said
from unsum.errors import UnsumError
from unsum.head import Head, find_head
from unsum.update import Update

_FEW = 64  # distinct values in a tensor of many: quantized
_MANY_ZEROS = 0.2  # share of all values that is worth a warning
_LOOKED_AT = 1 << 20  # values of a tensor, at most


def names(model: nn.Module, update: Update) -> Said:
    try:
        update.validate(model)
    except UnsumError as error:
        return "will not work", str(error)
    if update.notes:
        return "warning", " ".join(update.notes)
    total = sum(1 for _ in model.parameters())
    return (
        "ok",
        (
            f"{len(update.gradients)} of the model's {total} parameters, by their own names and "
            "shapes."
        ),
    )


def head_gradient(model: nn.Module, update: Update) -> Said:
    name, linear = find_head(model)
    weight, bias = (f"{name}.{part}" if name else part for part in ("weight", "bias"))
    if weight not in update.gradients:
        return "will not work", f"The update lacks {weight!r}, which every separator starts from."
    if not bool(update.gradients[weight].any()):
        return (
            "will not work",
            f"The update's {weight!r} is all zeros: nothing can be read from it.",
        )
    if linear.bias is not None and bias not in update.gradients:
        return (
            "warning",
            f"The update lacks {bias!r}: the exact attack works without it, most others do not.",
        )
    return "ok", f"The update holds {weight!r}" + (
        " and its bias." if bias in update.gradients else "."
    )


def zeros(update: Update) -> Said:
    """Pruned, or layers that no sample reached."""
    empty = [name for name, gradient in update.gradients.items() if not bool(gradient.any())]
    total = sum(g.numel() for g in update.gradients.values())
    share = sum(int((g == 0).sum()) for g in update.gradients.values()) / max(1, total)
    if len(empty) == len(update.gradients):
        return "will not work", "The whole update is zero."
    if empty:
        return (
            "warning",
            (
                f"{len(empty)} tensors are all zeros, {empty[0]!r} among them; {share:.0%} of all "
                "values."
            ),
        )
    if share > _MANY_ZEROS:
        reason = "it looks pruned, or ReLU left many units unused."
        return "warning", f"{share:.0%} of the values are exactly zero: {reason}"
    return "ok", f"{share:.1%} of the values are exactly zero."


def levels(model: nn.Module, update: Update) -> Said:
    """Few distinct values tell of a sign or quantized update."""
    name, _ = find_head(model)
    tensor = update.gradients.get(f"{name}.weight" if name else "weight")
    if tensor is None:
        tensor = max(update.gradients.values(), key=lambda gradient: gradient.numel())
    distinct = len(_some(tensor).unique())
    if distinct == 1:
        return "warning", "All values of the head's gradient are the same."
    if distinct <= 3 and tensor.numel() > 100:
        return (
            "warning",
            f"The head's gradient has {distinct} distinct values: only signs were sent.",
        )
    if distinct <= _FEW and tensor.numel() > 16 * _FEW:
        return (
            "warning",
            f"The head's gradient has only {distinct} distinct values: it looks quantized.",
        )
    return "ok", "Values are not rounded to a few levels."


def transport(update: Update) -> Said:
    """Half precision, sent as such or rounded on the way."""
    kinds = {g.dtype for g in update.gradients.values()}
    halves = kinds & {torch.float16, torch.bfloat16}
    rounded = [
        kind
        for kind in (torch.float16, torch.bfloat16)
        if all(_survives(g, kind) for g in update.gradients.values())
    ]
    if halves or rounded:
        name = str(next(iter(halves or set(rounded)))).removeprefix("torch.")
        return (
            "warning",
            (
                f"The update has the precision of {name}: expect feature errors of a percent "
                "instead of 1e-5."
            ),
        )
    return (
        "ok",
        f"Values are {', '.join(sorted(str(kind).removeprefix('torch.') for kind in kinds))}.",
    )


def scale(update: Update) -> Said:
    """A gradient whose size is a round number was clipped to it."""
    if not update.scale_known:
        return (
            "warning",
            "The learning rate is unknown, so the gradient's scale is; the attack finds it.",
        )
    norm = sum(float(g.double().square().sum()) for g in update.gradients.values()) ** 0.5
    rounded = float(f"{norm:.2g}")
    if rounded > 0 and abs(norm / rounded - 1) < 1e-5:
        return (
            "warning",
            f"The norm of the update is {norm:.6g}: it looks clipped; the attack finds the factor.",
        )
    return "ok", f"The norm of the update is {norm:.4g}."


def rank(model: nn.Module, update: Update) -> Said:
    """How many samples the head's gradient seems to be a sum of; noise makes it as many as there
    can be."""
    factors = Head.of(model, update).factorize()
    found, classes = factors.U.shape[1], find_head(model)[1].out_features
    if found >= min(classes - 1, find_head(model)[1].in_features):
        return (
            "warning",
            (
                f"The head's gradient has its full rank of {found}: more samples than the classes "
                "allow to take apart, or noise."
            ),
        )
    return "ok", f"The head's gradient has rank {found}: it looks like a sum over {found} samples."


def _some(tensor: Tensor) -> Tensor:
    return tensor.flatten()[:: max(1, tensor.numel() // _LOOKED_AT)]


def _survives(tensor: Tensor, kind: torch.dtype) -> bool:
    values = _some(tensor)
    return bool(torch.equal(values.to(kind).to(values.dtype), values))
