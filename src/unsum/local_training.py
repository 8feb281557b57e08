"""LocalTraining: what a server knows of how its clients train between two messages."""

from __future__ import annotations

from dataclasses import dataclass

from unsum.errors import UnsumError, shown
from unsum.running.declared import check_positive, check_share, check_whole


@dataclass(frozen=True)
class LocalTraining:
    """What the server knows of how its clients train. Whatever stays None must be found by the
    attack.

    `steps` counts the optimizer steps of a round, those of all epochs together; where BatchNorm's
    counters are sent along, they tell it anyway. `batch_size` is how many samples one step sees;
    the last step of an epoch may see fewer. `momentum` and `weight_decay` are those of SGD.
    `epochs` says how often the client goes through its samples, each time in the same mini-batches;
    with one, no step sees a sample again.

    Examples:
        >>> LocalTraining(learning_rate=0.1, steps=4, momentum=0.9).described()
        'How the client trains: 4 local steps of SGD at a learning rate of 0.1, a momentum of 0.9.'
    """

    learning_rate: float | None = None
    steps: int | None = None
    batch_size: int | None = None
    weight_decay: float = 0.0
    momentum: float = 0.0
    epochs: int = 1

    def __post_init__(self) -> None:
        if self.learning_rate is not None:
            check_positive("The learning rate", self.learning_rate)
        check_whole("The number of epochs", self.epochs)
        for what, count in (("local steps", self.steps), ("samples in a step", self.batch_size)):
            if count is not None:
                check_whole(f"The number of {what}", count)
        check_share("The weight decay", self.weight_decay)
        check_share("The momentum", self.momentum, below=1)
        if self.weight_decay and self.learning_rate is None:
            raise UnsumError(
                "Weight decay can be taken out of a delta only where the learning rate is known; "
                "give both."
            )
        if self.steps is not None and self.steps % self.epochs:
            raise UnsumError(
                f"{shown(self.steps)} steps are not {shown(self.epochs)} epochs of equally many; "
                "count the steps of all epochs together."
            )

    @property
    def several_steps(self) -> bool:
        return self.steps is not None and self.steps > 1

    @property
    def samples(self) -> int | None:
        """How many samples an update is of, where the batch size tells: every step of an epoch sees
        all of them."""
        return self.batch_size if self.steps in (None, self.epochs) else None

    def described(self) -> str:
        """One plain sentence."""
        rate = "an unknown learning rate"
        if self.learning_rate is not None:
            rate = f"a learning rate of {self.learning_rate:g}"
        steps = "1 local step" if (self.steps or 1) == 1 else f"{self.steps} local steps"
        parts = {
            f"{steps} of SGD at {rate}": True,
            f"a momentum of {self.momentum:g}": self.momentum,
            f"a weight decay of {self.weight_decay:g}": self.weight_decay,
            f"{self.epochs} epochs over the same mini-batches": self.epochs > 1,
        }
        return (
            f"How the client trains: {', '.join(part for part, holds in parts.items() if holds)}."
        )


def mini_batches(samples: int, steps: int, size: int | None = None) -> tuple[int, ...]:
    """Sizes of the mini-batches of one epoch as a loader makes them: equal ones, of `size` where
    given, the last one smaller.

    >>> mini_batches(8, 4), mini_batches(10, 4), mini_batches(9, 3, size=4)
    ((2, 2, 2, 2), (3, 3, 3, 1), (4, 4, 1))
    """
    size = size or -(-samples // steps)
    sizes = [min(size, max(samples - size * step, 0)) for step in range(steps)]
    # a loader would have made other steps: as equal as can be, then
    if sizes[-1] == 0 or sum(sizes) < samples:
        return tuple(samples // steps + (step < samples % steps) for step in range(steps))
    return tuple(sizes)
