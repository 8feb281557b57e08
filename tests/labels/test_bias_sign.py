from __future__ import annotations

import pytest
import torch

from unsum import UnsumError
from unsum.head import Head
from unsum.labels.bias_sign import bias_sign


def head(*grad_b: float) -> Head:
    C = len(grad_b)
    return Head("head", torch.zeros(C, 2), torch.zeros(C), torch.zeros(C, 2), torch.tensor(grad_b))


def test_negative_rows_are_labels() -> None:
    assert bias_sign(head(0.1, -0.2, 0.05, -0.01), None).tolist() == [1, 3]
    assert bias_sign(head(0.1, -0.2, 0.05, -0.01), 3).tolist() == [1, 2, 3]


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(UnsumError, match="finds no label"):
        bias_sign(head(0.1, 0.2), None)
    with pytest.raises(UnsumError, match="3 samples of 2 classes cannot have"):
        bias_sign(head(0.1, -0.2), 3)
    with pytest.raises(UnsumError, match="needs the head's bias gradient"):
        bias_sign(Head("head", torch.zeros(2, 2), None, torch.zeros(2, 2), None), None)
