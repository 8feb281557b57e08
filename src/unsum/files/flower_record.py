"""Flower's `ArrayRecord` and `RecordDict` as protocol-buffer bytes, read without Flower and without
running anything.

    Path("client.pb").write_bytes(flwr.common.serde.array_record_to_proto(record).SerializeToString())

The messages, by field number, as Flower declares them:

    ArrayRecord  1: item*  {1: key, 2: Array}              Array  1: dtype, 2: shape, 3: stype, 4:
                                                                  data (the bytes of a .npy file)
    RecordDict   1: item*  {1: key, 2: ArrayRecord | 3: MetricRecord | 4: ConfigRecord}

Read by hand, because the wire format is four rules long and Flower pins older releases of what
unsum uses.
"""

from __future__ import annotations

import io
from typing import Any

from numpy.typing import NDArray

from unsum.errors import UnsumError
from unsum.files.array_file import read_npy
from unsum.files.limits import Limits

_VARINT, _EIGHT_BYTES, _TEXT, _FOUR_BYTES = 0, 1, 2, 5
_NUMPY = "numpy.ndarray"
_REFERENCES = b"ArrayRecord "  # how the bytes of `record.deflate()` begin

Fields = dict[int, list[bytes]]


def read_flower(content: bytes, limits: Limits | None = None) -> dict[str, NDArray[Any]]:
    """Name → array, in the record's order; of a `RecordDict`, the one record of arrays in it."""
    limits = limits or Limits.from_environment()
    if content.startswith(_REFERENCES):
        raise UnsumError(
            "These are the bytes of record.deflate(), which names its arrays without holding them; "
            "write flwr.common.serde.array_record_to_proto(record).SerializeToString() instead."
        )
    entries = _items(content, limits)
    # An array has fields 3 and 4; a record of arrays has field 1 alone.
    records = [
        (n, value)
        for n, value in entries
        if value is not None and not _fields(value).keys() >= {3, 4}
    ]
    if not records and entries:
        return _arrays(entries)
    if len(records) != 1:
        raise UnsumError(
            f"It holds {len(records)} records of arrays, not one; write the client's own "
            "ArrayRecord to a file."
        )
    return _arrays(_items(records[0][1], limits))


def _arrays(entries: list[tuple[str, bytes | None]]) -> dict[str, NDArray[Any]]:
    held = [(name, value) for name, value in entries if value is not None]
    if len({name for name, _ in held}) < len(held):
        raise ValueError("two of its arrays have one name")
    arrays = {}
    for name, message in held:
        parts = _fields(message)
        kind = parts.get(3, [b""])[-1].decode()
        if kind != _NUMPY or 4 not in parts:
            raise UnsumError(
                f"The array {name!r} is stored as {kind!r}; only {_NUMPY!r} can be read."
            )
        content = parts[4][-1]
        arrays[name] = read_npy(io.BytesIO(content), len(content), name)
    return arrays


def _items(message: bytes, limits: Limits) -> list[tuple[str, bytes | None]]:
    """(key, what stands in field 2) of every item; None where that is missing, as in records of
    metrics."""
    found = []
    items = _fields(message).get(1, [])
    limits.check_count(len(items))
    for item in items:
        parts = _fields(item)
        if 1 not in parts:
            raise ValueError("an entry has no name")
        found.append((parts[1][-1].decode(), parts[2][-1] if 2 in parts else None))
    return found


def _fields(message: bytes) -> Fields:
    """The fields that hold bytes, by number; numbers are passed over, since nothing that is needed
    is one."""
    fields: Fields = {}
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, place = _varint(message, place)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            place += 8 if kind == _EIGHT_BYTES else 4
        elif kind == _TEXT:
            length, start = _varint(message, place)
            place = start + length
            fields.setdefault(number, []).append(message[start:place])
        else:
            raise ValueError("it is no protocol-buffer message")
        if place > len(message):
            raise ValueError("it ends in the middle of a field")
    return fields


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise ValueError("it ends in the middle of a number")
        byte = message[place]
        value, place = value | (byte & 0x7F) << shift, place + 1
        if byte < 0x80:
            return value, place
    raise ValueError("it is no protocol-buffer message")
