"""Checks of the data against the model: is the batch one that can be taken apart?"""

from __future__ import annotations

from torch import nn

from unsum.data import Batch
from unsum.doctor.finding import Finding, ok, warning, will_not_work
from unsum.head import find_head


def size_against_classes(model: nn.Module, size: int) -> Finding:
    """The exact attack solves for B samples in C − 1 independent rows."""
    classes = find_head(model)[1].out_features
    if size > classes - 1:
        return warning(
            "batch size",
            f"{size} samples are more than the {classes - 1} that {classes} classes allow the exact attack; it will "
            "say that it is unsure. Where labels are granted, 'crowded' reads what it can off the features' zeros. "
            "Label rules still work.",
        )
    return ok("batch size", f"{size} samples of {classes} classes: at most {classes - 1} can be taken apart exactly.")


def size_against_features(model: nn.Module, size: int) -> Finding:
    width = find_head(model)[1].in_features
    if size > width:
        return warning(
            "feature width", f"{size} samples in {width} features cannot be independent; expect no exact answer."
        )
    return ok("feature width", f"{width:,} features for {size} samples.")


def labels(model: nn.Module, batch: Batch) -> Finding:
    classes, most = find_head(model)[1].out_features, int(batch.targets.max()) if batch.targets.ndim == 1 else -1
    if most >= classes:
        return will_not_work("labels", f"The data have a label {most}, and the model only {classes} classes.")
    shared = len(batch.targets) - len(set(batch.targets.tolist())) if batch.targets.ndim == 1 else 0
    return ok(
        "labels",
        "All within the model's classes" + (f"; {shared} samples share a label with another." if shared else "."),
    )


def variety(batch: Batch) -> Finding:
    """Two copies of one picture have one feature vector between them."""
    flat = batch.images.flatten(1)
    copies = len(flat) - len(flat.unique(dim=0))
    if copies:
        return warning("pictures", f"{copies} pictures are copies of others in the batch; copies cannot be told apart.")
    return ok("pictures", f"{len(flat)} different pictures.")
