"""A leak on disk: every tensor in one file, the figures as JSON, and a picture of each sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unsum.audit.pictures import to_image
from unsum.audit.result import finite
from unsum.files.writing import save_tensors, write_folder
from unsum.leak import Leak

_TENSORS = ("targets", "logits", "features", "images", "inputs", "inputs_exact")


def leak_summary(leak: Leak, *, model: str, texts: list[str] | None = None) -> dict[str, Any]:
    """Everything but the tensors, in plain types."""
    return finite(
        {
            "model": model,
            "method": leak.method,
            "granted": leak.knowledge.granted(),
            "batch_size": leak.batch_size,
            "distinct": leak.distinct,
            "counts_certain": leak.counts_certain,
            "labels": leak.labels.tolist(),
            "label_counts": None if leak.label_counts is None else leak.label_counts.to_dict(),
            "tokens": leak.tokens,
            "segments": leak.segments,
            "texts": texts,
            "exact": leak.exact,
            "undecided": leak.undecided or None,  # why what was not found may leak all the same
            "predicted_error": leak.predicted_error,
            "residual": leak.residual,
            "scale": leak.scale,
            "weights": None if leak.weights is None else leak.weights.tolist(),
            "inputs_exact": None if leak.inputs_exact is None else leak.inputs_exact.tolist(),
            "seconds": leak.seconds,
            "notes": leak.notes,
        }
    )


def write_leak(
    leak: Leak, folder: Path, *, model: str, texts: list[str] | None = None
) -> list[Path]:
    """`leak.safetensors`, `leak.json` and `sample-1.png` and so on where there are pictures; the
    files written."""
    pictures = (
        []
        if leak.images is None
        else [f"sample-{place}.png" for place in range(1, len(leak.images) + 1)]
    )
    # an earlier leak's pictures must not stand beside this one
    stale = set(folder.glob("sample-*.png"))
    summary = leak_summary(leak, model=model, texts=texts)

    def fill(part: Path) -> None:
        held = {name: getattr(leak, name) for name in _TENSORS if getattr(leak, name) is not None}
        tensors = {
            name: tensor.detach().cpu().contiguous().clone() for name, tensor in held.items()
        }
        save_tensors(tensors, part / "leak.safetensors", {"unsum-leak": json.dumps(summary)})
        (part / "leak.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        for name, picture in zip(pictures, () if leak.images is None else leak.images, strict=True):
            to_image(picture).save(part / name)

    write_folder(folder, fill)
    written = [folder / name for name in ("leak.safetensors", "leak.json", *pictures)]
    for picture in stale.difference(written):
        picture.unlink()
    return written
