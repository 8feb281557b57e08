from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unsum.network.passes import accepted_input, main_tensor


class Strict(nn.Module):
    """Takes inputs in [0, 1] alone, as a data-dependent assertion has it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(27, 3)

    def forward(self, x: Tensor) -> Tensor:
        assert 0 <= float(x.min()) <= float(x.max()) <= 1
        return self.head(x.flatten(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Strict(), (27,)),
        (Recurrent(), (4, 6)),
        (Text(), (3,)),
        (
            nn.Sequential(
                nn.Conv2d(2, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
            ),
            (2, 28, 28),
        ),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 30 * 30, 3)), (1, 32, 32)),
        (
            nn.Sequential(
                nn.Conv1d(2, 4, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 3)
            ),
            (2, 16),
        ),
    ],
)
def test_an_input_that_the_model_takes_is_found(model: nn.Module, shape: tuple[int, ...]) -> None:
    found = accepted_input(model)
    assert found is not None
    assert tuple(found.shape[1:]) == shape


def test_the_main_output_of_mappings_and_tuples_is_found() -> None:
    z = torch.ones(2, 3)
    for output in (z, (z, None), [(z, 1)], {"out": z, "aux": -z}, {"logits": z}):
        assert main_tensor(output) is z
    assert main_tensor({"boxes": z}) is None
