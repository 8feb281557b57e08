from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import unsum
from support.long import long
from support.material import pictures, small_net
from support.progress import Heard
from unsum.audit.report import render
from unsum.data import embedded_batch


def test_the_default_audit_recovers_everything(default_audit: unsum.Audit) -> None:
    """Labels 8 of 8, features below 1e-4 for every sample, pictures above 18 dB; nothing granted
    but public photos."""
    scores, leak = default_audit.scores, default_audit.leak
    assert leak.batch_size == 8
    assert sorted(leak.labels.tolist()) == sorted(default_audit.truth.targets.tolist())
    assert scores["label_correct"] == 1
    assert scores["worst_feature_error"] < 1e-4
    assert scores["psnr"] >= 18
    assert scores["ssim"] > 0.4
    assert leak.exact
    assert leak.predicted_error < 1e-3
    assert leak.knowledge.labels is None
    assert leak.knowledge.batch_size is None
    assert default_audit.verdict.level == "severe"
    assert default_audit.verdict.share == 1


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("whole", [np.int64, np.int32, np.uint8, list])
def test_arrays_are_taken_as_tensors_are(kind: type, whole: type) -> None:
    torch.manual_seed(0)
    model, x, y = torch.nn.Linear(12, 8), torch.randn(3, 12), torch.tensor([4, 4, 1])
    labels = y.tolist() if whole is list else y.numpy().astype(whole)
    report = unsum.audit(model, (x.numpy().astype(kind), labels), ceiling=False)
    assert report.verdict.level == "severe"
    assert report.truth is not None
    assert torch.equal(report.truth.images, x)
    assert torch.equal(report.truth.targets, y)


def test_what_is_no_numbers_is_refused_in_a_sentence() -> None:
    model = torch.nn.Linear(12, 8)
    with pytest.raises(unsum.UnsumError, match="The inputs must be a tensor or an array of numb"):
        unsum.audit(model, (np.array(["a", "b"]), np.array([0, 1])))
    with pytest.raises(unsum.UnsumError, match=r"The targets must be .* not object"):
        unsum.audit(model, (np.zeros((2, 12)), object()))


@pytest.mark.long
def test_shared_labels_do_not_help_the_client() -> None:
    result = unsum.audit(same_label=4)
    assert result.scores["worst_feature_error"] < 1e-4
    assert result.scores["label_correct"] == 1
    assert result.scores["psnr"] >= 18
    ratio = unsum.audit(same_label=4, attack="fgla")
    assert ratio.scores["psnr"] < result.scores["psnr"] - 3  # what the exact solver is for


@pytest.mark.parametrize("same_label", [0, *long(8)])
def test_a_fully_connected_network_gives_its_photos_away_exactly(same_label: int) -> None:
    result = unsum.audit("mlp", same_label=same_label, ceiling=False)
    assert result.scores["psnr"] > 60
    assert result.leak.inputs_exact is not None
    assert bool(result.leak.inputs_exact.all())
    assert any("peeled" in note for note in result.leak.notes)


def test_clipping_does_not_help_either() -> None:
    result = unsum.audit(defenses=unsum.Clip(0.5), ceiling=False)
    assert result.leak.scale < 0.9
    assert result.scores["worst_feature_error"] < 1e-4


@pytest.mark.long
def test_strong_noise_does_and_is_not_called_exact() -> None:
    result = unsum.audit(batch=4, defenses=[unsum.Noise(0.5)])
    assert not result.leak.exact
    assert result.scores["psnr"] < 15
    assert result.verdict.share < 0.5
    assert result.setting.defenses == "Noise(0.5)"


@pytest.mark.long
def test_the_same_seed_gives_the_same_answer() -> None:
    first, second = (unsum.audit(batch=3, defenses=[unsum.Noise(1e-6)], seed=5) for _ in range(2))
    assert torch.equal(first.leak.features, second.leak.features)
    assert first.scores == second.scores


def test_a_model_and_data_of_ones_own() -> None:
    net, images, targets = small_net(), pictures(5), torch.tensor([4, 4, 4, 17, 30])
    result = unsum.audit(net, (images, targets), train=False)
    assert result.setting.model == "Sequential"
    assert result.scores["label_correct"] == 1
    assert result.scores["worst_feature_error"] < 1e-4
    assert result.leak.images is None
    assert any("no pictures for this model" in note for note in result.leak.notes)
    assert result.true_label(3) == "class 17"


def test_dropout_is_the_clients_own() -> None:
    """The truth that features are compared with comes from the same dropout mask as the update."""
    net = small_net()
    dropping = torch.nn.Sequential(*net[:5], torch.nn.Dropout(0.5), net[5])
    result = unsum.audit(dropping, (pictures(4), torch.tensor([1, 1, 2, 3])))
    assert result.scores["worst_feature_error"] < 1e-4


def test_embedded_photos_through_a_torchvision_model() -> None:
    result = unsum.audit("torchvision:mobilenet_v3_small", batch=2, ceiling=False)
    assert result.scores["label_correct"] == 1
    assert result.leak.images is None


