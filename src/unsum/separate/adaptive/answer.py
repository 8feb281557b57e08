"""The answer in the common form, with what a person should know about it."""

from __future__ import annotations

import torch

from unsum.head import Head
from unsum.leak import Leak
from unsum.separate.adaptive.apart import Samples
from unsum.separate.adaptive.batch import Batch
from unsum.separate.adaptive.recognise import Defence
from unsum.separate.misfit import relative_misfit


def answer(head: Head, batch: Batch, defence: Defence, samples: Samples, done: str) -> Leak:
    """A leak that claims no exactness: what a defence removed is estimated, not known."""
    targets = torch.nn.functional.one_hot(samples.labels, head.classes).double()
    features = samples.features
    return Leak(
        method="adaptive",
        targets=targets,
        logits=samples.logits,
        features=features.to(torch.promote_types(head.W.dtype, torch.float32)),
        residual=relative_misfit(head, samples.logits, targets, batch.scale * features),
        predicted_error=float(samples.errors.max()),
        exact=False,
        scale=batch.scale,
        notes=[defence.sentence, done, *batch.notes, *_merged(samples), *_alone(batch)],
    )


def _merged(samples: Samples) -> list[str]:
    return [
        f"Samples {', '.join(map(str, group))} share a label and cannot be told apart after that; each is their mean."
        for group in samples.merged
    ]


def _alone(batch: Batch) -> list[str]:
    if batch.size_known or len(batch.labels) > 1:
        return []
    return ["All samples found share one label, so nothing tells how many there were; give batch_size= if you know it."]
