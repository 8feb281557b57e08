"""ResNet-50 as it was first published, and without global pooling: a model of one's own for `unsum
audit`.

    unsum audit --model examples/resnet50_v1.py:unpooled \\
        --weights resnet50-v1.safetensors --fresh-head

torchvision's ResNet-50 is version 1.5: where a stage halves the side of its maps, the 3×3
convolution of the first block takes the step. Version 1 takes it in the 1×1 convolution before.
Both have the same parameters, so weights of one fit into the other and would give wrong features
there: `unsum` recognizes and refuses them. Weights trained as version 1 need `pooled` or `unpooled`
below; torchvision's own need `unpooled_v15`, or `torchvision:resnet50` where pooling is kept.

Gradient-inversion papers leave global pooling out: the head then sees each of the 7×7 places of the
last maps, which keeps where things are in the photo. That head is always a fresh one, whatever
weights are loaded below it. `unsum` fixes the random numbers before it calls a factory, so nothing
here does. Photos come in [0, 1], without normalization.
"""

from __future__ import annotations

from torch import nn
from torchvision.models import ResNet, resnet50


def pooled(num_classes: int = 1000) -> ResNet:
    """Version 1 with its own head: what `weights` trained on ImageNet fit entirely."""
    model = resnet50(weights=None, num_classes=num_classes)
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return model


def unpooled(num_classes: int = 1000, size: int = 224) -> ResNet:
    """Version 1 whose head reads all of the last maps, 2048 × 7 × 7 features for photos of 224²."""
    return _without_pooling(pooled(num_classes), num_classes, size)


def unpooled_v15(num_classes: int = 1000) -> ResNet:
    """The same of version 1.5, for torchvision's own weights (`resnet50-0676ba61.pth`)."""
    return _without_pooling(resnet50(weights=None, num_classes=num_classes), num_classes, 224)


def _without_pooling(model: ResNet, num_classes: int, size: int) -> ResNet:
    side = -(-size // 32)  # five times halved, rounded up each time
    model.avgpool = nn.Identity()
    model.fc = nn.Linear(2048 * side**2, num_classes)
    model.image_size = size  # where unsum looks for it
    return model


def unpooled_336(num_classes: int = 1000) -> ResNet:
    """The same for photos of 336²: 2048 × 11 × 11 features."""
    return unpooled(num_classes, 336)
