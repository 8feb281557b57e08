"""What every method gets from the engine: restarts, checkpoints, hooks, and a model that is left as
it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from match.cases import convnet, crops, decibels, lenet
from support.progress import Heard
from unsum import UnsumError, Update, capture
from unsum.files import writing
from unsum.match import Matched, Plan, Problem, checkpoint, match, solve
from unsum.match.objective import Objective
from unsum.match.optimizers import LBFGS, Adam
from unsum.match.problem import pose
from unsum.match.regularizers import GroupConsistency, TotalVariation
from unsum.match.unknown import Latent, LowResolution, Pixels
from unsum.running.progress import Progress


def posed(net: nn.Module, batch: int = 2, *, labels: bool = True) -> Problem:
    targets = torch.eye(10)[torch.arange(batch) + 1]
    images = crops(batch).to(next(net.parameters()))
    update = capture(net, images, targets, train=net.training)
    known = targets if labels else None
    return pose(
        "test", net, update, batch_size=batch, shape=(3, 32, 32), targets=known, separated=None
    )


def small_plan(**changes: Any) -> Plan:
    plan = Plan(
        Objective("cosine"), Adam(0.1), 12, regularizers=(TotalVariation(1e-3),), look_every=3
    )
    return replace(plan, **changes)


@pytest.mark.parametrize(("norm", "group"), [("none", True), ("train", False), ("eval", True)])
def test_restarts_together_are_restarts_one_after_the_other(norm: str, group: bool) -> None:
    net = convnet(batch_norm=norm != "none").train(norm == "train").double()
    terms = (TotalVariation(1e-3), GroupConsistency(1e-3)) if group else (TotalVariation(1e-3),)
    found = [
        solve(posed(net), small_plan(restarts=3, together=together, regularizers=terms))
        for together in (True, False)
    ]
    assert found[0].notes == found[1].notes == []  # vmap did run
    torch.testing.assert_close(
        found[0].restart_losses, found[1].restart_losses, rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(found[0].images, found[1].images, rtol=0, atol=1e-6)


def test_each_restart_is_what_it_would_be_alone() -> None:
    problem = posed(convnet())
    several = solve(problem, small_plan(restarts=2, together=False))
    alone = [solve(replace(problem, seed=seed), small_plan()) for seed in (0, 7919)]
    assert several.restart_losses.tolist() == pytest.approx([one.loss for one in alone], rel=1e-4)
    best = min(alone, key=lambda one: one.loss)
    torch.testing.assert_close(several.images, best.images)


class Untouchable(nn.Module):
    """Branches on its data, which vmap cannot do."""

    def forward(self, x: Tensor) -> Tensor:
        return x if bool(x.mean() > 1e9) else x * 1.0


def test_a_model_that_vmap_cannot_run_says_so_and_runs_one_after_the_other() -> None:
    net = nn.Sequential(Untouchable(), *convnet())
    found = solve(posed(net), small_plan(restarts=2))
    assert "because vmap cannot run it" in found.notes[0]
    assert len(found.restart_losses) == 2


class KilledError(Exception):
    pass


@pytest.mark.parametrize(
    "plan",
    [
        small_plan(restarts=2),
        small_plan(optimizer=Adam(0.1, signed=True), unknown=Pixels()),
        Plan(Objective("l2"), LBFGS(), 8, unknown=Pixels(box=False), restarts=2, soft_labels=True),
    ],
    ids=["adam", "signed", "lbfgs"],
)
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(plan: Plan, tmp_path: Path) -> None:
    net = lenet()
    whole = solve(posed(net, labels=not plan.soft_labels), plan)

    class Killer(Progress):
        def step(self, number: int, *_losses: float) -> None:
            if number > plan.steps // 2:
                raise KilledError

    problem = replace(
        posed(net, labels=not plan.soft_labels),
        checkpoint=tmp_path / "run.safetensors",
        checkpoint_seconds=0.0,
    )
    with pytest.raises(KilledError):
        solve(replace(problem, progress=Killer()), plan)
    heard = Heard()
    resumed = solve(replace(problem, progress=heard), plan)
    assert 0 < heard.steps[0][0] <= plan.steps // 2 + 3
    torch.testing.assert_close(resumed.images, whole.images, rtol=0, atol=0)
    torch.testing.assert_close(resumed.history["loss"], whole.history["loss"], rtol=0, atol=0)
    again = solve(problem, plan)  # finished: nothing is left to do
    torch.testing.assert_close(again.images, whole.images, rtol=0, atol=0)


def test_a_checkpoint_of_another_run_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.safetensors"
    problem = replace(posed(lenet()), checkpoint=file)
    solve(problem, small_plan(steps=2))
    with pytest.raises(UnsumError, match=r"another seed \(0, now 1\)"):
        solve(replace(problem, seed=1), small_plan(steps=2))
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UnsumError, match="cannot be read; delete it"):
        solve(problem, small_plan(steps=2))


def test_a_kill_while_a_checkpoint_is_written_leaves_the_last_one(
    tmp_path: Path, monkeypatch
) -> None:
    file = tmp_path / "run.safetensors"
    checkpoint.write(file, {"seed": 0}, {"step": 3, "leaf": torch.ones(2)})

    def killed(*_arguments: Any) -> None:
        (tmp_path / "run.safetensors.part").write_bytes(b"half")
        raise KilledError

    monkeypatch.setattr(writing, "save_file", killed)
    with pytest.raises(KilledError):
        checkpoint.write(file, {"seed": 0}, {"step": 4, "leaf": torch.zeros(2)})
    assert checkpoint.read(file, {"seed": 0}, torch.device("cpu"))["step"] == 3


def test_nothing_is_left_on_the_model() -> None:
    net = convnet(batch_norm=True).train()
    net[0].weight.requires_grad_(False)
    net[3].weight.grad = torch.ones_like(net[3].weight)
    update = capture(net, crops(2), torch.tensor([1, 2]))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    flags = [p.requires_grad for p in net.parameters()]
    mkldnn = torch.backends.mkldnn.enabled
    leak = match(net, update, "ig", labels=torch.tensor([1, 2]), image_size=32, steps=3, restarts=2)
    assert leak.images is not None
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    assert [p.requires_grad for p in net.parameters()] == flags
    assert all(p.grad is None for p in net.parameters() if p is not net[3].weight)
    assert bool((net[3].weight.grad == 1).all())
    assert all(module.training for module in net.modules())
    assert all(m.track_running_stats for m in net.modules() if isinstance(m, nn.BatchNorm2d))
    assert not any(m._forward_pre_hooks for m in net.modules())
    assert torch.backends.mkldnn.enabled == mkldnn


def test_the_unknown_can_be_coarse_pixels_or_a_latent() -> None:
    problem = posed(convnet(), 1)
    coarse = solve(problem, small_plan(unknown=LowResolution((32, 32)), steps=60))
    assert coarse.images.shape == (1, 3, 32, 32)
    assert float(coarse.history["loss"][-1]) < 0.7 * float(coarse.history["loss"][0])
    torch.manual_seed(0)
    generator = nn.Sequential(
        nn.Linear(8, 3 * 32 * 32), nn.Sigmoid(), nn.Unflatten(1, (3, 32, 32))
    ).requires_grad_(False)
    latent = solve(problem, small_plan(unknown=Latent(generator, (8,)), steps=20, restarts=2))
    assert latent.images.shape == (1, 3, 32, 32)
    assert float(latent.history["loss"][-1]) < float(latent.history["loss"][0])


def test_a_hook_changes_the_unknown_every_so_many_steps() -> None:
    calls: list[tuple[int, ...]] = []

    def gray(leaves: list[Tensor]) -> None:
        calls.append(tuple(leaves[0].shape))
        leaves[0].fill_(0.5)

    found = solve(
        posed(convnet(), 1),
        small_plan(steps=10, amend=gray, amend_every=5, restarts=2, look_every=100),
    )
    assert calls == [(1, 3, 32, 32)] * 4
    assert bool((found.images == 0.5).all())  # the last call came after the last step


def test_a_start_that_diverges_begins_anew() -> None:
    problem, plan = (
        posed(lenet(), 1, labels=False),
        Plan(Objective("l2"), LBFGS(1e4), 5, unknown=Pixels(box=False), soft_labels=True),
    )
    found = solve(problem, plan)
    assert "diverged, and others took their place." in found.notes[0]
    assert bool(torch.isfinite(found.images).all())
    assert found.loss < float("inf")


def test_progress_and_preview(tmp_path: Path) -> None:
    net, images = convnet(), crops(2)
    update = capture(net, images, torch.tensor([1, 2]))
    heard = Heard()
    leak = match(
        net,
        update,
        "ig",
        image_size=32,
        steps=6,
        progress=heard,
        preview=tmp_path / "now.png",
    )
    assert [row[0] for row in heard.steps] == leak.history["step"].tolist() == list(range(7))
    assert all(len(row) == 3 for row in heard.steps)
    with Image.open(tmp_path / "now.png") as picture:
        assert picture.size == (2 * 33 + 1, 34)


def test_only_gradients_that_the_loss_reaches_are_matched() -> None:
    net = convnet()
    net.register_parameter("idle", nn.Parameter(torch.ones(3)))
    update = capture(net, crops(1), torch.tensor([1]))
    padded = Update({**update.gradients, "idle": torch.zeros(3)})
    problem = pose(
        "x",
        net,
        padded,
        batch_size=1,
        shape=(3, 32, 32),
        targets=torch.eye(10)[[1]],
        separated=None,
    )
    assert "idle" not in problem.sent


def test_the_true_pictures_are_where_the_loss_ends() -> None:
    """Started at the truth, nothing moves: value and derivative vanish there together."""

    class Truth(Pixels):
        def start(self, count: int, *_others: Any) -> list[Tensor]:
            return [crops(count)]

    found: Matched = solve(posed(convnet()), Plan(Objective("l2"), LBFGS(), 2, unknown=Truth()))
    assert found.match < 1e-10
    assert float(decibels(found.images, crops(2)).min()) > 60


def test_a_sum_over_the_batch_is_matched_as_a_sum() -> None:
    net = convnet()
    mean = capture(net, crops(2), torch.tensor([1, 2]))
    total = replace(mean.map(lambda _name, g: 2 * g), reduction="sum")
    leaks = [
        match(net, u, "gradinversion", batch_size=2, image_size=32, steps=4, restarts=1)
        for u in (mean, total)
    ]
    torch.testing.assert_close(leaks[0].images, leaks[1].images, atol=1e-4, rtol=0)
