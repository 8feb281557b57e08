"""How deep an attack read, in the result, on the page and in words."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import unsum
from support.maps import network
from unsum.audit.report import render, render_markdown
from unsum.audit.result import DepthRead


@pytest.mark.long
def test_the_report_draws_every_layer_from_what_came_back_to_the_head() -> None:
    torch.manual_seed(1)
    report = unsum.audit(
        network(classes=2),
        (torch.rand(3, 3, 16, 16), torch.tensor([0, 1, 0])),
        batch_size_known=True,
    )
    assert [(layer.name, layer.read) for layer in report.depth.layers] == [
        ("0.0", False),
        ("0.2", False),
        ("1.conv1", True),
        ("1.conv2", True),
        ("4", True),
    ]
    assert report.depth.numbers == 96 * 4 * 4
    assert report.to_dict()["depth"][2] == {"layer": "1.conv1", "read": True}
    page = render(report)
    assert page.count('<rect class="read"') == 3 + 1  # and one in the key
    assert page.count('<rect class="unread"') == 2 + 1
    assert "down to what the layer &#39;1.conv1&#39; read: 1,536 numbers of each sample" in page
    assert "down to what the layer '1.conv1' read: 1,536 numbers of each sample" in render_markdown(
        report
    )


def test_peeled_inputs_are_the_deepest() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 20))
    update = unsum.capture(model, torch.randn(3, 12), torch.tensor([4, 4, 1]))
    depth = DepthRead.of(model, unsum.attack(model, update))
    assert all(layer.read for layer in depth.layers)
    assert depth.numbers == 12
    assert "the model's own input" in depth.sentence


def test_the_head_alone_draws_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 20)
    update = unsum.capture(model, torch.randn(3, 64), torch.tensor([4, 4, 1]))
    leak = unsum.separate(model, update)
    assert DepthRead.of(model, leak).layers == ()
