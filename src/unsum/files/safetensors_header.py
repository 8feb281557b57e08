"""The header of a safetensors file, checked before the file is opened: what it promises must be
what the file holds."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from unsum.files.limits import Limits

# Bytes of one entry. The library knows further kinds; no gradient and no weight is sent in them.
_SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
    "BOOL": 1
}  # fmt: skip
_METADATA = "__metadata__"


def check_safetensors(path: Path, limits: Limits | None = None) -> dict[str, tuple[int, ...]]:
    """Name → shape, or a ValueError that says in half a sentence what is wrong."""
    limits = limits or Limits.from_environment()
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise ValueError("it is shorter than its own header")
        length = struct.unpack("<Q", start)[0]
        if length > size - 8:
            raise ValueError(
                f"its header promises {length:,} bytes of names and shapes, and {size - 8:,} follow"
            )
        limits.check_metadata(length)
        text = file.read(length)
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise ValueError("its header is no JSON") from None
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    metadata = header.pop(_METADATA, None) or {}
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise ValueError("its metadata must map names to texts")
    limits.check_count(len(header))
    spans = sorted(_span(name, entry) for name, entry in header.items())
    limits.check_bytes(sum(end - begin for begin, end, _ in spans))
    _check_spans(spans, size - 8 - length)
    return {name: tuple(entry["shape"]) for name, entry in header.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1)
        raise ValueError(f"two of its entries are called {twice[:80]!r}")
    return found


def _span(name: str, entry: Any) -> tuple[int, int, str]:
    """Where a tensor lies, as far as its own entry agrees with itself."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"the entry of {name[:80]!r} must have a dtype, a shape and two offsets"
        ) from None
    numbers = [*shape, begin, end] if isinstance(shape, list) else [None]
    if not all(
        isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 63
        for number in numbers
    ):
        raise ValueError(f"the shape and offsets of {name[:80]!r} must be whole numbers")
    if not isinstance(dtype, str) or dtype not in _SIZES:
        raise ValueError(
            f"{name[:80]!r} holds {str(dtype)[:40]}, not numbers that a model could have"
        )
    if end - begin != math.prod(shape) * _SIZES[dtype]:
        raise ValueError(
            f"{name[:80]!r} has a shape that does not fit into its {end - begin:,} bytes"
        )
    return begin, end, name


def _check_spans(spans: list[tuple[int, int, str]], size: int) -> None:
    place = 0
    for begin, end, name in spans:
        if begin < place:
            raise ValueError(f"{name[:80]!r} overlaps another tensor")
        if begin > place:
            raise ValueError(f"bytes that belong to no tensor lie before {name[:80]!r}")
        place = end
    if place != size:
        raise ValueError(f"its tensors end at byte {place:,} of {size:,}")
