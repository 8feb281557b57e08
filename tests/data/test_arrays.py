from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from unsum.data.arrays import open_arrays, some_of

PHOTOS = np.full((4, 6, 6, 3), 51, np.uint8)


@pytest.mark.parametrize(
    ("arrays", "inputs", "targets"),
    [
        ({"images": PHOTOS, "labels": np.zeros((4, 6, 6), np.int64)}, (4, 3, 6, 6), (4, 6, 6)),
        ({"images": PHOTOS, "targets": np.zeros(4, np.float64)}, (4, 3, 6, 6), (4,)),
        ({"inputs": np.zeros((4, 5, 2), np.float32), "labels": np.arange(4)}, (4, 5, 2), (4,)),
    ],
)
def test_what_is_no_labeled_photo_is_read_as_it_is(
    tmp_path: Path, arrays: dict[str, np.ndarray], inputs: tuple[int, ...], targets: tuple[int, ...]
) -> None:
    np.savez(tmp_path / "some.npz", **arrays)
    found = open_arrays(tmp_path / "some.npz")
    assert found is not None
    assert (tuple(found[0].shape), tuple(found[1].shape)) == (inputs, targets)
    assert found[0].dtype == torch.float32


def test_photos_come_in_0_to_1(tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", images=PHOTOS, labels=np.zeros(4, np.float32))
    found = open_arrays(tmp_path / "some.npz")
    assert found is not None
    assert float(found[0].min()) == float(found[0].max()) == pytest.approx(0.2)


@pytest.mark.parametrize(
    "arrays",
    [
        {"images": PHOTOS, "labels": np.arange(4)},  # labeled photos
        {"images": PHOTOS, "labels": np.zeros((3, 6, 6), np.int64)},  # of another number
        {"images": PHOTOS},
        # photos in a wrong type
        {"images": np.zeros((4, 6, 6, 3), np.int64), "labels": np.arange(4)},
    ],
)
def test_everything_else_is_left_to_who_reads_photos(
    tmp_path: Path, arrays: dict[str, np.ndarray]
) -> None:
    np.savez(tmp_path / "some.npz", **arrays)
    assert open_arrays(tmp_path / "some.npz") is None


def test_the_seed_chooses_and_the_order_stays() -> None:
    data = torch.arange(10)[:, None], torch.arange(10)
    inputs, targets = some_of(data, 4, seed=3)
    assert torch.equal(inputs[:, 0], targets)
    assert torch.equal(targets, targets.sort().values)
    assert len(targets) == len(set(targets.tolist())) == 4
    assert not torch.equal(targets, some_of(data, 4, seed=4)[1])
