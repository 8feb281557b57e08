"""Every check: what it says where all is well, and that it speaks up where it should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models import resnet18

import unsum
from support.material import pictures, small_net
from support.vision_transformers import torchvision_vit
from unsum import Update
from unsum.audit.report import glossary, pictured
from unsum.doctor import network
from unsum.models import load_model


def marks(findings: list[unsum.Finding]) -> dict[str, str]:
    assert len({f.check for f in findings}) == len(findings)
    return {f.check: f.mark for f in findings}


def sentence(findings: list[unsum.Finding], check: str) -> str:
    return next(f.sentence for f in findings if f.check == check)


def sent(net: nn.Module, *defenses: unsum.Clip, count: int = 5) -> Update:
    return unsum.capture(net, pictures(count), torch.arange(count) % 4, defenses=defenses)


def sized(net: nn.Module) -> nn.Module:
    net.image_size = 16
    return net


def test_a_healthy_model_and_batch() -> None:
    net = sized(small_net(batch_norm=False))
    findings = unsum.doctor(net, (pictures(5), torch.tensor([1, 1, 2, 3, 4])), train=False)
    found = marks(findings)
    assert "will not work" not in found.values()
    assert [check for check, mark in found.items() if mark == "warning"] == ["inverse"]
    assert "'5': 40 classes, 128 features" in sentence(findings, "head")
    assert "at most 39" in sentence(findings, "batch size")
    assert "2 samples share a label" in sentence(findings, "labels")


def test_the_default_has_an_inverse_and_a_map() -> None:
    findings = unsum.doctor(batch=3)
    assert "128 × 16 × 16" in sentence(findings, "features")
    assert marks(findings)["inverse"] == "ok"
    assert marks(findings)["BatchNorm"] == "warning"


def test_a_model_without_a_head_ends_the_examination() -> None:
    findings = unsum.doctor(
        nn.Sequential(nn.Conv2d(3, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    )
    assert marks(findings) == {
        "loading": "ok",
        "imprint": "ok",
        "traps": "ok",
        "head": "will not work",
    }
    assert "has no linear head" in sentence(findings, "head")


def test_what_the_network_itself_tells() -> None:
    net = small_net(bias=False)
    net = sized(
        nn.Sequential(
            *net[:3],
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.4),
            nn.Linear(32, 9, bias=False),
        )
    )
    found = marks(unsum.doctor(net))
    for check in ("bias", "features", "BatchNorm", "dropout"):
        assert found[check] == "warning", check
    relaxed = marks(unsum.doctor(net, train=False))
    assert relaxed["BatchNorm"] == relaxed["dropout"] == "ok"
    net[6].weight.requires_grad_(False)
    net.to(torch.bfloat16)
    with torch.no_grad():
        net[0].bias[1] = float("nan")
    found = marks(unsum.doctor(net))
    assert found["training"] == found["weights"] == "will not work"
    assert found["precision"] == "warning"


def test_pictures_of_the_wrong_size_are_noticed() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10))
    net.image_size = 20
    assert marks(unsum.doctor(net))["features"] == "will not work"


def test_a_batch_too_large_is_one_that_the_solver_is_unsure_of() -> None:
    net = sized(small_net(classes=6, batch_norm=False))
    data = pictures(9), torch.arange(9) % 6
    found = marks(unsum.doctor(net, data, train=False))
    assert found["batch size"] == "warning"
    assert not unsum.separate(net, unsum.capture(net, *data, train=False), labels=data[1]).exact
    assert marks(unsum.doctor(net, batch=5))["batch size"] == "ok"


def test_labels_outside_and_copies() -> None:
    net = sized(small_net(classes=6))
    images = pictures(3)
    images[2] = images[0]
    found = marks(unsum.doctor(net, (images, torch.tensor([0, 1, 6]))))
    assert found["labels"] == "will not work"
    assert found["pictures"] == "warning"


def test_an_honest_update_passes() -> None:
    net = sized(small_net())
    findings = unsum.doctor(net, update=sent(net))
    found = marks(findings)
    assert all(
        found[check] == "ok"
        for check in ("names", "head's gradient", "quantization", "transport", "scale", "rank")
    )
    assert "a sum over 5 samples" in sentence(findings, "rank")


@pytest.mark.parametrize(
    ("defense", "check", "part"),
    [
        (unsum.Sign(), "quantization", "only signs"),
        (unsum.Quantize(4), "quantization", "looks quantized"),
        (unsum.Prune(0.9), "zeros", "looks pruned"),
        (unsum.Float16(), "transport", "float16"),
        (unsum.BFloat16(), "transport", "bfloat16"),
        (unsum.Clip(0.05), "scale", "looks clipped"),
        (unsum.Noise(0.1), "rank", "or noise"),
        (unsum.DropBias(), "head's gradient", "lacks '5.bias'"),
    ],
)
def test_defenses_are_recognized(defense: unsum.Clip, check: str, part: str) -> None:
    net = sized(small_net())
    findings = unsum.doctor(net, update=sent(net, defense))
    assert marks(findings)[check] == "warning"
    assert part in sentence(findings, check)


def test_an_update_without_what_is_needed() -> None:
    net = sized(small_net())
    found = marks(unsum.doctor(net, update=sent(net, unsum.DropHead())))
    assert found["head's gradient"] == "will not work"
    assert "rank" not in found
    zero = sent(net).map(lambda _name, g: 0 * g)
    found = marks(unsum.doctor(net, update=zero))
    assert found["zeros"] == found["head's gradient"] == "will not work"
    broken = sent(net).map(lambda _name, g: g * float("nan"))
    findings = unsum.doctor(net, update=broken)
    assert "holds NaN or Inf" in sentence(findings, "names")
    strange = Update({"5.weigth": torch.ones(40, 128)})
    assert "did you mean '5.weight'" in sentence(unsum.doctor(net, update=strange), "names")


def test_files_and_names_of_models(tmp_path: Path) -> None:
    net = unsum.models.load_model("timm:test_resnet", classes=7).model
    gradients = unsum.capture(net, torch.rand(2, 3, 64, 64), torch.tensor([1, 5])).gradients
    np.savez(tmp_path / "client.npz", *(g.numpy() for g in gradients.values()))
    findings = unsum.doctor("timm:test_resnet", update=tmp_path / "client.npz")
    assert "7 classes" in sentence(findings, "head")
    assert marks(findings)["names"] == "warning"
    assert "give --weights" in sentence(findings, "loading")
    assert "a sum over 2 samples" in sentence(findings, "rank")


def test_what_cannot_be_loaded_is_the_only_finding() -> None:
    findings = unsum.doctor("torchvision:resnet81")
    assert marks(findings) == {"loading": "will not work"}
    assert "did you mean 'resnet18'" in findings[0].sentence
    both = unsum.doctor(small_net(), (pictures(1), torch.tensor([0])), update="client.npz")
    assert "one at a time" in both[0].sentence


def test_memory_is_compared_with_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    assert network.needed_bytes(100, 32768) == 8 * (3 * 100**2 + 2 * 100 * 32868 + 2 * 3_276_800)
    assert network.needed_bytes(1000, 10) == 8 * (3 * 100 + 2 * 10 * 1010 + 3 * 10_000)
    net = sized(small_net())
    assert marks(unsum.doctor(net))["memory"] == "ok"
    weights = sum(4 * one.numel() for one in net.parameters())
    # the layers below the head take more than the head
    assert 1000 < network.needed_bytes(10, 10) < 20 * weights
    monkeypatch.setattr(network, "free_bytes", lambda _device: 20 * weights)
    assert marks(unsum.doctor(net))["memory"] == "warning"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", [True, False])
def test_an_exported_model_keeps_the_mode_it_was_exported_in(tmp_path: Path, mode: bool) -> None:
    batch = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(small_net().train(mode), (pictures(3),), dynamic_shapes=batch)
    torch.export.save(program, tmp_path / "net.pt2")
    findings = unsum.doctor(str(tmp_path / "net.pt2"), classes=40)
    assert marks(findings)["BatchNorm"] == ("ok" if mode else "warning")
    assert f"{'train' if mode else 'eval'} mode, whatever is asked for" in sentence(
        findings, "BatchNorm"
    )


def test_depth_counts_places_against_channels() -> None:
    model = resnet18(num_classes=10)
    mark, told = network.depth(model, 2, 64)
    assert mark == "warning"
    assert "down to what 'layer1.0.conv1' reads" in told
    assert "a batch of at most" in network.depth(model, 40, 64)[1]
    mark, told = network.depth(model, 200, 64)
    assert mark == "ok"
    assert "800 places" in told
    assert "up to 127 samples" in told
    assert network.depth(nn.Linear(3, 2), 2, 64)[0] == "ok"


def test_tokens_are_counted_against_channels() -> None:
    said = {
        B: next(f for f in unsum.doctor(torchvision_vit(), batch=B) if f.check == "tokens")
        for B in (1, 2, 4, 6)
    }
    assert "One picture of 16 patches in 96 channels" in said[1].sentence
    assert said[1].mark == "warning"
    assert "2 pictures have 34 tokens" in said[2].sentence
    assert "the pictures come back" in said[2].sentence
    assert "4 pictures have 68 tokens" in said[4].sentence
    assert "crowded" in said[4].sentence
    assert said[4].mark == "warning"
    assert "6 pictures have 102 tokens" in said[6].sentence
    assert "up to 5 pictures they may be" in said[6].sentence
    assert said[6].mark == "ok"


def test_the_depth_of_the_default_is_counted_in_its_own_layers() -> None:
    """128 channels against 16 places of a photo of 32²: seven photos have 112, eight 128."""
    model = load_model("default", classes=100, seed=0, size=32).model
    mark, told = network.depth(model, 7, 32)
    assert mark == "warning"
    assert "tell every sample's map" in told
    mark, told = network.depth(model, 8, 32)
    assert mark == "ok"
    assert "8 samples have 128 places in the maps that 'backbone.6.body.0' reads" in told
    assert "128 channels" in told
    assert told.endswith("up to 7 samples they would.")


def test_sequences_are_no_pictures() -> None:
    class Sequences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.head = nn.GRU(6, 16, batch_first=True), nn.Linear(16, 12)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.read(x)[0][:, -1])

    torch.manual_seed(0)
    findings = unsum.doctor(Sequences(), (torch.randn(3, 20, 6), torch.tensor([1, 2, 3])))
    assert "will not work" not in {finding.mark for finding in findings}
    said = " ".join(f"{finding.check} {finding.sentence}" for finding in findings)
    assert "picture" not in said
    assert "train-inverse" not in said
    assert "3 different samples." in said
    report = unsum.audit(Sequences(), (torch.randn(3, 20, 6), torch.tensor([1, 2, 3])))
    assert not any("train-inverse" in note for note in report.leak.notes)
    assert {"PSNR", "SSIM", "LPIPS"}.isdisjoint(
        word for word, _ in glossary(pictures=pictured(report))
    )
