"""Train an inverse for a backbone: photos go through the frozen backbone, a decoder learns the way
back."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unsum.errors import UnsumError, check_name, needed, optional
from unsum.invert import checkpoint
from unsum.invert.augment import augment
from unsum.invert.blurred import Blurred, FeatureStatistics
from unsum.invert.decoder import DECODERS, to_size
from unsum.invert.layout import feature_layout
from unsum.invert.losses import check_loss, psnr
from unsum.invert.method import FILE, Inverse
from unsum.models.built import backbone_fingerprint
from unsum.models.client_batches import ClientFeatures, sharing

_WARM_UP = 150  # steps
_FLOOR = 1e-3  # of the learning rate, at the end of the cosine

NOISE = ("with", "without", "only")
_SAMPLED = 512  # [photos] that show how features are spread. Chosen by: arbitrary budget
_DRAWS = (
    2  # [estimates] of each photo's features. Chosen by: arbitrary, they cost less than a photo
)
_RARELY = 20  # [times] as long as a score takes, at least, until the next. Chosen by: arbitrary
# [1] beside the level in the weight of a photo: errors grow with the level. Chosen by: arbitrary
_LEAST = 0.05
_SCORED = 64  # [photos] drawn from uncertain features for a score. Chosen by: arbitrary budget


@dataclass(frozen=True)
class Training:
    """How long and how. Exactly one of `hours` and `steps` ends the run; the cosine schedule
    follows it.

    `clients`: batch sizes of the simulated clients, whose BatchNorm statistics the features depend
    on; a step takes one at random, repeat a size to make it likelier, 0 stands for running
    statistics. `layer`: a convolution or a dense layer inside the backbone whose input is to be
    inverted, instead of what the head reads; `unsum.peel` and `spans` reach such layers.

    `noise`: whether it also learns what to draw of uncertain features (`blurred`). `only` leaves
    the decoder that it starts from as it is, and learns nothing else.
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
    noise: Literal["with", "without", "only"] = "with"
    seed: int = 0
    save_every: float = 30.0  # seconds

    def __post_init__(self) -> None:
        if (self.hours is None) == (self.steps is None):
            raise UnsumError("Say how long to train, either with hours or with steps.")
        lengths = [length for length in (self.hours, self.steps) if length is not None]
        if min(self.batch, self.size, *lengths) <= 0 or not self.clients or min(self.clients) < 0:
            raise UnsumError("Sizes, hours and steps of a training run must be positive.")
        check_name("noise of a training", self.noise, NOISE)

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
        begun = None if start is None else Inverse.load(start).at(training.size, layout)
        if training.noise == "only" and begun is None:
            raise UnsumError(
                "To learn noise only, a training needs an inverse to begin with; name one with "
                "--start."
            )
        # whose decoder and card stay as they are
        self.begun = begun if training.noise == "only" else None
        began: Any = (
            DECODERS[training.decoder](layout, training.size) if begun is None else begun.decoder
        )
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
        self.blurred = None
        if training.noise != "without":
            known = None if begun is None else begun.blurred
            self.blurred = _UncertainPictures(self, known or Blurred(layout, training.size))
        self.progress = TrainingState()
        # What a checkpoint must agree with: how it trains may not change, how often it saves may.
        self.identity = {"backbone": backbone_fingerprint(model), **asdict(training), **card}
        del self.identity["save_every"]
        if training.layer is None:  # as checkpoints had it before there were inner layers
            del self.identity["layer"]
        if training.noise == "without":  # as they had it before there was any
            del self.identity["noise"]
        if not self._restore():
            if start is None and hasattr(self.decoder, "calibrate"):
                some = self.features(self.view(step=-1), self.smallest)
                self.decoder.calibrate(some)
                self.average.calibrate(some)
            if self.blurred is not None:
                self.blurred.calibrate(self.photos)
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
        progress, saved, scored, took = self.progress, time.monotonic(), -math.inf, 0.0
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
            if now - scored > max(self.training.save_every, _RARELY * took) or progress.done >= 1:
                self._score(draw)
                scored = time.monotonic()
                took = scored - now
            if now - saved > self.training.save_every or progress.done >= 1:
                saved = now
                self._save()
            watch(progress)

    def finish(self) -> Inverse:
        """Score all held-out photos and write the inverse; the checkpoint stays, a finished run
        does nothing again."""
        inverse = Inverse(
            self.average.eval(),
            self._card() if self.begun is None else self.begun.card,
            None if self.blurred is None else self.blurred.average.eval(),
        )
        if self.blurred is not None:
            inverse.card.update(self.blurred.card())
        if self.fabric.is_global_zero:
            inverse.save(self.folder / FILE)
        self.fabric.barrier()
        return inverse

    def _card(self) -> dict[str, Any]:
        decoder = self.average
        return {
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

    def _step(self, step: int) -> Tensor:
        training = self.training
        images = self.view(step)
        # the same size on every process: one graph
        chosen = torch.Generator().manual_seed(training.seed + step)
        client = training.clients[int(torch.randint(len(training.clients), (), generator=chosen))]
        features = self.features(images, client)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.progress.done)))
        rate = training.rate * min(1, (step + 1) / _WARM_UP) * (cosine + _FLOOR)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.blurred is not None:
            value = self.blurred.step(step, images, features.float(), rate)
            if training.noise == "only":
                return value
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

    def view(self, step: int) -> Tensor:
        """The same views whenever a step is taken again: a resumed run goes on as if it had never
        stopped."""
        generator = self.generator(step)
        chosen = torch.randint(
            len(self.photos), (self.training.batch,), device=self.device, generator=generator
        )
        return augment(self.photos[chosen], self.training.size, generator)

    def generator(self, step: int) -> torch.Generator:
        """Of this process and step."""
        seed = (self.training.seed * 1_000_003 + step + 1) * 4096 + self.fabric.global_rank
        return torch.Generator(self.device).manual_seed(seed)

    def features(self, images: Tensor, client: int) -> Tensor:
        together = sharing(len(images), client, self.smallest).to(self.device) if client else None
        with torch.no_grad(), self.fabric.autocast():
            features: Tensor = self.backbone(images, together)
        return features

    def sampled_features(self, count: int) -> Tensor:
        """(n, H) of at least so many views, in clients of the smallest size."""
        steps = range(-(-count // self.training.batch))
        return torch.cat([self.features(self.view(s), self.smallest).float() for s in steps])

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
            images = self.scored(chosen)
            with torch.no_grad(), self.fabric.autocast():
                found = decoder(self.features(images, self.smallest)).float()
            scores.append(psnr(found, images))
            shown = torch.stack([images[:8], found[:8]]) if shown is None else shown
        return torch.cat(scores)[:count], needed(shown, "A photo to score")

    def scored(self, chosen: Tensor) -> Tensor:
        """Held-out photos in the size of the training."""
        images = to_size(self.held_out[chosen].float() / 255, self.training.size)
        return images.contiguous(memory_format=torch.channels_last)

    def _score(self, draw: Draw) -> None:
        if self.fabric.is_global_zero:
            if self.begun is None:
                scores, pictures = self._held_out(min(512, len(self.held_out)))
            else:
                scores, pictures = needed(self.blurred, "A network").held_out()
            self.progress.held_out_psnr = float(scores.mean())
            scalars = {
                "psnr/held-out": self.progress.held_out_psnr,
                "psnr/train": self.progress.train_psnr,
            }
            draw(self.progress.step, scalars, pictures.cpu())
        self.fabric.barrier()

    def _parts(self) -> dict[str, Any]:
        parts = {"decoder": self.decoder, "average": self.average, "optimizer": self.optimizer}
        if self.blurred is not None:
            blurred = self.blurred
            parts |= {"blurred": blurred.network, "blurred average": blurred.average}
            parts |= {"blurred optimizer": blurred.optimizer}
        return parts

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
        follow(self.average, self.decoder, step, self.training.average)


def follow(average: nn.Module, network: nn.Module, step: int, longest: float) -> None:
    """Move the average's weights towards the network's."""
    keep = min(longest, (1 + step) / (10 + step))
    with torch.no_grad():
        for kept, new in zip(average.parameters(), network.parameters(), strict=True):
            kept.lerp_(new, 1 - keep)


class _UncertainPictures:
    """What is trained beside the decoder, which takes no part in it: pictures of features as the
    posterior means of noisy ones are."""

    def __init__(self, run: Run, network: Blurred) -> None:
        self.run = run
        self.network = network.to(device=run.device).train()
        optimizer = torch.optim.AdamW(network.parameters(), run.training.rate, weight_decay=0.0)
        self.parallel, self.optimizer = run.fabric.setup(self.network, optimizer)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self._statistics: FeatureStatistics | None = None

    @property
    def statistics(self) -> FeatureStatistics:
        """Of the first steps' photos, for every restart the same."""
        if self._statistics is None:
            self._statistics = FeatureStatistics.of(self.run.sampled_features(_SAMPLED))
        return self._statistics

    def calibrate(self, photos: Tensor) -> None:
        for network in (self.network, self.average):
            network.calibrate(self.statistics, photos)

    def step(self, step: int, images: Tensor, features: Tensor, rate: float) -> Tensor:
        """One step down the squared error of coarse pictures, whose PSNR is returned."""
        generator = self.run.generator(step)
        estimates, level = self.statistics.estimated(features, generator, _DRAWS)
        coarse = self.parallel(estimates, level).float()
        target = F.adaptive_avg_pool2d(images, coarse.shape[-1]).repeat(_DRAWS, 1, 1, 1)
        off = (coarse - target).square().flatten(1).mean(1)
        loss = (off / (_LEAST + level)).mean()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        self.run.fabric.backward(loss)
        self.run.fabric.clip_gradients(
            self.parallel, self.optimizer, max_norm=1.0, error_if_nonfinite=False
        )
        self.optimizer.step()
        follow(self.average, self.network, step, self.run.training.average)
        return psnr(coarse.detach(), target).mean()

    def _drawn(self, step: int, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Estimates, levels, and what the decoder draws."""
        features = self.run.features(images, self.run.smallest).float()
        estimates, level = self.statistics.estimated(features, self.run.generator(step))
        with self.run.fabric.autocast():
            return estimates, level, self.run.average(estimates).float()

    @torch.no_grad()
    def held_out(self) -> tuple[Tensor, Tensor]:
        """(n,) PSNR of some held-out photos under simulated noise, and (2, 8, 3, s, s) pictures to
        look at."""
        run, batch = self.run, self.run.training.batch
        chosen = torch.arange(-(-_SCORED // batch) * batch, device=run.device) % len(run.held_out)
        scores, shown = [], None
        for step, part in enumerate(chosen.split(batch)):
            images = run.scored(part)
            found = self.average.eval().draw(*self._drawn(step, images))
            scores.append(psnr(found, images))
            shown = torch.stack([images[:8], found[:8]]) if shown is None else shown
        return torch.cat(scores), needed(shown, "A photo to score")

    def card(self) -> dict[str, Any]:
        """What an inverse's card says of it."""
        return {
            "blurred": self.average.settings,
            "blurred_steps": self.run.progress.step,
            "held_out_psnr_noise": round(float(self.held_out()[0].mean()), 2),
        }
