"""numpy's files: headers are believed as far as the bytes behind them go."""

from __future__ import annotations

import io
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from unsum.errors import UnsumError
from unsum.files.array_file import open_archive, read_npy, read_npz


def npy(shape: tuple[int, ...], numbers: int, *, fortran: bool = False) -> io.BytesIO:
    """The header of float32 numbers of this shape, and 0, 1, 2, … behind it."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f4", "fortran_order": fortran, "shape": shape}
    )
    file.write(np.arange(numbers, dtype="<f4").tobytes())
    file.seek(0)
    return file


def read(file: io.BytesIO) -> list[object]:
    found: list[object] = read_npy(file, len(file.getvalue()), "a").tolist()
    return found


def test_numbers_come_in_the_order_that_the_header_says() -> None:
    assert read(npy((2, 3), 6)) == [[0, 1, 2], [3, 4, 5]]
    assert read(npy((2, 3), 6, fortran=True)) == [[0, 2, 4], [1, 3, 5]]
    assert read(npy((0,), 0)) == []


@pytest.mark.parametrize(("side", "promised"), [(5, 20), (3, 12)])
def test_a_header_promises_neither_more_nor_less_than_follows(side: int, promised: int) -> None:
    with pytest.raises(ValueError, match=f"promises {promised} bytes, and 16 follow"):
        read(npy((side,), 4))


def test_negative_sides_and_objects_are_refused() -> None:
    with pytest.raises(ValueError, match="negative side"):
        read(npy((-2, -2), 4))
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    file.seek(0)
    with pytest.raises(UnsumError, match="Python objects"):
        read(file)


def archive(path: Path, *names: str) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as made:
        warnings.simplefilter("ignore")  # of zipfile, where two members have one name
        for name in names:
            made.writestr(f"{name}.npy", npy((2,), 2).getvalue())
    return path


def test_the_arrays_that_are_asked_for_are_read(tmp_path: Path) -> None:
    file = archive(tmp_path / "a.npz", "one", "two")
    assert {name: array.tolist() for name, array in read_npz(file).items()} == {
        "one": [0, 1],
        "two": [0, 1],
    }
    assert list(read_npz(file, ["two", "three"])) == ["two"]


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two of its members have one name"):
        read_npz(archive(tmp_path / "a.npz", "one", "one"))


def test_an_encrypted_member_is_refused_by_its_flag(tmp_path: Path) -> None:
    """The first bit of two bytes, eight behind the mark of an entry in the list of members."""
    file = archive(tmp_path / "a.npz", "one")
    content = bytearray(file.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"'one.npy' is encrypted"), open_archive(file):
        pass
