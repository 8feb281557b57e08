from __future__ import annotations

import pytest
import torch

from material import pictures, small_net
from unsum import Noise, UnsumError, attack, capture
from unsum.models import load_model


def test_auto_takes_the_exact_solver_where_it_works() -> None:
    net = small_net()
    leak = attack(net, capture(net, pictures(4), torch.tensor([1, 1, 2, 3])))
    assert leak.method == "exact"
    assert leak.exact


def test_auto_falls_back_where_the_solver_itself_expects_to_fail() -> None:
    net = small_net()
    torch.manual_seed(0)
    leak = attack(net, capture(net, pictures(4), torch.arange(4), defenses=Noise(0.05)))
    assert leak.method == "fgla"
    assert "the ratio method (fgla) was used instead" in leak.notes[0]


def test_granted_knowledge_is_recorded() -> None:
    net = small_net()
    labels = torch.tensor([1, 1, 2, 3])
    leak = attack(net, capture(net, pictures(4), labels), labels=labels)
    assert "The labels of the batch." in leak.knowledge.granted()


def test_pictures_make_the_public_photos_part_of_what_was_granted() -> None:
    model = load_model("default", classes=20).model
    stages: list[str] = []
    leak = attack(model, capture(model, torch.rand(2, 3, 128, 128), torch.tensor([0, 1])), progress=stages.append)
    assert leak.images is not None
    assert leak.images.shape == (2, 3, 128, 128)
    assert any("Public photos" in sentence for sentence in leak.knowledge.granted())
    assert stages == ["Separating the batch", "Turning features into pictures"]


def test_an_inverse_asked_for_by_name_must_fit(tmp_path) -> None:
    net = small_net()
    update = capture(net, pictures(2), torch.tensor([0, 1]))
    with pytest.raises(UnsumError, match="is not an inverse"):
        attack(net, update, inverse=tmp_path / "none.safetensors")
