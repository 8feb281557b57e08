from __future__ import annotations

import importlib
from functools import partial

import pytest
import torch

from support.long import long
from support.material import pictures, small_net
from support.progress import Heard
from unsum import ClipLayers, Noise, UnsumError, attack, capture
from unsum.attack.pictures import refine_pictures
from unsum.data import embedded_batch
from unsum.defend import parse_defense
from unsum.models import load_model


def test_auto_takes_the_exact_solver_where_it_works() -> None:
    net = small_net()
    leak = attack(net, capture(net, pictures(4), torch.tensor([1, 1, 2, 3])))
    assert leak.method == "exact"
    assert leak.exact


def test_auto_adapts_where_the_solver_itself_expects_to_fail() -> None:
    net = small_net()
    torch.manual_seed(0)
    leak = attack(net, capture(net, pictures(4), torch.arange(4), defenses=Noise(0.05)))
    assert leak.method == "adaptive"
    assert "the adaptive separator one of" in leak.notes[0]
    assert any("noise of standard deviation 0.0" in note for note in leak.notes)


@pytest.mark.parametrize("bound", [0.1, *long(1.0)])
def test_clipping_each_tensor_by_itself_protects_nothing(bound: float) -> None:
    model, images = load_model("default", classes=50, size=16).model, pictures(4)
    labels = torch.tensor([7, 7, 7, 21])
    leak = attack(model, capture(model, images, labels, defenses=ClipLayers(bound)))
    assert leak.exact
    assert leak.labels.sort().values.tolist() == labels.tolist()
    assert "clipping each by itself" in leak.notes[0]


def test_granted_knowledge_is_recorded() -> None:
    net = small_net()
    labels = torch.tensor([1, 1, 2, 3])
    leak = attack(net, capture(net, pictures(4), labels), labels=labels)
    assert "The labels of the batch." in leak.knowledge.granted()


def test_pictures_make_the_public_photos_part_of_what_was_granted() -> None:
    model = load_model("default", classes=20).model
    heard = Heard()
    leak = attack(
        model, capture(model, torch.rand(2, 3, 128, 128), torch.tensor([0, 1])), progress=heard
    )
    assert leak.images is not None
    assert leak.images.shape == (2, 3, 128, 128)
    assert any("Public photos" in sentence for sentence in leak.knowledge.granted())
    assert heard.stages == ["Separating the batch", "Turning features into pictures"]


def test_an_inverse_asked_for_by_name_must_fit(tmp_path) -> None:
    net = small_net()
    update = capture(net, pictures(2), torch.tensor([0, 1]))
    with pytest.raises(UnsumError, match="is not an inverse"):
        attack(net, update, inverse=tmp_path / "none.safetensors")


@pytest.mark.parametrize("method", ["exact", "fgla", "auto"])
def test_any_label_rule_goes_before_any_separator(method: str) -> None:
    net, labels = small_net(), [1, 1, 2, 3]
    heard = Heard()
    update = capture(net, pictures(4), torch.tensor(labels))
    leak = attack(net, update, method, label_rule="ilrg", batch_size=4, progress=heard)
    assert sorted(leak.labels.tolist()) == labels  # fgla by itself would find three distinct labels
    assert leak.notes[0] == "Labels were found by the rule 'ilrg'."
    assert heard.stages[:2] == ["Finding the labels", "Separating the batch"]
    granted = leak.knowledge.granted()
    assert "The batch size (4)." in granted
    assert "The labels of the batch." not in granted  # found, not given


def test_auxiliary_samples_are_part_of_what_was_granted() -> None:
    net = small_net()
    update = capture(net, pictures(3), torch.tensor([1, 1, 2]))
    own = (pictures(40, seed=9), torch.arange(40))
    leak = attack(net, update, "fgla", label_rule="llg+", batch_size=3, auxiliary=own)
    assert leak.labels.tolist() == [1, 1, 2]
    assert "40 labeled samples of its own, of 40 classes." in leak.knowledge.granted()


def test_what_a_rule_takes_on_trust_is_noted() -> None:
    model = torch.nn.Linear(8, 5)  # its inputs are the features: nothing shows their sign
    update = capture(model, torch.rand(1, 8), torch.tensor([3]))
    leak = attack(model, update, "exact", label_rule="idlg")
    assert leak.labels.tolist() == [3]
    assert any("the model does not show whether they are" in note for note in leak.notes)
    assert any("takes the batch for a single sample" in note for note in leak.notes)


def test_contradictory_wishes_are_refused() -> None:
    net = small_net()
    update = capture(net, pictures(2), torch.tensor([0, 1]))
    with pytest.raises(UnsumError, match=r"leave out labels= or label_rule="):
        attack(net, update, labels=torch.tensor([0, 1]), label_rule="llg")
    with pytest.raises(UnsumError, match="Only label rules use auxiliary data"):
        attack(net, update, auxiliary=(pictures(2), torch.tensor([0, 1])))
    with pytest.raises(UnsumError, match="did you mean 'ilrg'"):
        attack(net, update, label_rule="ilgr")
    with pytest.raises(UnsumError, match="needs the batch size"):
        attack(net, update, label_rule="ilrg")


def test_pictures_are_refined_where_that_is_asked_for(monkeypatch) -> None:
    module = importlib.import_module("unsum.attack.pictures")
    # enough to see it happen
    monkeypatch.setattr(module, "refine_pictures", partial(refine_pictures, steps=25))
    model = load_model("default", classes=20).model.train()
    update = capture(model, torch.rand(2, 3, 128, 128), torch.tensor([0, 1]))
    heard = Heard()
    plain, refined = attack(model, update), attack(model, update, refine="features", progress=heard)
    assert heard.stages[-1] == "Refining the pictures"
    assert "their misfit to gradients held out fell from" in refined.notes[-1]
    assert float((refined.images - plain.images).abs().max()) > 0.01
    with pytest.raises(UnsumError, match="There is no mode of refinement 'fg'"):
        attack(model, update, refine="fg")  # type: ignore[arg-type]


def test_uncertain_features_are_not_refined() -> None:
    model = load_model("default", classes=20).model.train()
    torch.manual_seed(0)
    update = capture(model, torch.rand(2, 3, 128, 128), torch.tensor([0, 1]), defenses=Noise(0.1))
    leak = attack(model, update, refine="features")
    assert leak.notes[-1] == "The pictures were not refined: the features are too uncertain."


def test_a_hopeless_exact_answer_does_not_overrule_the_adaptive_one() -> None:
    model = load_model("default", classes=100).model
    batch = embedded_batch(8, image_size=128)
    pruned = parse_defense("prune:0.9")(capture(model, batch.images, batch.targets))
    leak = attack(model, pruned)
    assert leak.method == "adaptive"
    assert sorted(leak.labels.tolist()) == sorted(batch.targets.tolist())
