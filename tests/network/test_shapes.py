"""What shape a layer reads: said by the user, or the square that fits the layers above."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum.network.chain import find_chain
from unsum.network.shapes import input_shapes, shapes_read, takes
from unsum.peel import peel


def nearest(found: Tensor, true: Tensor) -> Tensor:
    """(n,) every true input's distance to the nearest one found, relative."""
    found, true = found.flatten(1).double(), true.flatten(1).double()
    return torch.cdist(true, found).min(1).values / true.norm(dim=1)


def strided() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1),
        nn.Tanh(),
        nn.Conv2d(4, 5, 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(45, 6),
    )


def test_the_shapes_of_all_layers_by_hand() -> None:
    """8² → stride 2 → 4² → kernel 2 → 3², and 5 · 3² = 45."""
    model = strided()
    read = shapes_read(model, [model[0], model[2], model[5]], (3, 8, 8))
    assert [read[model[i]] for i in (0, 2, 5)] == [(3, 8, 8), (4, 4, 4), (45,)]
    chain = find_chain(model, unsum.capture(model, torch.rand(2, 3, 8, 8), torch.arange(2)))
    assert input_shapes(chain, model, (3, 8, 8)) == input_shapes(chain, model, None)


def test_a_shape_that_the_model_refuses_ends_in_a_sentence() -> None:
    with (
        pytest.raises(unsum.UnsumError, match=r"takes no input of shape \(3, 9, 99\): mat1"),
        takes((3, 9, 99)),
    ):
        raise RuntimeError("mat1 and mat2 do not fit.\nSecond line")


class TestShapes:
    def test_a_square_is_a_guess_and_says_so(self) -> None:
        """1×12×27 has as many numbers as 1×18×18."""
        torch.manual_seed(0)
        model, x = (
            nn.Sequential(nn.Flatten(), nn.Linear(324, 40), nn.Tanh(), nn.Linear(40, 12)),
            torch.rand(2, 1, 12, 27),
        )
        update = unsum.capture(model, x, torch.tensor([0, 1]))
        leak = unsum.separate(model, update)
        guessed = peel(model, update, leak)
        assert any(
            "taken for pictures of 1×18×18: nothing tells their shape" in note
            for note in guessed.notes
        )
        told = peel(model, update, leak, shape=(1, 12, 27))
        assert told.inputs.shape == x.shape
        assert float(nearest(told.inputs, x).max()) < 1e-4
        assert not any("shape" in note for note in told.notes)

    def test_what_is_no_square_stays_flat_and_says_so(self) -> None:
        torch.manual_seed(0)
        model, x = (
            nn.Sequential(nn.Flatten(), nn.Linear(1860, 40), nn.Tanh(), nn.Linear(40, 12)),
            torch.rand(2, 3, 20, 31),
        )
        leak = unsum.attack(model, unsum.capture(model, x, torch.tensor([0, 1])))
        assert leak.inputs is not None
        assert leak.inputs.shape == (2, 1860)
        assert leak.images is None
        assert any("given as 1860 numbers" in note for note in leak.notes)

    def test_a_convolution_on_a_rectangle_is_not_claimed_as_a_square(self) -> None:
        """4×16 places are as many as 8×8: the layers fit both, and only the gradient tells."""
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, 1, 1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(16 * 64, 40),
            nn.Tanh(),
            nn.Linear(40, 12),
        )
        x = torch.rand(2, 1, 4, 16)
        update = unsum.capture(model, x, torch.tensor([0, 1]))
        leak = unsum.separate(model, update, batch_size=2)
        assert not bool(peel(model, update, leak).exact.any())
        assert float(nearest(peel(model, update, leak, shape=(1, 4, 16)).inputs, x).max()) < 1e-3
