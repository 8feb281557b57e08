"""Models from elsewhere: published weights, timm, Hugging Face folders, exported programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn

import unsum
from unsum import UnsumError
from unsum.head import collect_features, find_head
from unsum.models import load_model
from unsum.models.built import Normalize

SMALL = "shufflenet_v2_x0_5"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    return tmp_path / "checkpoints"


def leaks(model: nn.Module, size: int, targets: list[int]) -> None:
    """Gradients flow, and the exact solver reads the head: labels and features come back."""
    torch.manual_seed(0)
    images = torch.rand(len(targets), 3, size, size)
    leak = unsum.separate(model, unsum.capture(model, images, torch.tensor(targets), train=False))
    assert sorted(leak.labels.tolist()) == sorted(targets)
    features = collect_features(model.eval(), images).double()
    nearest = torch.cdist(features, leak.features.double()).min(1).values / features.norm(dim=1)
    assert float(nearest.max()) < 1e-2


def published(hub: Path) -> dict[str, Tensor]:
    """A file such as torchvision would have fetched."""
    state: dict[str, Tensor] = torchvision.models.get_model(SMALL).state_dict()
    hub.mkdir()
    torch.save(state, hub / Path(torchvision.models.get_model_weights(SMALL).DEFAULT.url).name)
    return state


def test_published_weights_come_from_disk_alone(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.hub, "download_url_to_file", lambda *_, **__: pytest.fail("it went to the network")
    )
    with pytest.raises(
        UnsumError,
        match=r"not on this disk; put 'shufflenetv2_x0.5-.*pth' into .*, or add --download",
    ):
        load_model(f"torchvision:{SMALL}:IMAGENET1K_V1", classes=10)
    state = published(hub)
    whole = load_model(f"torchvision:{SMALL}:DEFAULT", classes=1000)
    assert all(torch.equal(value, state[name]) for name, value in whole.model.state_dict().items())
    assert whole.name == f"torchvision {SMALL}, weights IMAGENET1K_V1, 224²"
    kept = load_model(f"torchvision:{SMALL}:IMAGENET1K_V1", classes=10)
    assert kept.trained_head
    # never replaced unasked
    assert torch.equal(find_head(kept.model)[1].weight, state["fc.weight"])
    other = load_model(f"torchvision:{SMALL}:IMAGENET1K_V1", classes=10, seed=3, fresh_head=True)
    assert other.name == f"torchvision {SMALL}, weights IMAGENET1K_V1 under a fresh head, 224²"
    assert find_head(other.model)[1].out_features == 10
    assert torch.equal(other.model.conv1[0].weight, state["conv1.0.weight"])
    again = load_model(f"torchvision:{SMALL}:IMAGENET1K_V1", classes=10, seed=3, fresh_head=True)
    assert torch.equal(find_head(other.model)[1].weight, find_head(again.model)[1].weight)


def test_published_weights_see_normalized_photos(hub: Path) -> None:
    published(hub)
    loaded = load_model(f"torchvision:{SMALL}:DEFAULT", classes=1000).model.eval()
    plain = torchvision.models.get_model(SMALL, weights="DEFAULT").eval()
    images = torch.rand(2, 3, 64, 64)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(
        loaded(images), plain((images - mean.view(3, 1, 1)) / std.view(3, 1, 1))
    )


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            f"torchvision:{SMALL}:IMAGENET",
            "There is no set of weights for shufflenet_v2_x0_5 'IMAGENET'; known: DEFAULT",
        ),
        ("timm:resnet81", "There is no timm model 'resnet81'"),
        ("hf:absent", "'absent' is no folder written by save_pretrained"),
        ("absent.pt2", r"There is no file 'absent.pt2'"),
        (
            "scripted.pt",
            r"'scripted.pt' would have to be TorchScript, .* export the model with torch.export",
        ),
    ],
)
def test_what_is_not_there_is_named(spec: str, sentence: str) -> None:
    with pytest.raises(UnsumError, match=sentence):
        load_model(spec, classes=10)


def test_damaged_published_weights_are_named(hub: Path) -> None:
    published(hub)
    next(hub.iterdir()).write_bytes(b"no")
    with pytest.raises(UnsumError, match="cannot be loaded"):
        load_model(f"torchvision:{SMALL}:DEFAULT", classes=10)


def test_timm_models_are_built_without_weights_and_filled_from_a_file(tmp_path: Path) -> None:
    loaded = load_model("timm:test_resnet", classes=12, seed=1)
    assert (loaded.name, loaded.image_size) == ("timm test_resnet, random weights, 160²", 160)
    leaks(loaded.model, 64, [3, 3, 11])
    torch.save(
        load_model("timm:test_resnet", classes=12, seed=2).model.state_dict(),
        tmp_path / "trained.pt",
    )
    filled = load_model("timm:test_resnet", classes=12, weights=tmp_path / "trained.pt")
    assert filled.name == "timm test_resnet, weights of trained.pt, 160²"


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tiny classifiers as save_pretrained writes them, one with an image processor's
    settings."""
    import transformers

    folder = tmp_path_factory.mktemp("classifiers")
    torch.manual_seed(0)
    vit = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        image_size=16, patch_size=4, num_labels=9,
    )  # fmt: skip
    transformers.ViTForImageClassification(vit).save_pretrained(folder / "vit")
    settings = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25]}
    (folder / "vit" / "preprocessor_config.json").write_text(json.dumps(settings))
    resnet = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=9
    )
    transformers.ResNetForImageClassification(resnet).save_pretrained(folder / "resnet")
    return folder


