"""Which defense is seen in an update, and that none is seen in updates that went through none."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn

import unsum
from separate.sparse_cases import sparse_case
from support.material import pictures, small_net
from unsum.head import Head
from unsum.separate.adaptive.recognize import find_lattice, recognize


@pytest.mark.parametrize(
    ("defense", "kind"),
    [
        ("noise:0.001", "noise"),
        ("laplace:0.01", "noise"),
        ("clip:1|noise:0.001", "noise"),
        ("prune:0.5", "pruned"),
        ("prune:0.99", "pruned"),
        ("prune-global:0.9", "pruned"),
        ("sign", "sign"),
        ("qsgd:1", "random-grid"),
        ("qsgd:16", "random-grid"),
        ("qsgd:256", "random-grid"),
        ("quantize:4", "grid"),
        ("quantize:8", "grid"),
        ("float16", "sixteen-bits"),
        ("bfloat16", "sixteen-bits"),
        ("clip:1", "none"),
    ],
)
def test_each_defense_shows(defense: str, kind: str) -> None:
    case = sparse_case(same=2)
    found = recognize(Head.of(case.model, case.defended(defense)))
    assert found.kind == kind
    assert bool(found.sentence) == (kind != "none")


def test_what_was_recognized_is_measured() -> None:
    case = sparse_case()
    assert recognize(Head.of(case.model, case.defended("noise:0.01"))).sigma == pytest.approx(
        0.01, rel=0.05
    )
    pruned = case.defended("prune:0.9").gradients["weight"]
    assert recognize(Head.of(case.model, case.defended("prune:0.9"))).threshold == pytest.approx(
        float(pruned[pruned != 0].abs().min())
    )
    lattice = recognize(Head.of(case.model, case.defended("qsgd:64"))).lattice
    assert lattice is not None
    assert lattice.step == pytest.approx(
        float(case.update.gradients["weight"].norm()) / 64, rel=1e-4
    )


def _networks() -> list[tuple[nn.Module, torch.Tensor]]:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 12))
    sigmoid = nn.Sequential(
        nn.Flatten(), nn.Linear(768, 64), nn.Sigmoid(), nn.Linear(64, 12, bias=False)
    )
    resnet = torchvision.models.resnet18(num_classes=30)
    return [
        (small_net(), pictures(5)),
        (small_net(bias=False, batch_norm=False), pictures(3)),
        (mlp, pictures(4)),
        (sigmoid, pictures(4)),
        (resnet, torch.rand(4, 3, 64, 64)),
        (nn.Linear(6, 3), torch.rand(2, 6)),
    ]


@pytest.mark.parametrize("place", range(6))
def test_no_defense_is_seen_in_clean_updates(place: int) -> None:
    network, images = _networks()[place]
    for labels in (torch.arange(len(images)) % 3, torch.zeros(len(images), dtype=torch.long)):
        update = unsum.capture(network, images, labels)
        assert recognize(Head.of(network, update)).kind == "none"


def test_a_grid_must_hold_every_value() -> None:
    values = torch.arange(200.0) % 7 * 0.25 - 1
    lattice = find_lattice(values)
    assert lattice is not None
    assert lattice.step == pytest.approx(0.25)
    values[17] += 0.1
    assert find_lattice(values) is None
