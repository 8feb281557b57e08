"""Pictures under noise: closed forms where the gradient is linear in the picture, and a smooth
network whose pictures are read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum import UnsumError
from unsum.gradients import quiet
from unsum.match import match
from unsum.match.posterior import _Linearized
from unsum.match.problem import pose
from unsum.models.strides import PHOTOS_MEAN
from unsum.photos import coefficients, photo_spread, pictures_of

MEAN = torch.tensor(PHOTOS_MEAN)[:, None, None]


def photos(count: int, side: int, seed: int) -> Tensor:
    """Drawn from the spectrum of photos."""
    generator = torch.Generator().manual_seed(seed)
    spread = photo_spread((3, side, side))
    drawn = torch.randn(count, 3, side, side, generator=generator, dtype=torch.float64)
    return (MEAN + pictures_of(spread * drawn)).clamp(0, 1).float()


def smooth() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, 2, 2), nn.Softplus(), nn.Conv2d(8, 8, 5, 2, 2), nn.Softplus(),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


@pytest.mark.parametrize("sigma", [0.01, 0.1, 1.0])
def test_where_the_gradient_is_linear_the_answer_is_the_posterior_mean(sigma: float) -> None:
    """With weights of zero ∇W = (p − y) xᵀ for p = 1/10: what is seen of each component of x has an
    error of σ/‖p − y‖, and its mean is h²/(h² + σ²/‖p − y‖²) of that."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    x, label = photos(1, 8, 0), torch.tensor([3])
    torch.manual_seed(1)
    update = unsum.Noise(sigma)(unsum.capture(model, x, label))
    found = match(model, update, "posterior", labels=label, image_size=8, restarts=1, products=200)
    rows = update.gradients["1.weight"].double()
    error = torch.full((10,), 0.1, dtype=torch.float64) - nn.functional.one_hot(label[0], 10)
    seen = (error @ rows / error.square().sum()).view(1, 3, 8, 8)
    noise = float(rows.sum(0).square().mean()) / 10 / float(error.square().sum())
    variance = photo_spread((3, 8, 8)).square()
    kept = coefficients(seen - MEAN) * variance / (variance + noise)
    expected = (MEAN + pictures_of(kept)).clamp(0, 1)
    start = float((MEAN - expected).square().sum())
    assert float((found.images - expected).square().sum()) < 1e-3 * start
    assert not found.exact


def test_a_step_solves_the_linear_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unsum.match.posterior._TOLERANCE", 1e-5)
    torch.manual_seed(0)
    layers = nn.Linear(48, 6), nn.Tanh(), nn.Linear(6, 4)
    model = nn.Sequential(nn.Flatten(), *layers).double()
    x, label = photos(1, 4, 0).double(), torch.tensor([2])
    update = unsum.Noise(0.01)(unsum.capture(model, x, label))
    rows = nn.functional.one_hot(label, 4).double()
    problem = pose(
        "posterior", model, update, batch_size=1, shape=(3, 4, 4), targets=rows, separated=None
    )
    with quiet(model, problem.sent):
        here = _Linearized(problem, rows)
        z = torch.randn(1, 3, 4, 4, generator=torch.Generator().manual_seed(2)).double()
        left = here.left(z)
        found = here.step(z, left, 0.02, 0.5, 400).flatten()
        apart = 1e-3 * torch.eye(48, dtype=torch.float64)
        J = torch.stack(
            [
                (here.left(z - e.view_as(z)) - here.left(z + e.view_as(z))).double() / 2e-3
                for e in apart
            ],
            1,
        )
    matrix = J.T @ J / 0.02**2 + 1.5 * torch.eye(48, dtype=torch.float64)
    expected = torch.linalg.solve(matrix, J.T @ left.double() / 0.02**2 - z.flatten())
    assert float((found - expected).norm() / expected.norm()) < 1e-3


@pytest.mark.parametrize(("sigma", "least", "most"), [(1e-3, 0.9, 1.0), (1e-2, 0.5, 0.9)])
def test_pictures_of_a_smooth_network_are_read_as_far_as_noise_lets_them(
    sigma: float, least: float, most: float
) -> None:
    model, x, label = smooth(), photos(1, 16, 3), torch.tensor([0])
    torch.manual_seed(1)
    update = unsum.Noise(sigma)(unsum.capture(model, x, label))
    found = match(model, update, "posterior", labels=label, image_size=16, restarts=1)
    leaked = 1 - float((found.images - x).square().sum() / (MEAN - x).square().sum())
    assert least < leaked < most
    assert found.history["loss"][-1] < found.history["loss"][0]
    assert "1 of 1 starts" in found.notes[0]


def test_what_no_start_explains_is_answered_with_the_mean_of_photos() -> None:
    """A gradient that is no gradient, and one that noise drowns: no picture is made of either."""
    model, x, label = smooth(), photos(1, 16, 3), torch.tensor([0])
    sent = unsum.capture(model, x, label)
    torch.manual_seed(0)
    torn = {
        name: value + (name[0] == "0") * torch.randn(value.shape)
        for name, value in sent.gradients.items()
    }
    how = {"labels": label, "image_size": 16, "restarts": 1, "steps": 5}
    found = match(model, unsum.Update(torn), "posterior", **how)  # type: ignore[arg-type]
    torch.testing.assert_close(found.images, MEAN.expand(1, 3, 16, 16))
    assert "what any photo" in " ".join(found.notes)
    drowned = match(model, unsum.Noise(100.0)(sent), "posterior", **how)  # type: ignore[arg-type]
    assert float((drowned.images - MEAN).abs().max()) < 0.05


def test_pictures_of_two_channels_are_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 10))
    update = unsum.capture(model, torch.rand(1, 2, 4, 4), torch.tensor([1]))
    with pytest.raises(UnsumError, match="one or three channels"):
        match(model, update, "posterior", labels=torch.tensor([1]), image_size=(2, 4, 4))