@pytest.mark.parametrize(
    ("name", "size", "head"), [("vit", 16, "classifier"), ("resnet", 224, "classifier.1")]
)
def test_hugging_face_folders(classifiers: Path, name: str, size: int, head: str) -> None:
    loaded = load_model(f"hf:{classifiers / name}", classes=9)
    assert loaded.image_size == size
    assert "ForImageClassification of" in loaded.name
    assert find_head(loaded.model)[0] == head
    leaks(loaded.model, min(size, 64), [2, 2, 8])


def test_a_hugging_face_model_keeps_its_names_weights_and_normalization(classifiers: Path) -> None:
    import transformers

    plain = transformers.ViTForImageClassification.from_pretrained(classifiers / "vit").eval()
    loaded = load_model(f"hf:{classifiers / 'vit'}", classes=4).model.eval()
    assert [n for n, _ in loaded.named_parameters()] == [n for n, _ in plain.named_parameters()]
    images = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(loaded(images), plain((images - 0.5) / 0.25).logits)
    assert find_head(load_model(f"hf:{classifiers / 'vit'}", classes=20).model)[1].out_features == 9
    larger = load_model(f"hf:{classifiers / 'vit'}", classes=20, fresh_head=True)
    assert find_head(larger.model)[1].out_features == 20
    assert "under a fresh head" in larger.name


def test_a_hugging_face_folder_without_a_head_gets_a_fresh_one_by_seed(
    classifiers: Path, tmp_path: Path
) -> None:
    import transformers

    whole = transformers.ViTForImageClassification.from_pretrained(classifiers / "vit")
    whole.vit.save_pretrained(tmp_path)
    first, same, other = (
        load_model(f"hf:{tmp_path}", classes=2, seed=seed, fresh_head=True) for seed in (1, 1, 2)
    )
    with pytest.raises(UnsumError, match="add --fresh-head if only its head is missing"):
        load_model(f"hf:{tmp_path}", classes=2)
    assert first.name.endswith("its own weights under a fresh head, 16²")
    assert torch.equal(first.model.classifier.weight, same.model.classifier.weight)
    assert not torch.equal(first.model.classifier.weight, other.model.classifier.weight)


def test_a_damaged_hugging_face_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UnsumError, match="cannot be loaded as an image classifier"):
        load_model(f"hf:{tmp_path}", classes=3)


def exported(path: Path, model: nn.Module, *, dynamic: bool = True) -> Path:
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    torch.export.save(
        torch.export.export(model, (torch.rand(4, 3, 16, 16),), dynamic_shapes=shapes), path
    )
    return path


def network(classes: int = 12, head: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    body = [
        nn.Conv2d(3, 8, 3, 2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    ]
    return nn.Sequential(*body, head or nn.Linear(32, classes))


@pytest.mark.filterwarnings("ignore")
def test_exported_programs_get_their_head_back(tmp_path: Path) -> None:
    model = network().eval()
    loaded = load_model(str(exported(tmp_path / "net.pt2", model)), classes=12)
    assert (loaded.name, loaded.image_size) == ("exported net.pt2, its own weights, 16²", 16)
    assert [n for n, _ in loaded.model.named_parameters()] == [
        n for n, _ in model.named_parameters()
    ]
    assert find_head(loaded.model)[0] == "5"
    images = torch.rand(3, 3, 16, 16)
    torch.testing.assert_close(loaded.model(images), model(images))
    leaks(loaded.model, 16, [5, 5, 7, 1])
    assert loaded.trained_head


@pytest.mark.filterwarnings("ignore")
def test_exported_programs_that_cannot_serve_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsumError, match="was exported for batches of 4 alone"):
        load_model(str(exported(tmp_path / "fixed.pt2", network(), dynamic=False)), classes=5)
    with pytest.raises(UnsumError, match="has no linear head"):
        load_model(str(exported(tmp_path / "headless.pt2", network(head=nn.Tanh()))), classes=5)
    (tmp_path / "text.pt2").write_text("no")
    with pytest.raises(UnsumError, match=r"'text.pt2' cannot be read as .pt2"):
        load_model(str(tmp_path / "text.pt2"), classes=5)


def test_weights_in_flowers_order_without_names(tmp_path: Path) -> None:
    state = load_model("timm:test_resnet", classes=12, seed=5).model.state_dict()
    np.savez(tmp_path / "round-1-weights.npz", *(value.numpy() for value in state.values()))
    filled = load_model(
        "timm:test_resnet", classes=12, weights=tmp_path / "round-1-weights.npz"
    ).model
    assert all(torch.equal(value, state[name]) for name, value in filled.state_dict().items())


def test_normalizing_is_the_formula() -> None:
    hook = Normalize([0.5], [0.25])
    assert torch.equal(
        hook(nn.Identity(), (torch.tensor([[[[1.0]]]]),))[0], torch.tensor([[[[2.0]]]])
    )
