from __future__ import annotations

import pytest
import torch
from torch import nn

from support.material import pictures, small_net
from unsum import Noise, UnsumError, capture, separate, smooth_labels
from unsum.head import collect_features


@pytest.mark.parametrize("rows", ["largest", "all"])
@pytest.mark.parametrize("classes", [2, 40])
def test_one_sample_is_exact_to_float_precision(rows: str, classes: int) -> None:
    net, images = small_net(classes=classes).eval(), pictures(1)
    leak = separate(net, capture(net, images, torch.tensor([1]), train=False), "phong", rows=rows)
    torch.testing.assert_close(leak.features, collect_features(net, images), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(leak.logits.float(), net(images).detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        leak.targets.float(),
        nn.functional.one_hot(torch.tensor([1]), classes).float(),
        atol=1e-6,
        rtol=0,
    )
    assert leak.residual < 1e-6
    assert not any("not explained" in note for note in leak.notes)


def test_a_soft_label_comes_out_too() -> None:
    net = small_net()
    row = smooth_labels(torch.tensor([7]), 0.2, 40)
    leak = separate(net, capture(net, pictures(1), row, train=False), "phong")
    torch.testing.assert_close(leak.targets.float(), row.float(), atol=1e-6, rtol=0)


def test_the_published_row_is_the_largest_and_all_rows_are_the_least_squares() -> None:
    net = small_net()
    update = Noise(1e-3)(capture(net, pictures(1), torch.tensor([7]), train=False))
    grad_W, grad_b = update.gradients["5.weight"].double(), update.gradients["5.bias"].double()
    one, every = (
        separate(net, update, "phong", rows=rows).features[0].double()
        for rows in ("largest", "all")
    )
    torch.testing.assert_close(one, grad_W[7] / grad_b[7], rtol=1e-5, atol=1e-6)
    expected = torch.linalg.lstsq(grad_b[:, None], grad_W).solution[0]
    torch.testing.assert_close(every, expected, rtol=1e-5, atol=1e-6)


def test_several_samples_are_refused_or_noticed() -> None:
    net = small_net()
    update = capture(net, pictures(3), torch.tensor([1, 2, 3]))
    with pytest.raises(UnsumError, match="for one sample, not for 3; use 'exact'"):
        separate(net, update, "phong", batch_size=3)
    leak = separate(net, update, "phong")
    assert leak.residual > 0.1
    assert any("not explained by one sample" in note for note in leak.notes)


def test_what_cannot_be_divided_is_refused() -> None:
    net = small_net(bias=False)
    with pytest.raises(UnsumError, match="needs the head's bias"):
        separate(net, capture(net, pictures(1), torch.tensor([0])), "phong")
    net = small_net()
    nothing = capture(net, pictures(1), torch.tensor([0])).map(lambda _name, g: torch.zeros_like(g))
    with pytest.raises(UnsumError, match="zero throughout"):
        separate(net, nothing, "phong")
    with pytest.raises(UnsumError, match="'rows' must be one of largest, all"):
        separate(net, capture(net, pictures(1), torch.tensor([0])), "phong", rows="some")
