"""Which two consecutive dense layers are asked: the deepest pair that has equations enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from unsum.errors import UnsumError
from unsum.knowledge import Knowledge
from unsum.network.chain import Chain, Step
from unsum.spans.basis import LayerSpan
from unsum.spans.roots import Condition, Further

# of a layer's units: equations that must be left over; a batch of half the width was never read
_SPARE = 0.1


@dataclass(frozen=True)
class Pair:
    """A dense layer and the next one, with the steps from the first of them up to the head."""

    at: int  # in the chain
    steps: list[Step]
    here: LayerSpan
    next: LayerSpan
    beyond: LayerSpan | None = None  # the layer after these, where its span is needed too

    @property
    def condition(self) -> Condition:
        further = None if self.beyond is None else Further(self.steps[1], self.beyond)
        return Condition.of(self.steps[0], self.here, self.next, further)

    @property
    def expected(self) -> int:
        """Samples: as many as directions that stand in either gradient."""
        return len(self.next) if self.here.full else max(len(self.here), len(self.next))

    @property
    def spare(self) -> int:
        """Equations that are left over for each start."""
        above = [self.next] if self.beyond is None else [self.next, self.beyond]
        return sum(span.rows.shape[1] - len(span) for span in above) - len(self.here)


def dense_steps(chain: Chain) -> list[Step]:
    """The dense layers above the last convolution; `spans` needs two of them."""
    return chain.steps[
        1 + max((i for i, step in enumerate(chain.steps) if step.is_conv), default=-1) :
    ]


def choose_pair(
    chain: Chain, knowledge: Knowledge, rounded: Callable[[Step], float] = lambda _step: 0.0
) -> Pair:
    """The deepest pair whose condition has twice as many equations as unknowns; else the one with
    most to spare.

    `rounded` is what the rounding of weights may have left in an entry of a layer's gradient.
    """
    dense = dense_steps(chain)
    first = len(chain.steps) - len(dense)
    if len(dense) < 2:
        why = f" ({chain.stop})" if chain.stop else ""
        raise UnsumError(
            "'spans' needs two consecutive dense layers with an activation between them; this "
            f"model has {len(dense)} above what can be traced{why}; use 'exact' for the head alone."
        )
    told = knowledge.known_batch_size
    measured = _measured(dense, rounded)
    # A softmax sends nothing along one direction: a head tells no more samples apart than it has
    # classes, less one.
    telling = [
        not span.full and (span is not measured[-1] or len(span) < len(dense[-1].W) - 1)
        for span in measured
    ]
    pairs = [
        Pair(first + i, dense[i:], *measured[i : i + 2])
        for i in range(len(dense) - 1)
        if telling[i + 1]
    ]
    pairs += [
        replace(one, beyond=measured[i])
        for one in pairs
        if (i := one.at - first + 2) < len(dense) and telling[i]
    ]
    able = [pair for pair in pairs if pair.spare > _SPARE * pair.next.rows.shape[1]]
    if not able:
        widest = max(min(step.W.shape) for step in dense)
        batch = f"{told} samples" if told else "the batch"
        raise UnsumError(
            f"'spans' cannot tell samples apart: {batch} takes all directions of the dense layers "
            f"(up to {widest} units); smaller batches, or wider layers, are read. Gradient "
            "matching ('ig') remains."
        )
    return next(
        (pair for pair in able if pair.spare >= len(pair.here)),
        max(able, key=lambda pair: pair.spare),
    )


def _measured(dense: list[Step], rounded: Callable[[Step], float]) -> list[LayerSpan]:
    """The spans of every layer. Noise is on all of them or on none: where one ends in rounding,
    another whose directions fade away has as many samples as directions, or more."""
    measured = [LayerSpan.of(step, rounded=rounded(step)) for step in dense]
    if not any(span.quiet for span in measured):
        return measured
    return [
        LayerSpan.of(step, sum(step.W.shape)) if span.noisy else span
        for step, span in zip(dense, measured, strict=True)
    ]
