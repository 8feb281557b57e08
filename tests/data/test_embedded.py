from __future__ import annotations

from importlib.resources import files

import pytest
import torch

from unsum import UnsumError
from unsum.data import embedded_batch, photo_count, tags


def test_every_photo_ships_with_a_tag_and_its_attribution() -> None:
    batch = embedded_batch(photo_count(), image_size=32)
    attribution = (files("unsum.data") / "photos" / "ATTRIBUTION.md").read_text("utf-8")
    assert len(tags()) == len(set(tags())) == 100
    assert batch.images.shape == (photo_count(), 3, 32, 32)
    assert float(batch.images.min()) >= 0
    assert float(batch.images.max()) <= 1
    assert all(float(image.std()) > 0.05 for image in batch.images)  # pictures, not blanks
    assert all(f"| {title} |" in attribution for title in batch.titles)
    assert len(set(batch.titles)) == photo_count()


def test_own_tags_include_a_natural_duplicate() -> None:
    labels = [tags()[i] for i in embedded_batch(8, image_size=32).targets]
    assert labels == [
        "cat",
        "coffee",
        "flower",
        "temple",
        "mountain",
        "motorcycle",
        "mountain",
        "dog",
    ]


@pytest.mark.parametrize("same", [1, 2, 3, 5, 8, 16])
def test_exactly_as_many_photos_share_a_label_as_asked(same: int) -> None:
    targets = embedded_batch(16, image_size=32, same_label=same).targets
    shared = targets[0]
    assert int((targets == shared).sum()) == same
    assert bool((targets[:same] == shared).all())


def test_a_smaller_batch_is_the_beginning_of_a_larger_one() -> None:
    small, large = embedded_batch(3, image_size=32), embedded_batch(9, image_size=32)
    assert torch.equal(small.images, large.images[:3])


@pytest.mark.parametrize(("size", "same"), [(0, 0), (17, 0), (8, 9), (8, -1)])
def test_impossible_batches_are_refused(size: int, same: int) -> None:
    with pytest.raises(UnsumError, match=r"embedded photos|share a label"):
        embedded_batch(size, image_size=32, same_label=same)
