from __future__ import annotations

import pytest
import torch
from torch import nn

from match.cases import crops, normed
from unsum import capture
from unsum.match.evaluate import Evaluator
from unsum.match.objective import Objective
from unsum.match.optimizers import Adam
from unsum.match.problem import Plan, pose
from unsum.match.regularizers import (
    BatchNormPrior,
    FeatureTerm,
    GroupConsistency,
    Scene,
    SquaredNorm,
    TotalVariation,
    registered_mean,
)


@pytest.fixture
def scene() -> Scene:
    torch.manual_seed(0)
    pictures = torch.rand(3, 2, 3, 5, 4)
    return Scene(pictures, pictures.mean(0), features=torch.randn(3, 2, 6))


def test_total_variation(scene: Scene) -> None:
    down = sum(
        (scene.pictures[1, ..., i + 1, :] - scene.pictures[1, ..., i, :]).abs().sum()
        for i in range(4)
    )
    across = sum(
        (scene.pictures[1, ..., i + 1] - scene.pictures[1, ..., i]).abs().sum() for i in range(3)
    )
    expected = down / (2 * 3 * 4 * 4) + across / (2 * 3 * 5 * 3)
    torch.testing.assert_close(TotalVariation(1.0)(scene)[1], expected)
    flat = Scene(torch.full((1, 1, 3, 4, 4), 0.3), torch.zeros(()))
    assert float(TotalVariation(1.0)(flat)) == 0


def test_squared_norm(scene: Scene) -> None:
    expected = (scene.pictures[2, 0].norm() ** 2 + scene.pictures[2, 1].norm() ** 2) / 2
    torch.testing.assert_close(SquaredNorm(1.0)(scene)[2], expected)


def test_group_consistency(scene: Scene) -> None:
    mean = (scene.pictures[0] + scene.pictures[1] + scene.pictures[2]) / 3
    expected = (scene.pictures[0] - mean).square().sum() / 2
    torch.testing.assert_close(GroupConsistency(1.0)(scene)[0], expected)
    agreed = Scene(torch.rand(1, 2, 3, 4, 4).expand(3, -1, -1, -1, -1), torch.zeros(()))
    agreed = Scene(agreed.pictures, agreed.pictures.mean(0))
    assert float(GroupConsistency(1.0)(agreed).max()) == pytest.approx(0, abs=1e-10)


def test_feature_term(scene: Scene) -> None:
    wanted = torch.randn(2, 6)
    assert scene.features is not None
    apart = (scene.features[1] - wanted).norm() ** 2 / wanted.norm() ** 2
    torch.testing.assert_close(FeatureTerm(1.0, wanted)(scene)[1], apart)
    cosines = [
        float(a @ b / (a.norm() * b.norm())) for a, b in zip(scene.features[1], wanted, strict=True)
    ]
    found = FeatureTerm(1.0, wanted, "cosine")(scene)[1]
    assert float(found) == pytest.approx(1 - sum(cosines) / 2, abs=1e-6)


@pytest.mark.parametrize("train", [False, True])
def test_batch_norm_prior_is_the_distance_to_running_statistics(train: bool) -> None:
    """Held against a pass by hand, layer by layer, through the engine's own evaluation."""
    net, images = normed().train(train), crops(2)
    update = capture(net, images, torch.tensor([1, 2]), train=train)
    targets = torch.eye(10)[[1, 2]]
    problem = pose(
        "x", net, update, batch_size=2, shape=(3, 32, 32), targets=targets, separated=None
    )
    plan = Plan(Objective("l2"), Adam(0.1), 1, regularizers=(BatchNormPrior(1.0),))
    evaluator = Evaluator(problem, plan, [images[None].clone()])
    with evaluator.ready():
        totals, matches = evaluator.all()
    expected, x = 0.0, images
    with torch.no_grad():
        for layer in net:
            if isinstance(layer, nn.BatchNorm2d):
                mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
                expected += float(
                    (mean - layer.running_mean).norm() + (variance - layer.running_var).norm()
                )
                low, high = (mean, variance) if train else (layer.running_mean, layer.running_var)
                x = nn.functional.batch_norm(
                    x, low, high, layer.weight, layer.bias, False, 0.0, layer.eps
                )
            else:
                x = layer(x)
    assert float(totals - matches) == pytest.approx(expected, rel=1e-4)
    assert float(matches) < 1e-9  # the true pictures explain their gradient


def test_seeds_are_shifted_onto_each_other() -> None:
    pictures = crops(2)
    moved = torch.stack([pictures[0].roll((3, -2), (1, 2)), pictures[1].roll((-4, 1), (1, 2))])
    found = registered_mean(torch.stack([pictures, moved, pictures]))
    torch.testing.assert_close(found, pictures)
    assert float((torch.stack([pictures, moved, pictures]).mean(0) - pictures).abs().max()) > 0.1
