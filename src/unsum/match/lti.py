"""LTI (learning to invert): no matching, but a network from gradients to pictures, trained on
photos of the attacker's own.

    min over φ of the mean over batches X of Σ_i ‖φ(S T(∇L(X, y)))_π(i) − X_i‖²

    with π the best assignment (Hungarian)

T does to the attacker's gradients what the defense did to the update (`traces`, or `defend=`, any
function from `Update` to `Update`), and S hashes them to `dimension` numbers where the model is
large. φ has three layers.

Training begins when the update is there. So the photos get the labels that were found, whatever
their own: the gradients then differ by pictures alone, and place i of the answer belongs to label
i. π only tells apart samples that share a label.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from unsum.errors import UnsumError, needed
from unsum.files.writing import write_pictures
from unsum.match.engine import LOOKS, Matched
from unsum.match.many import Many
from unsum.match.method import MatcherNeeds, matcher
from unsum.match.problem import Problem
from unsum.match.traces import Traces
from unsum.models.built import dense_layers
from unsum.running.deadline import out_of_time
from unsum.running.late_scipy import linear_sum_assignment
from unsum.update import Update

Defend = Callable[[Update], Update]
_HELD_OUT = 0.1  # of the photos, for the choice of the step to keep


@matcher(
    "lti",
    summary=(
        "a network from gradients to pictures, trained on photos of the attacker's own (Learning "
        "to Invert)"
    ),
    needs=MatcherNeeds(rule="bias-sign", auxiliary=True),
)
def lti(
    problem: Problem,
    *,
    steps: int = 4000,
    batches: int = 8192,
    hidden: int = 1024,
    dimension: int = 8192,
    rate: float = 1e-3,
    at_a_time: int = 64,
    defend: Defend | None = None,
) -> Matched:
    if problem.checkpoint is not None:
        raise UnsumError("'lti' keeps no checkpoint; leave checkpoint= out.")
    photos = _photos(problem)
    held = max(problem.batch_size, round(_HELD_OUT * len(photos)))
    traces = Traces.of(problem)
    reader = _Reader(problem, traces, defend, dimension)
    with reader.many.ready(), torch.no_grad():
        train = _gathered(reader, photos[held:], batches, problem.seed)
        test = _gathered(
            reader, photos[:held], max(1, round(_HELD_OUT * batches)), problem.seed + 1
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(problem.seed)
        learner = _Learner(problem, train, hidden)
    loss, rows = learner.fit(train, test, steps, at_a_time, rate)
    images = learner.draw(reader.received)[0]
    if problem.preview is not None:
        write_pictures(problem.preview, images)
    match = _match(reader, images)
    targets = needed(problem.targets, "The labels of the batch")
    history = dict(
        zip(("step", "loss", "training"), torch.tensor(rows, dtype=torch.float64).T, strict=True)
    )
    notes = [
        *(traces.notes if defend is None else []),
        f"A network learned from {batches} batches of the attacker's own photos; on photos held "
        f"back its mean squared error is {loss:.2g}.",
    ]
    return Matched(
        images, targets, loss, match, torch.tensor([loss]).double(), steps, history, notes
    )


@dataclass(frozen=True)
class Lessons:
    """What was sent for N batches, and which photos they were; the pictures themselves are put
    together as they are needed."""

    inputs: Tensor  # (N, d)
    photos: Tensor  # (P, c, h, w)
    chosen: Tensor  # (N, B)
    mirrored: Tensor  # (N, B)

    def images(self, rows: Tensor) -> Tensor:
        """(n, B, c, h, w) the pictures of some of the batches."""
        images = self.photos[self.chosen[rows]]
        return torch.where(self.mirrored[rows][..., None, None, None], images.flip(-1), images)


def _photos(problem: Problem) -> Tensor:
    photos = needed(problem.auxiliary, "Labeled data of the attacker's own (auxiliary=)")[0]
    if tuple(photos.shape[1:]) != problem.shape or len(photos) < 2 * problem.batch_size:
        raise UnsumError(
            f"'lti' needs at least {2 * problem.batch_size} auxiliary photos of {problem.shape}, "
            f"not {tuple(photos.shape)}."
        )
    order = torch.randperm(len(photos), generator=torch.Generator().manual_seed(problem.seed))
    return photos.to(problem.zero)[order.to(photos.device)]


class _Reader:
    """Gradients, defended like those received, every tensor brought to its size there, in one
    hashed vector."""

    def __init__(
        self, problem: Problem, traces: Traces, defend: Defend | None, dimension: int
    ) -> None:
        self.problem, self.traces, self.defend = problem, traces, defend
        self.many = Many(problem)
        received = self._imitated([tensor[None] for tensor in problem.sent.values()])
        self.sizes = [tensor.square().mean().sqrt().clamp_min(1e-12) for tensor in received]
        self.sketch = Sketch(sum(tensor.numel() for tensor in received), dimension, problem.seed)
        self.received = self._vector(received)

    def __call__(self, images: Tensor) -> Tensor:
        """(N, B, c, h, w) → (N, d)."""
        found = self.many(images)
        if self.defend is None:
            return self._vector(self._imitated(found))
        updates = [
            dict(zip(self.problem.sent, parts, strict=True)) for parts in zip(*found, strict=True)
        ]
        defended = [self.defend(Update(update)).gradients for update in updates]
        return self._vector(
            [torch.stack([update[name] for update in defended]) for name in self.problem.sent]
        )

    def _imitated(self, found: list[Tensor]) -> list[Tensor]:
        return self.traces.imitated(found) if self.defend is None else found

    def _vector(self, found: list[Tensor]) -> Tensor:
        return self.sketch(
            torch.cat(
                [g.flatten(1) / size for g, size in zip(found, self.sizes, strict=True)], dim=1
            )
        )


def _gathered(reader: _Reader, photos: Tensor, count: int, seed: int) -> Lessons:
    """Random batches of the photos, half of all pictures mirrored, and what a client would have
    sent for them."""
    B, draw = reader.problem.batch_size, Random(seed)
    chosen = torch.tensor(
        [draw.sample(range(len(photos)), B) for _ in range(count)], device=photos.device
    )
    mirrored = torch.tensor(
        [[draw.random() < 0.5 for _ in range(B)] for _ in range(count)], device=photos.device
    )
    lessons = Lessons(photos.new_zeros(count, 0), photos, chosen, mirrored)
    some = torch.arange(count, device=photos.device).split(reader.many.at_once)
    return replace(lessons, inputs=torch.cat([reader(lessons.images(rows)) for rows in some]))


class _Learner:
    def __init__(self, problem: Problem, train: Lessons, hidden: int) -> None:
        self.problem, self.shape = problem, (problem.batch_size, *problem.shape)
        targets = needed(problem.targets, "The labels of the batch")
        # (B, B) samples whose order the gradient cannot tell
        self.alike = torch.cdist(targets, targets) < 1e-6
        self.mean, deviation = train.inputs.mean(0), train.inputs.std(0)
        self.deviation = deviation.clamp_min(float(deviation.max()) * 1e-3 + 1e-12)
        self.network = dense_layers(
            train.inputs.shape[1], hidden, hidden, math.prod(self.shape)
        ).to(train.inputs)

    def draw(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self._pictures(inputs).clamp(0, 1)

    def _pictures(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.network((inputs - self.mean) / self.deviation)
        return found.view(-1, *self.shape).sigmoid()

    def _error(self, lessons: Lessons, at_a_time: int) -> float:
        rows = torch.arange(len(lessons.inputs), device=lessons.inputs.device).split(at_a_time)
        errors = [
            len(some)
            * matched_error(self.draw(lessons.inputs[some]), lessons.images(some), self.alike)
            for some in rows
        ]
        return float(torch.stack(errors).sum()) / len(lessons.inputs)

    def fit(
        self, train: Lessons, test: Lessons, steps: int, at_a_time: int, rate: float
    ) -> tuple[float, list[list[float]]]:
        """The lowest error on photos held back, whose weights are kept, and how the errors fell."""
        generator = torch.Generator().manual_seed(self.problem.seed)
        adam = torch.optim.Adam(self.network.parameters(), rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
        best, kept, rows = float("inf"), self.network.state_dict(), []
        look_every = max(1, steps // LOOKS)
        for step in range(1, steps + 1):
            chosen = torch.randint(len(train.inputs), (at_a_time,), generator=generator).to(
                train.inputs.device
            )
            with torch.enable_grad():
                error = matched_error(
                    self._pictures(train.inputs[chosen]), train.images(chosen), self.alike
                )
                adam.zero_grad()
                error.backward()
            adam.step()
            schedule.step()
            over = out_of_time("further steps of learning to invert")
            if step % look_every == 0 or step == steps or over:
                value = self._error(test, at_a_time)
                rows.append([step, value, float(error.detach())])
                self.problem.progress.step(step, *rows[-1][1:])
                if value < best:
                    best, kept = (
                        value,
                        {name: w.clone() for name, w in self.network.state_dict().items()},
                    )
            if over:
                break
        self.network.load_state_dict(kept)
        return best, rows


def matched_error(found: Tensor, images: Tensor, alike: Tensor) -> Tensor:
    """Mean squared error of (N, B, …) pictures, those of `alike` samples assigned to each other at
    the least cost."""
    if len(alike) == 1 or not bool((alike.sum(1) > 1).any()):
        return (found - images).square().mean()
    flat, truth = found.flatten(2), images.flatten(2)
    with torch.no_grad():
        costs = torch.cdist(flat, truth).square() + 1e9 * ~alike
        orders = [linear_sum_assignment(cost)[1] for cost in costs.cpu().double().numpy()]
    order = torch.stack([torch.as_tensor(row) for row in orders]).to(truth.device)
    return (flat - truth.gather(1, order[..., None].expand_as(truth))).square().mean()


def _match(reader: _Reader, images: Tensor) -> float:
    """How far the gradient of the answer is from the one received, ‖g − ĝ‖² / ‖ĝ‖², after the same
    defense."""
    with reader.many.ready(), torch.no_grad():
        given = reader.many(images[None]), [tensor[None] for tensor in reader.problem.sent.values()]
        found, sent = map(reader.traces.imitated, given)
    apart = sum(float((a - b).square().sum()) for a, b in zip(found, sent, strict=True))
    return apart / max(sum(float(b.square().sum()) for b in sent), 1e-30)


class Sketch:
    """From `length` entries to `dimension`, keeping inner products on average; where there are no
    more, nothing is done.

    A count sketch: S (d × n) has one ±1 in every column, at a random place: (S g)_k = Σ over i with
    place i = k of sign_i g_i. It costs one pass over g and two short integers an entry, where a
    dense projection would need d · n numbers.

    >>> Sketch(1000, 64, seed=0)(torch.ones(2, 1000)).shape
    torch.Size([2, 64])
    """

    def __init__(self, length: int, dimension: int, seed: int) -> None:
        self.hashes = length > dimension
        self.dimension = dimension if self.hashes else length
        generator = torch.Generator().manual_seed(seed)
        count = length if self.hashes else 0
        self.places = torch.randint(dimension, (count,), generator=generator)
        self.signs = 2.0 * torch.randint(2, (count,), generator=generator) - 1

    def __call__(self, vectors: Tensor) -> Tensor:
        """(N, length) → (N, dimension)."""
        if not self.hashes:
            return vectors
        signs, places = self.signs.to(vectors), self.places.to(vectors.device)
        return vectors.new_zeros(len(vectors), self.dimension).index_add_(
            1, places, vectors * signs
        )
