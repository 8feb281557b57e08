"""Train an inverse for a backbone: photos go through the frozen backbone, a decoder learns the way
back."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError, needed, optional
from unsum.invert import checkpoint
from unsum.invert.augment import augment
from unsum.invert.decoder import DECODERS, to_size
from unsum.invert.layout import feature_layout
from unsum.invert.losses import check_loss, psnr
from unsum.invert.method import FILE, Inverse
from unsum.models.built import backbone_fingerprint
from unsum.models.client_batches import ClientFeatures, sharing

_WARM_UP = 150  # steps
_FLOOR = 1e-3  # of the learning rate, at the end of the cosine


@dataclass(frozen=True)
class Training:
    """How long and how. Exactly one of `hours` and `steps` ends the run; the cosine schedule
    follows it.

    `clients`: batch sizes of the simulated clients, whose BatchNorm statistics the features depend
    on; a step takes one at random, repeat a size to make it likelier, 0 stands for running
    statistics. `layer`: a convolution or a dense layer inside the backbone whose input is to be
    inverted, instead of what the head reads; `unsum.peel` and `spans` reach such layers.
    """

    hours: float | None = None
    steps: int | None = None
    size: int = 224
    batch: int = 256
    rate: float = 1e-3
    weight_decay: float = 0.05
    average: float = 0.999
    clients: tuple[int, ...] = (8, 8, 8, 32, 256)
    loss: str = "psnr"
    decoder: str = "decoder"
    layer: str | None = None
    seed: int = 0
    save_every: float = 30.0  # seconds

    def __post_init__(self) -> None:
        if (self.hours is None) == (self.steps is None):
            raise UnsumError("Say how long to train, either with hours or with steps.")
        lengths = [length for length in (self.hours, self.steps) if length is not None]
        if min(self.batch, self.size, *lengths) <= 0 or not self.clients or min(self.clients) < 0:
            raise UnsumError("Sizes, hours and steps of a training run must be positive.")

    def done(self, step: int, seconds: float) -> float:
        """The share of the run that is over."""
        return (
            step / self.steps
            if self.steps is not None
            else seconds / (3600 * (self.hours or math.inf))
        )


@dataclass
class TrainingState:
    """Where a run stands."""

    done: float = 0.0
    step: int = 0
    seconds: float = 0.0  # of training, over all restarts
    photos_per_second: float = 0.0
    train_psnr: float = math.nan
    held_out_psnr: float = math.nan


Watch = Callable[[TrainingState], None]
# step, scalars, (2, n, 3, s, s) held-out pictures and answers
Draw = Callable[[int, dict[str, float], Tensor], None]


def train_inverse(
    model: nn.Module,
    photos: Tensor,
    held_out: Tensor,
    folder: Path,
    training: Training,
    *,
    card: dict[str, Any],
    start: Path | None = None,
    fabric: Any = None,
    watch: Watch | None = None,
    draw: Draw | None = None,
) -> Inverse:
    """The inverse of `model`'s backbone, also written to `folder`; continues from the checkpoint
    there, if any.

    Args:
        photos, held_out: (N, 3, s, s) uint8; the second are only scored.
        card: what to say of the photos; the run's own figures are added.
        start: an inverse to begin with, for fine-tuning.
        fabric: a `lightning.fabric.Fabric`, launched; by default one for this machine.
    """
    run = Run(model, photos, held_out, folder, training, card, start, fabric or new_fabric())
    run.train(watch or (lambda _progress: None), draw or (lambda _step, _scalars, _pictures: None))
    return run.finish()


def new_fabric(**options: Any) -> Any:
    """A launched Fabric: mixed precision on GPUs, several of them or several nodes under
    `torchrun`."""
    Fabric = optional("lightning_fabric", "train", "Training needs Lightning Fabric").Fabric
    options.setdefault("precision", "bf16-mixed" if torch.cuda.is_available() else "32-true")
    fabric = Fabric(**options)
    fabric.launch()
    return fabric


class Run:
    """One training run on one process; every process sees its own photos."""

    def __init__(
        self,
        model: nn.Module,
        photos: Tensor,
        held_out: Tensor,
        folder: Path,
        training: Training,
        card: dict[str, Any],
        start: Path | None,
        fabric: Any,
    ) -> None:
        self.training, self.folder, self.fabric, self.card = training, folder, fabric, card
        self.device = fabric.device
        self.smallest = min(size for size in (*training.clients, training.batch) if size)
        for size in training.clients:
            # refuses sizes that do not fit
            sharing(training.batch, size or self.smallest, self.smallest)
        self.loss = check_loss(training.loss)
        # one shape all along: let cuDNN look for its fastest kernels
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
            torch.set_float32_matmul_precision("high")
        # Uint8 photos are small beside a GPU's memory, and a step is faster than a copy from the
        # host would be.
        self.photos, self.held_out = photos.to(self.device), held_out.to(self.device)
        layout = feature_layout(model, training.size, training.layer)
        backbone: Any = ClientFeatures(model, training.layer)
        backbone = backbone.to(device=self.device, memory_format=torch.channels_last)
        torch.manual_seed(training.seed)  # every process starts from the same weights
        if start is not None:
            began: Any = Inverse.load(start).at(training.size, layout).decoder
        else:
            began = DECODERS[training.decoder](layout, training.size)
        self.decoder = began.to(device=self.device, memory_format=torch.channels_last).train()
        # Compiling takes half a minute and pays on a GPU only: the grouped BatchNorm becomes four
        # times as fast.
        compiled: Any = (
            torch.compile if self.device.type == "cuda" else (lambda module, **_options: module)
        )
        self.backbone = compiled(backbone, dynamic=False)
        self.optimizer = torch.optim.AdamW(
            self.decoder.parameters(),
            training.rate,
            betas=(0.9, 0.98),
            weight_decay=training.weight_decay,
            fused=self.device.type == "cuda",
        )
        self.parallel, self.optimizer = fabric.setup(
            compiled(self.decoder, dynamic=False), self.optimizer
        )
        self.average = copy.deepcopy(self.decoder).requires_grad_(False)
        self.progress = TrainingState()
        # What a checkpoint must agree with: how it trains may not change, how often it saves may.
        self.identity = {"backbone": backbone_fingerprint(model), **asdict(training), **card}
        del self.identity["save_every"]
        if training.layer is None:  # as checkpoints had it before there were inner layers
            del self.identity["layer"]
        if not self._restore() and start is None and hasattr(self.decoder, "calibrate"):
            some = self._features(self._view(step=-1), self.smallest)
            self.decoder.calibrate(some)
            self.average.calibrate(some)
        folder.mkdir(parents=True, exist_ok=True)

    def train(self, watch: Watch, draw: Draw) -> None:
        """To the end; Ctrl-C in between leaves a checkpoint of the moment, any other fault the last
        one."""
        try:
            self._train(watch, draw)
        except KeyboardInterrupt:
            if self.fabric.world_size == 1:  # several processes would wait for each other
                self._save()
            raise

    def _train(self, watch: Watch, draw: Draw) -> None:
        progress, saved, scored = self.progress, time.monotonic(), 0.0
        while progress.done < 1:
            began = time.monotonic()
            value = self._step(progress.step)
            progress.step += 1
            if progress.step % 10 == 0 or self.device.type == "cpu":
                progress.train_psnr = float(value)  # waits for the device, so that seconds are true
            progress.seconds += time.monotonic() - began
            # Clocks differ: the first process tells how much of the time is over.
            progress.done = float(
                self.fabric.broadcast(self.training.done(progress.step, progress.seconds))
            )
            progress.photos_per_second = (
                progress.step * self.training.batch * self.fabric.world_size / progress.seconds
            )
            now = time.monotonic()
            if now - scored > self.training.save_every or progress.done >= 1:
                scored = now
                self._score(draw)
            if now - saved > self.training.save_every or progress.done >= 1:
                saved = now
                self._save()
            watch(progress)

    def finish(self) -> Inverse:
        """Score all held-out photos and write the inverse; the checkpoint stays, a finished run
        does nothing again."""
        decoder = self.average
        card = {
            **self.card,
            "backbone": self.identity["backbone"],
            "architecture": self.training.decoder,
            "size": self.training.size,
            "layout": decoder.layout.card,
            "layer": self.training.layer,
            "settings": decoder.settings,
            "parameters": sum(p.numel() for p in decoder.parameters()),
            "loss": self.training.loss,
            "clients": list(self.training.clients),
            "steps": self.progress.step,
            "photos_seen": self.progress.step * self.training.batch * self.fabric.world_size,
            "hours": round(self.progress.seconds / 3600, 4),
            "device": torch.cuda.get_device_name()
            if self.device.type == "cuda"
            else self.device.type,
            "held_out_photos": len(self.held_out),
            f"held_out_psnr_batch_{self.smallest}": round(
                float(self._held_out(len(self.held_out))[0].mean()), 2
            ),
        }
        inverse = Inverse(decoder.eval(), card)
        if self.fabric.is_global_zero:
            inverse.save(self.folder / FILE)
        self.fabric.barrier()
        return inverse

    def _step(self, step: int) -> Tensor:
        training = self.training
        images = self._view(step)
        # the same size on every process: one graph
        chosen = torch.Generator().manual_seed(training.seed + step)
        client = training.clients[int(torch.randint(len(training.clients), (), generator=chosen))]
        features = self._features(images, client)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.progress.done)))
        rate = training.rate * min(1, (step + 1) / _WARM_UP) * (cosine + _FLOOR)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        found = self.parallel(features).float()
        loss = self.loss(found, images)
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        self.fabric.clip_gradients(
            self.parallel, self.optimizer, max_norm=1.0, error_if_nonfinite=False
        )
        self.optimizer.step()
        self._follow(step)
        return psnr(found.detach(), images).mean()

    def _view(self, step: int) -> Tensor:
        """The same views whenever a step is taken again: a resumed run goes on as if it had never
        stopped."""
        seed = (self.training.seed * 1_000_003 + step + 1) * 4096 + self.fabric.global_rank
        generator = torch.Generator(self.device).manual_seed(seed)
        chosen = torch.randint(
            len(self.photos), (self.training.batch,), device=self.device, generator=generator
        )
        return augment(self.photos[chosen], self.training.size, generator)

    def _features(self, images: Tensor, client: int) -> Tensor:
        together = sharing(len(images), client, self.smallest).to(self.device) if client else None
        with torch.no_grad(), self.fabric.autocast():
            features: Tensor = self.backbone(images, together)
        return features

    def _held_out(self, count: int) -> tuple[Tensor, Tensor]:
        """(n,) PSNR of the averaged decoder, in clients of the smallest size, and (2, 8, 3, s, s)
        pictures to look at."""
        decoder, scores, shown = self.average.eval(), [], None
        # Full steps only, the last one filled up with photos from the beginning: other shapes would
        # be compiled anew.
        whole = (
            torch.arange(-(-count // self.training.batch) * self.training.batch, device=self.device)
            % count
        )
        for chosen in whole.split(self.training.batch):
            images = to_size(self.held_out[chosen].float() / 255, self.training.size)
            images = images.contiguous(memory_format=torch.channels_last)
            with torch.no_grad(), self.fabric.autocast():
                found = decoder(self._features(images, self.smallest)).float()
            scores.append(psnr(found, images))
            shown = torch.stack([images[:8], found[:8]]) if shown is None else shown
        return torch.cat(scores)[:count], needed(shown, "A photo to score")

    def _score(self, draw: Draw) -> None:
        if self.fabric.is_global_zero:
            scores, pictures = self._held_out(min(512, len(self.held_out)))
            self.progress.held_out_psnr = float(scores.mean())
            scalars = {
                "psnr/held-out": self.progress.held_out_psnr,
                "psnr/train": self.progress.train_psnr,
            }
            draw(self.progress.step, scalars, pictures.cpu())
        self.fabric.barrier()

    def _parts(self) -> dict[str, Any]:
        return {"decoder": self.decoder, "average": self.average, "optimizer": self.optimizer}

    def _save(self) -> None:
        if self.fabric.is_global_zero:
            parts = {name: part.state_dict() for name, part in self._parts().items()}
            checkpoint.write(
                self.folder, {"run": self.identity, **parts, "progress": asdict(self.progress)}
            )
        self.fabric.barrier()

    def _restore(self) -> bool:
        state = checkpoint.read(self.folder, self.identity)
        if state is None:
            return False
        try:
            for name, part in self._parts().items():
                part.load_state_dict(state[name])
            self.progress = TrainingState(**state["progress"])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise UnsumError(
                f"The checkpoint in {str(self.folder)!r} is damaged; delete {checkpoint.FILE!r} "
                "there to start over."
            ) from error
        return True

    def _follow(self, step: int) -> None:
        """The average of the weights, short at first: its memory grows with the steps up to
        `average`."""
        keep = min(self.training.average, (1 + step) / (10 + step))
        with torch.no_grad():
            for kept, new in zip(self.average.parameters(), self.decoder.parameters(), strict=True):
                kept.lerp_(new, 1 - keep)
