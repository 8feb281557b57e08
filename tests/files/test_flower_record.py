"""Records as Flower writes them: its own bytes, and what is wrong with others."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unsum
from unsum.errors import UnsumError
from unsum.files.flower_record import read_flower

# Written by flwr 1.41: array_record_to_proto(record).SerializeToString(), with the arrays below
# under "0.weight" and "0.bias".
RECORD = base64.b64decode(
    "CsQBCggwLndlaWdodBK3AQoHZmxvYXQzMhICAgMaDW51bXB5Lm5kYXJyYXkimAGTTlVNUFkBAHYAeydkZXNjcic6ICc8ZjQnLCAnZm9ydHJhbl9v"
    "cmRlcic6IEZhbHNlLCAnc2hhcGUnOiAoMiwgMyksIH0gICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg"
    "ICAgICAgCgAAAAAAAIA/AAAAQAAAQEAAAIBAAACgQAq5AQoGMC5iaWFzEq4BCgdmbG9hdDY0EgECGg1udW1weS5uZGFycmF5IpABk05VTVBZAQB2"
    "AHsnZGVzY3InOiAnPGY4JywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDIsKSwgfSAgICAgICAgICAgICAgICAgICAgICAgICAg"
    "ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoAAAAAAAD4PwAAAAAAAADA"
)
WEIGHT, BIAS = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1.5, -2.0])
# The same inside a RecordDict {"arrays": …, "metrics": {num-examples: 8, loss: 0.5}, "config": {lr:
# 0.1}}.
DICT = (
    b"\x0a\x8e\x03\x0a\x06arrays\x12\x83\x03"
    + RECORD
    + base64.b64decode(
        "CjIKB21ldHJpY3MaJwoSCgxudW0tZXhhbXBsZXMSAhAQChEKBGxvc3MSCQkAAAAAAADgPwobCgZjb25maWciEQoPCgJschIJCZqZ"
        "mZmZmbk/"
    )
)  # fmt: skip


@pytest.mark.parametrize("content", [RECORD, DICT], ids=["ArrayRecord", "RecordDict"])
def test_what_flower_wrote(content: bytes) -> None:
    found = read_flower(content)
    assert list(found) == ["0.weight", "0.bias"]
    np.testing.assert_array_equal(found["0.weight"], WEIGHT)
    np.testing.assert_array_equal(found["0.bias"], BIAS)
    assert (found["0.weight"].dtype, found["0.bias"].dtype) == (np.float32, np.float64)


def test_an_update_out_of_a_record_fits_its_model(tmp_path: Path) -> None:
    (tmp_path / "client.pb").write_bytes(RECORD)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    update = unsum.Update.load(tmp_path / "client.pb", model=model, kind="delta", learning_rate=0.5)
    torch.testing.assert_close(update.gradients["0.weight"], torch.from_numpy(-2 * WEIGHT))
    assert update.notes == ()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"ArrayRecord d0a7,bc19 158\x00{}", "names its arrays without holding them"),
        (b"", "0 records of arrays"),
        (DICT + DICT, "2 records of arrays"),
        (RECORD[:-3], "ends in the middle of a field"),
        (RECORD.replace(b"numpy.ndarray", b"torch.tensors", 1), "stored as 'torch.tensors'"),
        (b"\xff" * 40, "no protocol-buffer message"),
        (b"\x0a\x02\x12\x00", "an entry has no name"),
        # pickled objects in a .npy
        (RECORD.replace(b"'<f4'", b"'|O8'", 1), "holds Python objects"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    (tmp_path / "client.pb").write_bytes(content)
    with pytest.raises(UnsumError, match=sentence) as told:
        unsum.Update.load(tmp_path / "client.pb")
    assert "\n" not in str(told.value)


@given(st.integers(0, len(DICT) - 1), st.integers(0, 255), st.integers(0, len(DICT)))
def test_damage_is_refused_or_read_and_never_crashes(place: int, byte: int, end: int) -> None:
    damaged = bytearray(DICT)
    damaged[place] = byte
    try:
        found = read_flower(bytes(damaged[:end]))
    except (UnsumError, ValueError, EOFError, SyntaxError, MemoryError, TypeError, OSError):
        return  # `read_tensors` makes one sentence of any of them
    assert all(isinstance(array, np.ndarray) for array in found.values())


def test_the_installed_flower_writes_the_same() -> None:
    flwr = pytest.importorskip(
        "flwr.app",
        reason="flwr pins older releases of typer and rich, so it is not among our own tools",
    )
    from flwr.common.serde import array_record_to_proto

    record = flwr.ArrayRecord({"0.weight": flwr.Array(WEIGHT), "0.bias": flwr.Array(BIAS)})
    assert array_record_to_proto(record).SerializeToString() == RECORD
