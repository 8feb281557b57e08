"""Audits of updates without the truth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import unsum
from support.material import pictures, small_net
from unsum.audit.report import render
from unsum.models.received import Received

TARGETS = torch.tensor([4, 4, 4, 17, 30])


def test_a_captured_update_gives_certificates_instead_of_scores(tmp_path: Path) -> None:
    net = small_net()
    result = unsum.audit(net, update=unsum.capture(net, pictures(5), TARGETS))
    assert result.truth is None
    assert result.samples == []
    assert result.scores == {}
    assert (result.verdict.level, result.verdict.read) == ("features", "features")
    assert sorted(result.found_label(i) for i in range(5)) == [
        "class 17",
        "class 30",
        "class 4",
        "class 4",
        "class 4",
    ]
    with pytest.raises(unsum.UnsumError, match="no true label is known"):
        result.true_label(0)
    result.write(tmp_path / "report")
    content = json.loads((tmp_path / "report" / "result.json").read_text())
    assert content["attack"]["exact"] is True
    assert content["truth_known"] is False


def test_noise_is_not_vouched_for() -> None:
    net = small_net()
    result = unsum.audit(
        net, update=unsum.capture(net, pictures(5), TARGETS, defenses=unsum.Noise(1.0))
    )
    assert not result.leak.exact
    assert result.verdict.level != "severe"
    assert "certificate does not call the answer exact" in " ".join(result.verdict.details)


def test_what_was_assumed_stands_in_the_report(tmp_path: Path) -> None:
    net = small_net()
    torch.save(
        tuple(unsum.capture(net, pictures(5), TARGETS).gradients.values()), tmp_path / "client.pt"
    )
    result = unsum.audit(net, update=tmp_path / "client.pt")
    assert "matched to the parameters by order and shape" in result.leak.notes[0]
    assert "matched to the parameters by order and shape" in render(result)


def test_the_batch_size_is_granted_only_where_it_is_said() -> None:
    net = small_net()
    update = unsum.capture(net, pictures(5), TARGETS)
    assert "The batch size" not in " ".join(unsum.audit(net, update=update).granted)
    granted = unsum.audit(
        net, update=update, batch_size_known=True, batch=5, attack="fgla", label_rule="ilrg"
    )
    assert "The batch size (5)." in granted.granted
    assert sorted(granted.leak.labels.tolist()) == sorted(TARGETS.tolist())
    with pytest.raises(unsum.UnsumError, match="does not record its batch size"):
        unsum.audit(net, update=update, batch_size_known=True)


def test_truth_and_capture_do_not_mix() -> None:
    net = small_net()
    update = unsum.capture(net, pictures(5), TARGETS)
    for mixed in ({"data": (pictures(5), TARGETS)}, {"defenses": unsum.Clip(1)}):
        with pytest.raises(unsum.UnsumError, match="leave data and defenses out"):
            unsum.audit(net, update=update, **mixed)
    with pytest.raises(unsum.UnsumError, match="Give the model itself along with an Update"):
        unsum.audit("default", update=update)
    with pytest.raises(unsum.UnsumError, match="Two checkpoints are a delta already"):
        Received(before=Path("a.pt"), after=Path("b.pt"), delta=True)


def test_classes_are_counted_in_the_update_by_name_or_by_place(tmp_path: Path) -> None:
    from unsum.models import load_model

    model = load_model("timm:test_resnet", classes=23, seed=0).model
    gradients = unsum.capture(model, torch.rand(2, 3, 64, 64), torch.tensor([3, 20])).gradients
    torch.save(dict(gradients), tmp_path / "named.pt")
    torch.save(tuple(gradients.values()), tmp_path / "bare.pt")
    for name in ("named.pt", "bare.pt"):
        result = unsum.audit("timm:test_resnet", update=tmp_path / name)
        assert result.setting.classes == 23
        assert sorted(result.leak.labels.tolist()) == [3, 20]


def test_what_does_not_fit_the_model_is_refused_and_not_called_undecidable() -> None:
    model = small_net()
    update = unsum.capture(model, pictures(2), torch.tensor([3, 7]))
    cut = update.map(lambda _name, gradient: gradient[..., :-1] if gradient.ndim > 1 else gradient)
    with pytest.raises(unsum.UnsumError, match=r"does not fit the model: '0\.weight'"):
        unsum.audit(model, update=cut)
    broken = update.map(lambda _name, gradient: gradient / 0)
    with pytest.raises(unsum.UnsumError, match="holds NaN or Inf"):
        unsum.audit(model, update=broken)
    with pytest.raises(unsum.UnsumError, match=r"The model does not take inputs of 60 numbers \("):
        unsum.audit(torch.nn.Linear(64, 20), (torch.zeros(2, 60), torch.tensor([3, 7])))
