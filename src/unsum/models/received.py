"""What a server received, in files: one update, or the weights before and after; and the model that
fits them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from unsum.errors import NoHeadError, UnsumError, needed, refuse
from unsum.files.tensor_file import TensorFile, read_tensors
from unsum.head import find_head
from unsum.local_training import LocalTraining
from unsum.models import LoadedModel, load_model
from unsum.models.momentum import without_momentum
from unsum.update import Kind, Update


@dataclass(frozen=True)
class Received:
    """`update` alone, or `before` and `after`. `delta` says that `update` is a change of weights,
    not a gradient.

    Of a change of weights the server may know how the client came to it: `learning_rate`, `steps`,
    `epochs`, `momentum` and `weight_decay`, as `LocalTraining` has them. `previous` is the client's
    update of the round before, which a momentum carries on in this one: `momentum` then, or one
    that is found, and `unsum.without_momentum` takes it off.

    Examples:
        >>> from pathlib import Path
        >>> import unsum
        >>> received = unsum.Received(
        ...     before=Path("round-4.npz"), after=Path("client.npz"), learning_rate=0.1
        ... )
        >>> received.learning_rate
        0.1
    """

    update: Path | None = None
    before: Path | None = None
    after: Path | None = None
    delta: bool = False
    learning_rate: float | None = None
    steps: int | None = None
    epochs: int = 1
    momentum: float = 0.0
    weight_decay: float = 0.0
    previous: Path | None = None

    def __post_init__(self) -> None:
        pair = self.before is not None or self.after is not None
        reasons = {
            "Two checkpoints make an update; give both --before and --after.": pair
            and None in (self.before, self.after),
            (
                "Give either an update (--update) or two checkpoints (--before and --after), not "
                "both."
            ): pair and self.update,
            (
                "Give an update (--update FILE), or two checkpoints (--before FILE --after FILE)."
            ): not (pair or self.update),
            "Two checkpoints are a delta already; leave --delta out.": self.delta and pair,
            (
                "The update before is taken off an update; give --update with --previous, not two "
                "checkpoints."
            ): (pair and self.previous),
            (
                "A gradient needs no learning rate or local steps; add --delta if it is a change "
                "of weights, or leave them out."
            ): (self._declared and not pair and not self.delta),
            "Epochs are of so many steps; say how many all epochs have together (--local-steps).": (
                self.epochs != 1 and self.steps is None
            ),
        }
        refuse(reasons)
        self.training  # noqa: B018 (refuses what cannot be)

    @property
    def _declared(self) -> bool:
        momentum = 0 if self.previous is not None else self.momentum
        return (self.learning_rate, self.steps, self.epochs, momentum, self.weight_decay) != (
            None,
            None,
            1,
            0,
            0,
        )

    @property
    def training(self) -> LocalTraining | None:
        """How the client trained, where more than the learning rate of one step is declared."""
        if self.steps is None and not self.weight_decay:
            return None
        return LocalTraining(
            self.learning_rate, self.steps or 1, None, self.weight_decay, self.momentum, self.epochs
        )

    def open(
        self,
        model: str,
        *,
        weights: str | Path | None = None,
        classes: int | None = None,
        seed: int = 0,
        size: int | None = None,
        fresh_head: bool = False,
        download: bool = False,
    ) -> tuple[LoadedModel, Update]:
        """The model, with as many classes as the update has, and the update under the model's
        names.

        Two checkpoints bring the model's weights along: `before` fills it unless `weights` does.
        `size` and `fresh_head` as in `load_model`; the fresh head is the one that a client with the
        same seed would have been sent.
        """
        filling = weights or self.before
        count = classes or self._classes(model, seed, download)
        how: dict[str, Any] = {
            "seed": seed,
            "size": size,
            "fresh_head": fresh_head,
            "download": download,
        }
        loaded = load_model(model, classes=count, weights=filling, any_input=True, **how)
        return loaded, self.read(loaded.model)

    def read(self, model: nn.Module) -> Update:
        """The update under the names of `model`'s parameters."""
        if self.update is not None:
            update = self._load(self.update, model)
            if self.training is not None:
                start = {name: weight.detach().cpu() for name, weight in model.named_parameters()}
                update = update.of_training(self.training, start)
            if self.previous is None:
                return update
            return without_momentum(update, self._load(self.previous, model), self.momentum or None)
        before, after = (
            needed(path, "A checkpoint, before or after,") for path in (self.before, self.after)
        )
        rate, training = self.learning_rate, self.training
        return Update.between(before, after, model=model, learning_rate=rate, training=training)

    def _load(self, path: Path, model: nn.Module) -> Update:
        kind: Kind | None = "delta" if self.delta else None
        return Update.load(path, model=model, kind=kind, learning_rate=self.learning_rate)

    def _classes(self, model: str, seed: int, download: bool) -> int:
        """The rows of the head's tensor: by its name in a model built for a try, else by its
        place."""
        held = needed(self.update or self.after, "The update")
        file = read_tensors(held, "update")
        built = load_model(model, classes=1, seed=seed, download=download, any_input=True).model
        try:
            name, head = find_head(built)
        except NoHeadError:
            return _outputs(built, file)
        weight = f"{name}.weight" if name else "weight"
        tensor = file.tensors.get(weight)
        if tensor is None:
            orders = (
                [[n for n, _ in built.named_parameters()], list(built.state_dict())]
                if file.ordered
                else []
            )
            fitting = [
                order for order in orders if len(order) == len(file.tensors) and weight in order
            ]
            tensor = list(file.tensors.values())[fitting[0].index(weight)] if fitting else None
        if tensor is not None and tensor.ndim == 2:
            return len(tensor)
        if head.out_features > 1:  # the model's own: it was not built for one class
            return head.out_features
        raise UnsumError(
            f"The update holds no {weight!r}, the last layer of {model!r}; pass the model that the "
            "client trained or, if the layer was left out on purpose, say with --classes how many "
            "classes it has."
        )


def _outputs(built: nn.Module, file: TensorFile) -> int:
    """How many times as many rows a tensor of the file has as that of a model of one output; 1
    where none differs."""
    for name, parameter in built.named_parameters():
        tensor = file.tensors.get(name)
        if (
            tensor is not None
            and tensor.shape[1:] == parameter.shape[1:]
            and len(tensor) != len(parameter)
        ):
            return max(len(tensor) // len(parameter), 1)
    return 1
