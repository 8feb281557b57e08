from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unsum.gradients import distance
from unsum.match.objective import Objective

SHAPES = [(4, 3, 3, 3), (4,), (7, 5)]


def tensors(seed: int, restarts: int | None = None) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lead = () if restarts is None else (restarts,)
    return [
        torch.randn(*lead, *shape, generator=generator, dtype=torch.float64) for shape in SHAPES
    ]


@pytest.mark.parametrize("kind", ["l2", "cosine"])
@pytest.mark.parametrize("restarts", [1, 3])
def test_values_and_derivatives_are_those_of_the_plain_formula(kind, restarts: int) -> None:
    sent, found = tensors(0), tensors(1, restarts)
    values, pulls = Objective(kind).against(sent, restarts)(found)
    for r in range(restarts):
        own = [tensor[r].clone().requires_grad_() for tensor in found]
        value = distance(kind, own, sent)
        torch.testing.assert_close(values[r], value.detach())
        for pull, expected in zip(pulls, torch.autograd.grad(value, own), strict=True):
            torch.testing.assert_close(pull[r], expected)


@pytest.mark.parametrize("kind", ["l2", "cosine"])
def test_masked_looks_only_where_the_received_gradient_is_not_zero(kind) -> None:
    sent, found = tensors(0), tensors(1, 1)
    masks = [tensor > 0.5 for tensor in tensors(2)]
    sent = [tensor * mask for tensor, mask in zip(sent, masks, strict=True)]
    value, pulls = Objective(kind, masked=True).against(sent)(found)
    kept = [tensor[0] * mask for tensor, mask in zip(found, masks, strict=True)]
    torch.testing.assert_close(value[0], distance(kind, kept, sent))
    assert all(not bool(pull[0][~mask].any()) for pull, mask in zip(pulls, masks, strict=True))
    unmasked, _ = Objective(kind).against(sent)(found)
    assert abs(float(unmasked - value)) > 0.01


def test_relative_l2_is_one_for_nothing_and_zero_for_the_same() -> None:
    sent = tensors(0)
    target = Objective("l2", relative=True).against(sent)
    assert float(target([torch.zeros_like(t)[None] for t in sent])[0]) == pytest.approx(1)
    assert float(target([t[None] for t in sent])[0]) == pytest.approx(0)


def test_cosine_does_not_mind_the_scale() -> None:
    sent = tensors(0)
    values, _ = Objective("cosine").against(sent)([0.01 * t[None] for t in sent])
    assert float(values) == pytest.approx(0, abs=1e-12)
