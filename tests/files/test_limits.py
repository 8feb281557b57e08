"""Limits of files from elsewhere, at the limit and one beyond it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from unsum.errors import UnsumError
from unsum.files.limits import LimitError, Limits
from unsum.files.safetensors_header import check_safetensors
from unsum.files.tensor_file import read_tensors

THREE = {name: torch.ones(2) for name in "abc"}


def saved(path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(THREE, path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in THREE.items()})
    else:
        path.mkdir()
        for name, tensor in THREE.items():
            np.save(path / f"{name}.npy", tensor.numpy())
    return path


@pytest.mark.parametrize("name", ["sent.safetensors", "sent.npz", "sent"])
def test_three_tensors_are_too_many_where_two_are_allowed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = saved(tmp_path / name)
    monkeypatch.setenv("UNSUM_MAX_TENSORS", "3")
    assert sorted(read_tensors(file, "an update").tensors) == ["a", "b", "c"]
    monkeypatch.setenv("UNSUM_MAX_TENSORS", "2")
    with pytest.raises(
        UnsumError, match=r"3 tensors, and 2 is the most .* set UNSUM_MAX_TENSORS higher"
    ):
        read_tensors(file, "an update")


def test_names_are_counted_though_they_share_one_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive of seven members: twelve names of one tensor."""
    one = torch.ones(2)
    torch.save({f"layer{i}": one for i in range(12)}, tmp_path / "sent.pt")
    monkeypatch.setenv("UNSUM_MAX_TENSORS", "12")
    assert len(read_tensors(tmp_path / "sent.pt", "an update").tensors) == 12
    monkeypatch.setenv("UNSUM_MAX_TENSORS", "11")
    with pytest.raises(UnsumError, match="12 tensors, and 11 is the most"):
        read_tensors(tmp_path / "sent.pt", "an update")


def test_metadata_are_no_tensor(tmp_path: Path) -> None:
    save_file(THREE, tmp_path / "a.safetensors", metadata={"format": "pt"})
    assert check_safetensors(tmp_path / "a.safetensors", Limits(tensors=3)) == {
        "a": (2,),
        "b": (2,),
        "c": (2,),
    }


def test_bytes_and_headers_at_the_limit_and_beyond(tmp_path: Path) -> None:
    """Three tensors of two float32 are 24 bytes; the first eight bytes of the file hold its
    header's length."""
    save_file(THREE, tmp_path / "a.safetensors")
    header = int.from_bytes((tmp_path / "a.safetensors").read_bytes()[:8], "little")
    check_safetensors(tmp_path / "a.safetensors", Limits(bytes=24, metadata=header))
    with pytest.raises(LimitError, match="would unpack to 24 bytes, and 23 is"):
        check_safetensors(tmp_path / "a.safetensors", Limits(bytes=23))
    with pytest.raises(LimitError, match=f"its header has {header} bytes, and {header - 1} is"):
        check_safetensors(tmp_path / "a.safetensors", Limits(metadata=header - 1))


def test_what_is_packed_may_grow_by_its_factor_and_small_files_by_64_mib() -> None:
    limits, small = Limits(expansion=3), 64 << 20
    limits.check_bytes(small, packed=1)
    limits.check_bytes(3 * small, packed=small)
    with pytest.raises(
        LimitError, match=r"3 times its size is the most .* set UNSUM_MAX_EXPANSION"
    ):
        limits.check_bytes(3 * small + 1, packed=small)
    with pytest.raises(LimitError, match="its 1 bytes would unpack"):
        limits.check_bytes(small + 1, packed=1)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "", "²"])
def test_a_limit_is_a_whole_number_of_at_least_one(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNSUM_MAX_BYTES", text)
    with pytest.raises(UnsumError, match="UNSUM_MAX_BYTES must be a whole number of at least 1"):
        Limits.from_environment()
