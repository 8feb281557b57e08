"""An inverse of one layer, learned for a moment on other photos: what pictures a decoder draws of features or maps.

`unsum train-inverse` does the same for hours, with Lightning and augmentations; this one needs nothing but torch.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from unsum.invert.decoder import Decoder
from unsum.invert.layout import feature_layout
from unsum.invert.losses import negative_psnr
from unsum.models.client_batches import ClientFeatures, sharing

BATCH, RATE = 256, 1e-3
WARM_UP = 100  # steps


def learn(
    model: nn.Module,
    photos: Tensor,
    layer: str | None,
    client: int | None,
    *,
    seconds: float,
    mean: float,
    spread: float,
) -> Decoder:
    """The decoder of what `layer` (None: the head) reads of photos (n, 3, s, s) in [0, 1], by clients of so many; None: eval."""
    size, device = photos.shape[-1], photos.device
    torch.manual_seed(0)
    backbone = ClientFeatures(model, layer).to(device)
    decoder = Decoder(feature_layout(model, size, layer), size).to(device).train()
    optimizer = torch.optim.AdamW(decoder.parameters(), RATE, betas=(0.9, 0.98), weight_decay=0.05)
    drawn = BATCH - BATCH % (client or 1)
    together = None if client is None else sharing(drawn, client, client).to(device)
    begun, step = time.monotonic(), 0
    while (done := (time.monotonic() - begun) / seconds) < 1:
        chosen = photos[torch.randint(len(photos), (drawn,), device=device)]
        chosen = torch.where(torch.rand(drawn, 1, 1, 1, device=device) < 0.5, chosen, chosen.flip(3))
        with torch.no_grad():
            features = backbone((chosen - mean) / spread, together)
        if step == 0:
            decoder.calibrate(features)
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARM_UP) * (1 - done)
        optimizer.zero_grad()
        negative_psnr(decoder(features), chosen).backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        step += 1
    return decoder.eval()
