"""Train the weights that ship with unsum: the default backbone, then its inverse.

    python scripts/train_embedded.py --photos train.tar [--photos more.tar …] \\
        --labeled tenclasses.tar \\
        --held-out test.tar --out FOLDER

A tar holds JPEGs named CLASS/anything.jpg or CLASS_anything.jpg; folders and npz files do as well.
The backbone learns to classify the `--labeled` photos (a tenth held out for its accuracy); the
inverse learns photos from features on all of them and all `--photos`. Neither sees `--held-out`,
which is only scored, nor the photos embedded in the package. Runs on a GPU if there is one (seven
minutes on an H200), else on the CPU (most of a day). What draws uncertain features is added to the
inverse by `unsum train-inverse --noise only` (docs/embedded-weights.md).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from unsum.data import read_photos
from unsum.invert import Inverse
from unsum.invert.decoder import Decoder
from unsum.invert.layout import Layout
from unsum.models.built import backbone_fingerprint
from unsum.models.client_batches import ClientFeatures, sharing
from unsum.models.small_resnet import FEATURE_SHAPE, INPUT_SIZE, SmallResNet

STORED_SIZE = 160  # photos are kept a little larger than the input, for random crops
# (width, residual blocks) before each doubling of the side
DECODER_STAGES = ((256, 2), (160, 2), (80, 1))
# (client batch size, share of the steps); 0 stands for eval mode. A client's batch decides its
# BatchNorm statistics.
CLIENT_SIZES = ((8, 0.5), (16, 0.25), (4, 0.15), (0, 0.1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--photos",
        type=Path,
        action="append",
        required=True,
        help="tar of training photos, repeatable",
    )
    parser.add_argument(
        "--labeled",
        type=Path,
        required=True,
        help="tar of photos whose classes the backbone learns",
    )
    parser.add_argument(
        "--held-out", type=Path, required=True, help="tar of photos that are only scored"
    )
    parser.add_argument("--backbone-epochs", type=int, default=120)
    parser.add_argument("--inverse-steps", type=int, default=40_000)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the two weight files and their cards"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options.out.mkdir(parents=True, exist_ok=True)

    labeled = read_photos(options.labeled, size=STORED_SIZE)
    model, accuracy = train_backbone(
        labeled.images.to(device), labeled.labels.to(device), options.backbone_epochs
    )
    save_backbone(model, options.out, {"accuracy": round(accuracy, 4)} | labeled.card)

    photos = read_photos([options.labeled, *options.photos], size=STORED_SIZE)
    held_out = read_photos(options.held_out, size=STORED_SIZE).images.to(device)
    inverse, psnr = train_inverse(model, photos.images.to(device), held_out, options.inverse_steps)
    card = {"steps": options.inverse_steps, "held_out_psnr_batch_8": round(psnr, 2)} | photos.card
    save_inverse(inverse, model, options.out, card)


def augment(photos: Tensor, smallest: float) -> Tensor:
    """(B, 3, 128, 128) in [0, 1]: a random crop of at least `smallest` of the side, flipped half of
    the time."""
    B = len(photos)
    scale = torch.empty(B, device=photos.device).uniform_(smallest, 1)
    shift = (torch.rand(B, 2, device=photos.device) * 2 - 1) * (1 - scale[:, None])
    flip = torch.where(torch.rand(B, device=photos.device) < 0.5, -1.0, 1.0)
    theta = torch.zeros(B, 2, 3, device=photos.device)
    theta[:, 0, 0], theta[:, 1, 1], theta[:, :, 2] = scale * flip, scale, shift
    grid = F.affine_grid(theta, [B, 3, INPUT_SIZE, INPUT_SIZE], align_corners=False)
    return F.grid_sample(
        photos.float() / 255, grid, padding_mode="reflection", align_corners=False
    ).clamp_(0, 1)


def centered(photos: Tensor) -> Tensor:
    return F.interpolate(photos.float() / 255, INPUT_SIZE, mode="bilinear", antialias=True).clamp_(
        0, 1
    )


def one_cycle(
    optimizer: torch.optim.Optimizer, rate: float, steps: int
) -> torch.optim.lr_scheduler.OneCycleLR:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)


def train_backbone(
    photos: Tensor, classes: Tensor, epochs: int, batch: int = 64
) -> tuple[SmallResNet, float]:
    """An ordinary classifier: cross-entropy, SGD with momentum, crops and flips. Nothing in it
    favors inversion."""
    device = photos.device
    order = torch.randperm(len(photos), device=device)
    test, train = order[: len(order) // 10], order[len(order) // 10 :]
    model = SmallResNet(int(classes.max()) + 1).to(device, memory_format=torch.channels_last)
    # 32 768 inputs: a random head would drown the backbone's first steps
    nn.init.zeros_(model.head.weight)
    optimizer = torch.optim.SGD(
        model.parameters(), 0.02, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    steps = epochs * (len(train) // batch)
    schedule = one_cycle(optimizer, 0.05, steps)
    dropout = nn.Dropout(0.5)
    for step in range(steps):
        chosen = train[torch.randint(len(train), (batch,), device=device)]
        features = model.backbone(augment(photos[chosen], 0.4)).flatten(1)
        loss = F.cross_entropy(model.head(dropout(features)), classes[chosen], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 500 == 0:
            print(f"backbone {step}/{steps} loss {loss.item():.3f}", flush=True)
    model.eval()
    with torch.no_grad():
        accuracy = float((model(centered(photos[test])).argmax(1) == classes[test]).double().mean())
    print(f"backbone: {accuracy:.1%} of {len(test)} held-out photos", flush=True)
    return model, accuracy


def train_inverse(
    model: SmallResNet, photos: Tensor, held_out: Tensor, steps: int, batch: int = 128
) -> tuple[Decoder, float]:
    """Mean squared error plus a little L1, Adam, an average of the weights over the last steps."""
    backbone = ClientFeatures(model)
    layout = Layout("map", FEATURE_SHAPE)
    decoder = Decoder(layout, INPUT_SIZE, DECODER_STAGES, stem=3, patch=2, compress=False)
    decoder = decoder.to(photos.device, memory_format=torch.channels_last)
    average = torch.optim.swa_utils.AveragedModel(
        decoder, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)
    )
    optimizer = torch.optim.AdamW(decoder.parameters(), 6e-4, weight_decay=1e-3, betas=(0.9, 0.99))
    schedule = one_cycle(optimizer, 6e-4, steps)
    sizes, shares = (
        torch.tensor([s for s, _ in CLIENT_SIZES]),
        torch.tensor([p for _, p in CLIENT_SIZES]),
    )
    run = torch.compile(decoder) if photos.is_cuda else decoder
    started = time.time()
    for step in range(steps):
        images = augment(photos[torch.randint(len(photos), (batch,), device=photos.device)], 0.5)
        features = client_features(backbone, images, int(sizes[torch.multinomial(shares, 1)]))
        with torch.autocast(photos.device.type, torch.bfloat16):
            guess = run(features).float()
        loss = F.mse_loss(guess, images) + 0.05 * F.l1_loss(guess, images)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update_parameters(decoder)
        if step % 1000 == 0 or step == steps - 1:
            psnr = held_out_psnr(average.module, backbone, held_out)
            print(
                (
                    f"inverse {step}/{steps} loss {loss.item():.4f} held-out {psnr:.2f} dB "
                    f"{time.time() - started:.0f} s"
                ),
                flush=True,
            )
    return average.module, psnr


def client_features(backbone: ClientFeatures, images: Tensor, size: int) -> Tensor:
    """(B, H) what the head would see if `images` were consecutive batches of `size` (0: eval
    mode)."""
    together = sharing(len(images), size, size).to(images.device) if size else None
    with torch.no_grad():
        return backbone(images, together)


@torch.no_grad()
def held_out_psnr(
    decoder: nn.Module, backbone: ClientFeatures, photos: Tensor, size: int = 8
) -> float:
    """Mean over photos of 10 log10(1 / MSE), each photo in a client batch of eight."""
    values = []
    for chunk in photos[: len(photos) // size * size].split(size * 32):
        images = centered(chunk)
        error = (
            (decoder(client_features(backbone, images, size)) - images).square().flatten(1).mean(1)
        )
        values.append(-10 * error.log10())
    return float(torch.cat(values).mean())


def save_backbone(model: SmallResNet, folder: Path, card: dict[str, object]) -> None:
    """Float16 halves the file; the model itself takes the rounded weights, so that the inverse
    learns what ships."""
    weights = {
        name: w.half() if w.is_floating_point() else w
        for name, w in model.backbone.state_dict().items()
    }
    model.backbone.load_state_dict(
        {name: w.float() if w.is_floating_point() else w for name, w in weights.items()}
    )
    save_file(
        {n: w.cpu().contiguous() for n, w in weights.items()},
        folder / "default-backbone.safetensors",
        {"card": json.dumps(card)},
    )


def save_inverse(
    inverse: Decoder, model: SmallResNet, folder: Path, card: dict[str, object]
) -> None:
    card |= {
        "backbone": backbone_fingerprint(model),
        "architecture": "decoder",
        "size": INPUT_SIZE,
        "layout": {"kind": inverse.layout.kind, "shape": inverse.layout.shape},
        "settings": inverse.settings,
    }
    Inverse(inverse, card).save(folder / "default-inverse.safetensors")


if __name__ == "__main__":
    main()
