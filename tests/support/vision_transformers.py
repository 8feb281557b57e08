"""Small vision transformers of several makers, with random weights or briefly trained, and the
embedded photos for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from unsum.data import embedded_batch

SIDE, PATCH, WIDTH, CLASSES = 32, 8, 96, 10


def torchvision_vit(
    width: int = WIDTH, depth: int = 3, classes: int = CLASSES, seed: int = 0
) -> nn.Module:
    torch.manual_seed(seed)
    model = VisionTransformer(
        SIDE, PATCH, depth, 4, width, (4 if width > WIDTH else 2) * width, num_classes=classes
    )
    model.heads.head = nn.Linear(width, classes)  # torchvision's is zero
    return model.eval()


def timm_vit(**settings: Any) -> nn.Module:
    import timm

    torch.manual_seed(0)
    sizes = {
        "img_size": SIDE,
        "patch_size": PATCH,
        "embed_dim": WIDTH,
        "depth": 3,
        "num_heads": 4,
        "num_classes": CLASSES,
    }
    model = timm.create_model("vit_tiny_patch16_224", **(sizes | settings))
    model.image_size = SIDE
    return model.eval()


def hugging_face_vit(kind: str = "ViT") -> nn.Module:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=WIDTH, num_hidden_layers=3, num_attention_heads=4, intermediate_size=2 * WIDTH,
        image_size=SIDE, patch_size=PATCH, num_labels=CLASSES,
    )  # fmt: skip

    class Logits(getattr(transformers, f"{kind}ForImageClassification")):  # type: ignore[misc]
        image_size = SIDE

        def forward(self, images: Tensor) -> Tensor:
            return super().forward(pixel_values=images).logits

    return Logits(config).eval()


def photos(count: int) -> tuple[Tensor, Tensor]:
    return embedded_batch(count, image_size=SIDE).images, torch.arange(count)


def briefly_trained(model: nn.Module, steps: int = 20) -> nn.Module:
    """A model that has learned eight photos a little: norms have shifts, attention has a mind of
    its own."""
    images, labels = photos(8)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model
