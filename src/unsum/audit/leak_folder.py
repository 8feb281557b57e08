"""A leak on disk: every tensor in one file, the figures as JSON, and a picture of each sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unsum.audit.pictures import to_image
from unsum.audit.result import finite
from unsum.files.writing import save_tensors, write_text, write_whole
from unsum.leak import Leak

_TENSORS = ("targets", "logits", "features", "images", "inputs", "inputs_exact")


def leak_summary(leak: Leak, *, model: str) -> dict[str, Any]:
    """Everything but the tensors, in plain types."""
    summary: dict[str, Any] = finite(
        {
            "model": model,
            "method": leak.method,
            "granted": leak.knowledge.granted(),
            "batch_size": leak.batch_size,
            "labels": leak.labels.tolist(),
            "tokens": leak.tokens,
            "exact": leak.exact,
            "predicted_error": leak.predicted_error,
            "residual": leak.residual,
            "scale": leak.scale,
            "inputs_exact": None if leak.inputs_exact is None else leak.inputs_exact.tolist(),
            "seconds": leak.seconds,
            "notes": leak.notes,
        }
    )
    return summary


def write_leak(leak: Leak, folder: Path, *, model: str) -> list[Path]:
    """`leak.safetensors`, `leak.json` and `sample-1.png` and so on where there are pictures; the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("sample-*.png"):  # an earlier leak's pictures must not stand beside this one
        stale.unlink()
    held = {name: getattr(leak, name) for name in _TENSORS if getattr(leak, name) is not None}
    summary = leak_summary(leak, model=model)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in held.items()}
    metadata = {"unsum-leak": json.dumps(summary)}
    write_whole(folder / "leak.safetensors", lambda part: save_tensors(tensors, part, metadata))
    write_text(folder / "leak.json", json.dumps(summary, indent=2) + "\n")
    written = [folder / "leak.safetensors", folder / "leak.json"]
    if leak.images is not None:
        for place, picture in enumerate(leak.images, 1):
            written.append(folder / f"sample-{place}.png")
            to_image(picture).save(written[-1])
    return written
