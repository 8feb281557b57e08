"""What a reader of the README has at hand, under the very names that its commands use, made
small."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import tarfile
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file

import unsum
from support import lenet, pages
from support.text_folder import LINES, save_language_model
from unsum.invert import Inverse
from unsum.invert.decoder import Decoder
from unsum.invert.layout import Layout
from unsum.models import load_model
from unsum.models.built import backbone_fingerprint

CLASSES, PER_CLASS, SIDE = 20, 2, 40
LABELS = [3, 3, 11, 17]  # of the client whose update was captured
NET = """
from torch import nn

def build(num_classes):
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(512, num_classes))
    model.image_size = 32
    return model

class Net(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.down = nn.Conv2d(3, 4, 3, 2, 1)
        self.up = nn.ConvTranspose2d(4, outputs, 2, 2)
        self.beside = nn.Conv2d(3, outputs, 1)

    def forward(self, x):
        return self.up(self.down(x).relu()) + self.beside(x)

def unet():
    return Net(4)

def depth():
    return Net(1)
"""
# torchvision compares CIFAR-10's files with its checksums; ours have the same form and other
# pictures.
BEFORE = {
    "torchvision:CIFAR10": (
        "import torchvision\ntorchvision.datasets.cifar.check_integrity = lambda *_: True"
    )
}


def prepare(folder: Path) -> None:
    """All files; `link` gives a command those that it names."""
    folder.mkdir()
    (folder / "net.py").write_text(NET)
    shutil.copytree(pages.ROOT / "examples", folder / "examples")
    pictures = np.random.default_rng(0).integers(
        0, 256, (CLASSES * PER_CLASS, SIDE, SIDE, 3), dtype=np.uint8
    )
    numbers = np.arange(len(pictures)) % CLASSES
    _photos(folder, pictures, numbers)
    np.savez(folder / "my-pictures.npz", images=pictures.repeat(4, 0), labels=numbers.repeat(4) % 5)
    small = pictures[:4].transpose(0, 3, 1, 2)[..., :16, :16] / np.float32(255)
    np.savez(folder / "masks.npz", images=small, targets=np.arange(4 * 256).reshape(4, 16, 16) % 4)
    np.savez(folder / "depth.npz", images=small, targets=small.mean(1, keepdims=True))
    _cifar(folder / "datasets" / "cifar-10-batches-py")
    _round(folder)
    _hugging_face(folder / "my-vit")
    save_language_model(folder / "folder")
    (folder / "texts.txt").write_text("\n".join(LINES))
    people = [
        f"{30 + 7 * i % 40},{['clerk', 'nurse', 'driver'][i % 3]},{['high', 'low'][i % 5 % 2]}"
        for i in range(40)
    ]
    (folder / "people.csv").write_text("\n".join(["age,job,income", *people]) + "\n")
    _resnets(folder)
    _lenet(folder)


def link(prepared: Path, folder: Path, command: str) -> None:
    """Into `folder`, what the command names; some names mean one thing in one command and another
    in the next."""
    folder.mkdir()
    for entry in prepared.iterdir():
        name, _, only = entry.name.partition("@")
        if name in command and (not only or only in command):
            (folder / name).symlink_to(entry)
    if " train-inverse " in command:
        for written in ("inverse", "lenet-inverse"):  # what it writes, not what it reads
            (folder / written).unlink(missing_ok=True)


def _photos(folder: Path, pictures: np.ndarray, numbers: np.ndarray) -> None:
    names = ("more.tar", "photos.tar", "shard-0000.tar")
    more, photos, shard = (tarfile.open(folder / name, "w") for name in names)  # noqa: SIM115 (closed below)
    for i, (picture, number) in enumerate(zip(pictures, numbers, strict=True)):
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, format="PNG")
        place = folder / "photos" / f"class-{number:02}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i}.png").write_bytes(buffer.getvalue())
        _add(more, f"class-{number:02}/{i}.png", buffer.getvalue())
        _add(photos, f"class-{number:02}/{i}.png", buffer.getvalue())
        _add(shard, f"{i:04}.png", buffer.getvalue())
        _add(shard, f"{i:04}.cls", str(number).encode())
    for tar in (more, photos, shard):
        tar.close()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _cifar(folder: Path) -> None:
    folder.mkdir(parents=True)
    generator = np.random.default_rng(1)
    for part in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        data = generator.integers(0, 256, (20, 3072), dtype=np.uint8)
        (folder / part).write_bytes(
            pickle.dumps({"data": data, "labels": [i % 10 for i in range(20)]})
        )
    (folder / "batches.meta").write_bytes(
        pickle.dumps({"label_names": [f"thing {i}" for i in range(10)]})
    )


def _round(folder: Path) -> None:
    """One round of net.py: the weights that the server sent, and what a client of four samples
    answered, in every form."""
    model = load_model(f"{folder / 'net.py'}:build", classes=CLASSES, seed=5).model
    sent = {name: value.detach().clone() for name, value in model.state_dict().items()}
    for name in ("trained.safetensors", "sent.safetensors"):
        save_file(sent, folder / name)
    torch.save(sent, folder / "sent.pt")
    images = torch.rand(len(LABELS), 3, 32, 32, generator=torch.Generator().manual_seed(2))
    update = unsum.capture(model, images, torch.tensor(LABELS))
    update.save(folder / "client.safetensors")
    gradients = {name: gradient.numpy() for name, gradient in update.gradients.items()}
    np.savez(folder / "gradients.npz", **gradients)
    (folder / "gradients.npz").rename(folder / "client.npz@--update")
    np.savez(folder / "round-4.npz", **{name: value.numpy() for name, value in sent.items()})
    np.savez(
        folder / "after.npz",
        **{name: value.numpy() - 0.1 * gradients[name] for name, value in sent.items()},
    )
    (folder / "after.npz").rename(folder / "client.npz@--after")


def _hugging_face(folder: Path) -> None:
    import transformers

    settings = transformers.ViTConfig(
        hidden_size=48, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=4,
        num_labels=CLASSES,
    )  # fmt: skip
    transformers.ViTForImageClassification(settings).save_pretrained(folder)
    normalized = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25]}
    (folder / "preprocessor_config.json").write_text(json.dumps(normalized))


def _resnets(folder: Path) -> None:
    """Random weights where trained ones would be, and an inverse that has learned nothing: the
    commands are what is tried."""
    checkpoints = folder / "torch-home" / "hub" / "checkpoints"
    checkpoints.mkdir(parents=True)
    torch.save(torchvision.models.resnet18().state_dict(), checkpoints / "resnet18-f37072fd.pth")
    save_file(torchvision.models.resnet50().state_dict(), folder / "resnet50.safetensors")
    spec, weights = (
        f"{folder / 'examples' / 'resnet50_v1.py'}:unpooled",
        folder / "resnet50.safetensors",
    )
    model = load_model(spec, classes=2, weights=weights, fresh_head=True).model
    decoder = Decoder(Layout("map", (2048, 7, 7)), 224, ((16, 1), (16, 1), (8, 1), (8, 1), (8, 1)))
    card = {
        "backbone": backbone_fingerprint(model), "architecture": "decoder", "size": 224, "photos": 40,
        "layout": {"kind": "map", "shape": [2048, 7, 7]}, "settings": decoder.settings,
    }  # fmt: skip
    (folder / "inverse").mkdir()
    Inverse(decoder, card).save(folder / "inverse" / "inverse.safetensors")


def _lenet(folder: Path) -> None:
    """Photos in ten classes, and an inverse of the first dense layer that has learned nothing."""
    lenet.write_crops(folder / "cifar10-test")
    model = load_model(f"{folder / 'examples' / 'lenet.py'}:build", classes=10).model
    decoder = Decoder(Layout("map", (16, 5, 5)), 32)
    card = {
        "backbone": backbone_fingerprint(model), "architecture": "decoder", "size": 32, "photos": 40, "layer": "fc1",
        "layout": decoder.layout.card, "settings": decoder.settings,
    }  # fmt: skip
    (folder / "lenet-inverse").mkdir()
    Inverse(decoder, card).save(folder / "lenet-inverse" / "inverse.safetensors")


def environment(prepared: Path) -> dict[str, str]:
    return {"TORCH_HOME": str(prepared / "torch-home"), "BROWSER": "true", "COLUMNS": "200"} | {
        name: os.environ[name] for name in ("OMP_NUM_THREADS",) if name in os.environ
    }
