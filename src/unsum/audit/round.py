"""One round: the client trains and sends, the server attacks, and the answer is held against the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from unsum.active import Reader, place
from unsum.attack.chain import run_attack
from unsum.attack.options import AttackOptions
from unsum.audit.leakage import leakages
from unsum.client.capture import capture_trained, in_mode
from unsum.client.step import Stage, ordered
from unsum.data import Batch
from unsum.defend import Defense
from unsum.head import collect_features
from unsum.leak import Leak
from unsum.progress import SILENT, Progress
from unsum.score import SampleScore, score_samples
from unsum.update import Update


@dataclass(frozen=True)
class Sent:
    """The client's side: the model as it got it, what it trained on, and what it sent. The attack sees model and update."""

    model: nn.Module
    images: Tensor  # as trained on: other ones where a defense blends them
    targets: Tensor
    update: Update
    train: bool
    seed: int
    clients: int = 1  # whose updates the server sees the mean of; each has as many of the images

    @cached_property
    def features(self) -> Tensor:
        """(B, H) what reached the last layer; dropout falls as it fell in the client's own pass."""
        torch.manual_seed(self.seed)
        parts = self.images.split(len(self.images) // self.clients)
        with in_mode(self.model, self.train):
            return torch.cat([collect_features(self.model, part) for part in parts])


@dataclass(frozen=True)
class Compared:
    """An answer beside the truth, sample by sample in the truth's order."""

    leak: Leak
    samples: list[SampleScore]
    leakages: list[float]


@dataclass(frozen=True)
class Round(Compared):
    """A whole round. `truth` is what the client trained on; a sentence says so where that is not its own samples."""

    truth: Batch
    trained_on: str


def play(
    model: nn.Module,
    batch: Batch,
    defenses: Sequence[Defense],
    options: AttackOptions,
    *,
    train: bool,
    reader: Reader | None = None,
    progress: Progress = SILENT,
) -> Round:
    """Client, attack, score. `reader` is that of a server that changed the model first."""
    progress.say("The client computes its update")
    device = torch.device(options.device or "cpu")
    sent = send(model, batch.images.to(device), batch.targets.to(device), defenses, train=train, seed=options.seed)
    with in_mode(model, train):  # how clients train is the server's own protocol
        leak = run_attack(model, sent.update, options.of_batch(len(sent.images)), progress)
        if reader is not None:
            progress.say("Reading the layer that the server put in")
            leak = place(model, leak, reader, reader.read(sent.update))
    progress.say("Comparing with the truth")
    compared = compare_with_truth(sent, leak)
    truth = as_trained(batch, sent)
    trained_on = "" if torch.equal(truth.images, batch.images.cpu()) else _blends(defenses)
    return Round(leak, compared.samples, compared.leakages, truth, trained_on)


def send(
    model: nn.Module, images: Tensor, targets: Tensor, defenses: Sequence[Defense], *, train: bool, seed: int
) -> Sent:
    """The client's step; `seed` fixes what its defenses and its dropout draw."""
    torch.manual_seed(seed)
    update, images, targets = capture_trained(model, images, targets, train=train, defenses=defenses)
    return Sent(model, images, targets, update, train, seed)


def compare_with_truth(sent: Sent, leak: Leak) -> Compared:
    samples = score_samples(leak, sent.images, sent.targets, sent.features)
    shares = leakages(samples, sent.images, sent.features, pixels_alone=leak.pictures_first)
    return Compared(leak, samples, shares)


def as_trained(batch: Batch, sent: Sent) -> Batch:
    """The batch that the gradient was computed on, under the names of the client's own."""
    return replace(batch, images=sent.images.cpu(), targets=sent.targets.cpu())


def _blends(defenses: Sequence[Defense]) -> str:
    mixers = " | ".join(repr(part) for part in ordered(defenses) if getattr(part, "stage", None) == Stage.BATCH)
    return (
        f"{mixers} blends the client's samples before it trains on them. What came back is compared with these blends, not with "
        "single samples: each stands under the name of one of its two samples and the larger of its two labels."
    )