def test_the_attacked_model_is_left_as_it_was() -> None:
    net = small_net().eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    unsum.audit(net, (pictures(3), torch.tensor([1, 2, 3])))
    assert not net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_files_are_written_and_not_overwritten(default_audit: unsum.Audit, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    page = default_audit.write(folder)
    content = json.loads((folder / "result.json").read_text())
    assert page == folder / "report.html"
    assert content["scores"]["label_correct"] == 1
    assert content["samples"][4]["label"] == "mountain"
    assert content["samples"][0]["lpips"] is None or content["samples"][0]["lpips"] >= 0
    assert content["granted"][0].startswith("The model's weights")
    (folder / "notes.txt").write_text("mine")
    default_audit.write(folder)  # a folder of ours may be written to again
    assert (folder / "notes.txt").read_text() == "mine"
    (folder / "result.json").write_text('{"schema": 1}')  # not one that an audit leaves
    page.write_text("mine")
    with pytest.raises(
        unsum.UnsumError, match="exists already, and unsum did not make it; add --force"
    ):
        default_audit.write(folder)
    assert page.read_text() == "mine"
    default_audit.write(folder, force=True)
    assert page.read_text() != "mine"


def test_a_file_in_the_way_is_named(default_audit: unsum.Audit, tmp_path: Path) -> None:
    (tmp_path / "report").write_text("")
    with pytest.raises(unsum.UnsumError, match="is a file"):
        default_audit.write(tmp_path / "report", force=True)


def test_ones_own_model_needs_data() -> None:
    with pytest.raises(unsum.UnsumError, match="Give data="):
        unsum.audit(small_net())


def test_a_wrong_attack_is_refused_before_anything_runs() -> None:
    heard = Heard()
    with pytest.raises(unsum.UnsumError, match="did you mean 'exact'"):
        unsum.audit(attack="exakt", progress=heard)
    assert heard.stages == ["Loading the model and the client's samples"]


def test_a_batch_with_names_of_its_own() -> None:
    batch = embedded_batch(8, image_size=128)
    audit = unsum.audit("default", batch, attack="fgla", ceiling=False)
    assert audit.truth.titles == batch.titles


def test_a_label_rule_and_what_it_is_granted_are_shown() -> None:
    net, images, targets = small_net(), pictures(5), torch.tensor([4, 4, 4, 17, 30])
    result = unsum.audit(
        net, (images, targets), attack="fgla", label_rule="llg", batch_size_known=True
    )
    assert result.scores["label_correct"] == 1
    assert result.setting.attack == "fgla, labels by llg"
    assert "The batch size (5)." in result.granted
    assert "The labels of the batch." not in result.granted
    assert "rule &#39;llg&#39;" in render(result)
    with pytest.raises(unsum.UnsumError, match="needs the batch size"):
        unsum.audit(net, (images, targets), attack="fgla", label_rule="llg")


@pytest.mark.parametrize("train", [True, False])
def test_rules_that_probe_the_model_see_it_as_clients_train_it(train: bool) -> None:
    net, modes = small_net(), []
    net[1].register_forward_hook(lambda module, _inputs, _output: modes.append(module.training))
    data = pictures(4), torch.tensor([4, 4, 17, 30])
    for _ in range(2):
        # the passes by which the head is found are of both modes, and of the first audit alone
        modes.clear()
        unsum.audit(net, data, train=train, label_rule="llg*", batch_size_known=True, ceiling=False)
    assert len(modes) > 10  # the client's pass, the probes, the features to compare with
    # the first pass checks the shape of inputs, as a deployed model reads them
    assert set(modes[1:]) == {train}
    assert net.training


def test_features_of_a_picture_that_was_guessed_are_no_leak() -> None:
    """Untrained networks give any two pictures similar features: one step of matching from noise
    has found nothing."""
    how = {"batch": 1, "image_size": 64, "train": False, "batch_size_known": True}
    result = unsum.audit("torchvision:resnet18", attack="ig:steps=1", **how)
    assert result.leak.pictures_first
    assert result.rows[0].leakage < 0.2


def test_buffers_that_are_sent_along_are_named_in_the_report() -> None:
    torch.manual_seed(0)
    layers = (
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(400, 20),
    )
    model, data = (
        torch.nn.Sequential(*layers),
        (embedded_batch(3, image_size=12).images, torch.tensor([4, 4, 1])),
    )
    sent = unsum.audit(model, data, buffers=True, compare=True)
    told = "statistics of 1 layers were sent along: the batch's mean and variance of 4 channels"
    assert any(told in note for note in sent.leak.notes)
    assert "sent along" in render(sent)
    assert "leave the buffers as they are" in sent.comparison.absent
    assert not any("sent along" in note for note in unsum.audit(model, data).leak.notes)
    with pytest.raises(unsum.UnsumError, match="one step on photos"):
        unsum.audit(model, data, buffers=True, local_steps=2)
