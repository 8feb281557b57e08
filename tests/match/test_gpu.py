"""What is different on a GPU: passes are recorded once and replayed, restarts go through the model
together, bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from match.cases import lenet
from unsum.client import capture
from unsum.data import embedded_batch
from unsum.leak import Leak
from unsum.match import evaluate, match

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def _matched(method: str, device: str, **options: object) -> tuple[Leak, Tensor]:
    net = lenet().to(device)
    batch = embedded_batch(1, image_size=32)
    images, labels = batch.images.to(device), batch.targets.to(device) % 10
    update = capture(net, images, labels)
    return match(net, update, method, labels=labels, image_size=32, **options), images


@pytest.mark.parametrize(("method", "steps"), [("ig", 40), ("idlg", 1)])
def test_recorded_passes_lead_where_plain_ones_do(
    method: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, _ = _matched(method, "cuda", steps=steps)
    monkeypatch.setattr(evaluate, "recorded", lambda work, _device: (work, 0))
    plain, _ = _matched(method, "cuda", steps=steps)
    assert recorded.images is not None
    # Kernels round differently from run to run, and twenty iterations of L-BFGS without a line
    # search enlarge that.
    torch.testing.assert_close(
        recorded.images, plain.images, rtol=0, atol=1e-3 if method == "ig" else 2e-2
    )
    assert recorded.residual == pytest.approx(plain.residual, rel=1e-3 if method == "ig" else 0.1)


def test_one_picture_comes_back() -> None:
    leak, images = _matched("idlg", "cuda", steps=100)
    assert leak.images is not None
    apart = (leak.images.to(images) - images).square().mean()
    assert float(-10 * apart.log10()) > 25


def test_restarts_together_and_half_precision() -> None:
    alone, _ = _matched("ig", "cuda", steps=30)
    together, _ = _matched("ig", "cuda", steps=30, restarts=3)
    half, _ = _matched("ig", "cuda", steps=30, half=True)
    assert together.residual <= 1.02 * alone.residual  # the first of three starts is the one start
    assert not any("vmap" in note for note in together.notes)
    assert half.residual == pytest.approx(alone.residual, rel=0.3)
