from __future__ import annotations

import pytest
import torch

from unsum.match.lbfgs import Memory


@pytest.mark.parametrize("block", [2**24, 3 * 80])
def test_steps_are_those_of_torch(block: int) -> None:
    """60 steps with a history of 10, so that the ring goes round several times, in one block and in
    four of three pairs."""
    torch.manual_seed(0)
    A = torch.randn(40, 40, dtype=torch.float64)
    A = A @ A.T + torch.eye(40, dtype=torch.float64)
    theirs = torch.randn(40, dtype=torch.float64).requires_grad_()
    ours = theirs.detach().clone()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x @ A @ x + (x**4).sum()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(theirs)
        value.backward()
        return value

    optimizer = torch.optim.LBFGS(
        [theirs], lr=0.3, history_size=10, max_iter=20, tolerance_grad=0, tolerance_change=0
    )
    memory = Memory(ours, 10, block=block)
    for _ in range(3):
        optimizer.step(closure)
        for _ in range(20):
            x = ours.clone().requires_grad_()
            ours += memory.direction(torch.autograd.grad(loss(x), x)[0], 0.3)
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-9, atol=1e-12)
    assert len(memory.blocks) == (1 if block > 1000 else 4)


def test_large_pictures_take_memory_only_for_the_steps_taken() -> None:
    memory = Memory(torch.zeros(40), 100, block=80)
    for step in range(3):
        memory.direction(torch.full((40,), 1.0 / (1 + step)), 1.0)
    assert memory.count == 2
    assert sum(len(block) for block in memory.blocks) == 4


def test_directions_without_curvature_are_forgotten() -> None:
    memory = Memory(torch.zeros(3), 5)
    memory.direction(torch.tensor([1.0, 0, 0]), 1.0)
    # the gradient did not change: nothing is learned
    step = memory.direction(torch.tensor([1.0, 0, 0]), 1.0)
    assert memory.count == 0
    torch.testing.assert_close(step, torch.tensor([-1.0, 0, 0]))
