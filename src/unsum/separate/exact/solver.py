"""The exact solver: Y = softmax(T K + b) − (U T⁻¹)ᵀ/α, solved for T with nothing given.

Labels first: a regression over classes finds which rows of the gradient are labels and how many samples carry each.
Then Levenberg–Marquardt solves for the B² numbers T; features, logits and targets follow in closed form.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from unsum.certify.question import Question
from unsum.equation.decay import without_decay
from unsum.equation.noise import Noise
from unsum.equation.observation import observe
from unsum.equation.threads import few_threads
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.exact.answer import leak_of, nothing_found
from unsum.separate.exact.search import Search
from unsum.separate.method import SEPARATORS


@SEPARATORS.register(
    "exact",
    summary="every sample's features, logits and targets, solved exactly (unsum)",
    needs="the last layer's gradient; fewer samples than classes",
)
def exact(head: Head, knowledge: Knowledge, *, seed: int) -> Leak:
    """Separate the batch; `predicted_error` and `exact` say how far to trust it."""
    low, high = torch.aminmax(head.grad_W)
    if float(low) == float(high) == 0:
        return nothing_found(head, knowledge, "The gradient is zero: it says nothing about the batch.")
    try:
        return _solved(head, knowledge, seed)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # Sizes beyond what float64 can square, or rows that are all alike.
        return nothing_found(head, knowledge, "The gradient's numbers leave the solver nothing that it can invert.")


def _solved(head: Head, knowledge: Knowledge, seed: int) -> Leak:
    undecayed = without_decay(head)
    if undecayed is None:
        return _separated(head, knowledge, seed, None)
    leak = _separated(undecayed.head, knowledge, seed, undecayed.noise)
    note = f"The client decayed its weights by {undecayed.decay:.3g} times themselves; that was taken off first."
    return replace(leak, notes=[*leak.notes, note])


def _separated(head: Head, knowledge: Knowledge, seed: int, noise: Noise | None) -> Leak:
    observation = observe(head, knowledge.known_batch_size, noise)
    if observation.rank == 0:
        return nothing_found(head, knowledge, "Nothing in the gradient stands out of its noise.")
    with few_threads(observation.U.numel()):
        search = Search.over(observation, knowledge.targets(head.classes), knowledge.known_batch_size, seed)
        candidate = search.best()
    if candidate is None:
        return nothing_found(head, knowledge, "No start of the solver led to finite features.")
    return leak_of(Question(head, observation, candidate, knowledge))
