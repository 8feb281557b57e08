"""What an attacker would answer without the update: values computed by hand."""

from __future__ import annotations

import pytest
import torch

from unsum.data import embedded_batch
from unsum.score.reference import (
    DIVERSE,
    alike,
    distance,
    diverse_samples,
    guess,
    others,
    public_inputs,
    public_picture,
)

ROWS = torch.tensor([[4.0, 0.0], [2.0, 2.0], [2.0, 0.0]])


def test_the_others_are_all_but_the_sample() -> None:
    assert others(ROWS).tolist() == [[2, 1], [3, 0], [3, 1]]


def test_the_nearest_guess_is_taken_for_each_sample() -> None:
    everybody = torch.ones(3, dtype=torch.bool)
    # From (4, 0): nothing is 16 away, the others 5. From (2, 2): 8 and 5. From (2, 0): 4 and 2.
    assert distance(guess(ROWS, diverse=everybody), ROWS).tolist() == [5, 5, 2]
    assert distance(guess(ROWS), ROWS).tolist() == [16, 8, 4]
    public = torch.tensor([[4.0, 1.0], [9.0, 9.0]])
    assert distance(guess(ROWS, public, everybody), ROWS).tolist() == [1, 5, 2]


def test_the_others_count_where_they_are_no_copies() -> None:
    # 5/16, 5/8 and 2/4 of the error of no answer
    assert diverse_samples(ROWS).tolist() == [True, True, True]
    assert DIVERSE == 0.25
    # 1.9²/4² = 0.23, 0.8²/2.2² = 0.13 and 1.1²/2² = 0.30
    close = torch.tensor([[4.0, 0.0], [2.2, 0.0], [2.0, 0.0]])
    assert diverse_samples(close).tolist() == [False, False, True]
    assert diverse_samples(ROWS[:1]).tolist() == [False]


@pytest.mark.parametrize("count", [2, 4, 8])
def test_copies_have_no_typical_sample(count: int) -> None:
    rows = torch.tensor([[3.0, 4.0]]).repeat(count, 1)
    assert not diverse_samples(rows).any()
    assert distance(guess(rows, diverse=diverse_samples(rows)), rows).tolist() == [25] * count
    assert alike(rows).all()


def test_alike_is_nearer_than_any_guess() -> None:
    rows = torch.tensor([[4.0, 0.0], [4.0, 1.0], [0.0, 4.0]])
    assert alike(rows).tolist() == [[True, True, False], [True, True, False], [False, False, True]]


def test_photos_have_public_ones_beside_them() -> None:
    own = embedded_batch(8, image_size=32).images
    public = public_inputs(own)
    assert public is not None
    assert 1 <= len(public) <= 8
    assert all(float((photo - mine).abs().max()) > 0.1 for photo in public for mine in own)
    gray = public_inputs(own.mean(1, keepdim=True))
    assert gray is not None
    assert gray.shape[1:] == (1, 32, 32)
    assert public_inputs(embedded_batch(16, image_size=32).images) is None  # none is left
    color = public_picture(own)
    assert color is not None
    assert color.view(3, -1)[:, 0].tolist() == pytest.approx([0.485, 0.456, 0.406])


def test_rows_have_standard_ones_and_what_is_no_picture_has_none() -> None:
    rows = public_inputs(torch.randn(4, 7))
    assert rows is not None
    assert rows.shape[1:] == (7,)
    assert torch.equal(rows, public_inputs(torch.randn(2, 7)))
    assert public_inputs(torch.randn(4, 2, 5)) is None
    assert public_inputs(torch.randn(4, 3, 8, 8)) is None  # no pixels
    assert public_picture(torch.rand(4, 7)) is None
    assert public_inputs(torch.zeros(4, 7, dtype=torch.long)) is None
