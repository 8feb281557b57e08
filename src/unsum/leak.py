"""Leak: what an attack found, and how sure it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from unsum.knowledge import Knowledge
from unsum.showing.cards import Card, page
from unsum.showing.wording import error, fixed, sample_count


class MapHint(Protocol):
    """Equations that hold for the maps that `layer` read, though they do not determine them."""

    layer: str

    @property
    def numbers(self) -> int:
        """Equations for each sample."""
        ...

    def correction(self, maps: Tensor) -> Tensor:
        """(B, C, h, w) what the equations add to a guess at the maps, differentiable; zero for
        those that were read."""
        ...


@dataclass(frozen=True)
class Counted:
    """How many samples a certified answer is of, as far as the update determines it. Only `certify`
    makes one.

    `distinct` samples are in the batch at least: none of them is another one's copy. `certain` says
    that the number of samples, and of each one's copies, is determined as well. Without the batch
    size it never is: a sample that weighs twice, by a class weight of 2 for instance, sends what
    two copies of it send. Where the rows of an answer are `visits` of local steps, a sample that
    two steps met has two of them.
    """

    distinct: int
    certain: bool
    visits: bool = False


@dataclass(frozen=True)
class Leak:
    """The answer of an attack, in the attacker's own order of samples.

    `residual` is how well the answer explains the gradient (relative). `predicted_error` is the
    relative error the attack itself expects in `features`; NaN where the method predicts none.
    `exact` is the certificate: these samples, with these features and labels, are in the batch, and
    no other of visible weight. `counts_certain` is a second one: of the number of samples and of
    each one's copies. Where it is false a sample that is listed twice may be one that weighs twice.

    `history` says how an attack that iterates got there: a tensor (S,) for every name, entry by
    entry at the iterations in `history["step"]`. RGLA notes `loss_w`, `loss_b` and `loss_loss`, its
    three losses without their weights, at the start, every so many steps and at the end. Methods
    that do not iterate leave it empty.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> inputs, labels = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> leak = unsum.separate(model, unsum.capture(model, inputs, labels))
        >>> leak.features.shape, leak.labels.tolist(), leak.exact
        (torch.Size([3, 64]), [1, 4, 4], True)
    """

    method: str
    targets: Tensor  # (B, C) probabilities as found
    logits: Tensor  # (B, C)
    features: Tensor  # (B, H)
    residual: float
    predicted_error: float
    exact: bool
    scale: float = 1.0  # factor the gradient had been multiplied by
    # (B,) how much each sample counts, 1 on average, where that was solved for
    weights: Tensor | None = None
    seconds: float = 0.0
    knowledge: Knowledge = field(default_factory=Knowledge)
    # (B,) the relative error expected in each sample's features, where that is known one by one
    errors: Tensor | None = None
    predicts: bool = True  # nothing speaks against the error that it predicts
    estimated_error: float = math.nan  # what would be predicted, were this the only explanation
    counted: Counted | None = None  # how many samples a certified answer has
    # (B, 3, h, w): in [0, 1] from an inverse, as the model takes them if peeled
    images: Tensor | None = None
    # (3, h, w) what the inverse draws of a photo of which nothing is known, where it has such a one
    blank: Tensor | None = None
    inputs: Tensor | None = None  # (B, …) raw inputs of the model, where its layers could be peeled
    inputs_exact: Tensor | None = None  # (B,) bool, the certificate of each input
    # features and logits are those of the pictures found, and add nothing to them
    pictures_first: bool = False
    # convolution → (B, C, h, w) what it read, if peeled
    inner: dict[str, Tensor] = field(default_factory=dict)
    # the same, NaN where nothing tells an entry
    partly: dict[str, Tensor] = field(default_factory=dict)
    hint: MapHint | None = None  # what gradients say of the maps below, which they do not determine
    # of a language model's batch: its sequences, in the attacker's order
    tokens: list[list[int]] | None = None
    # and which sentence of a pair each token is of, where texts are pairs
    segments: list[list[int]] | None = None
    loss: str = "cross-entropy"  # that the answer explains the gradient with
    # dense layer → (n, d) inputs of it, mixtures among them
    readings: dict[str, Tensor] = field(default_factory=dict)
    # of the client's samples, where many local steps hide who they are
    label_counts: LabelCounts | None = None
    # why the client may have trained otherwise than it is taken to have, as a clause
    training_doubt: str = ""
    named: Tensor | None = (
        # (n,) labels of the batch by a label rule, where the samples are too uncertain to have any
        None
    )
    occurred: dict[str, Tensor] = field(
        default_factory=dict
    )  # embedding → its rows that the samples asked for, ascending
    embedding_rows: dict[str, int] = field(default_factory=dict)  # how many rows those have
    # every attack on the way to this answer, in order
    tried: list[Attempt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    history: dict[str, Tensor] = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        return len(self.targets)

    @property
    def counts_certain(self) -> bool:
        """Whether the number of samples, and of each one's copies, is certified as well."""
        return self.exact and self.counted is not None and self.counted.certain

    @property
    def distinct(self) -> int:
        """How many of the samples found are distinct for certain; all of them where nothing is
        certified."""
        return self.batch_size if not self.exact or self.counted is None else self.counted.distinct

    def published(self) -> Leak:
        """The leak without a prediction that something speaks against, here and in what was tried
        on the way.

        Of an error of the whole sample or more it is only known that it is large.
        """
        tried = [
            one if one.leak is None else replace(one, leak=one.leak.published())
            for one in self.tried
        ]
        told = math.isinf(self.predicted_error) or (self.predicts and self.predicted_error < 1)
        predicted = self.predicted_error if told else math.nan
        return replace(self, tried=tried, predicted_error=predicted, estimated_error=self.estimate)

    @property
    def estimate(self) -> float:
        """The error that answers are chosen by: the predicted one or, where something speaks
        against it, what it would be."""
        return self.estimated_error if math.isnan(self.predicted_error) else self.predicted_error

    @property
    def uncounted(self) -> str:
        """What is not determined about the number of certified samples, in words; empty where
        nothing is open."""
        if not self.exact or self.counts_certain:
            return ""
        if self.counted is not None and self.counted.visits:
            return "a sample that several local steps met is listed for each of them"
        without = "" if self.knowledge.known_batch_size is not None else " without the batch size"
        return f"how many of each is not determined{without}"

    def number_of(self, what: str = "sample") -> str:
        """How many samples were found, in words, and what is not determined about their number."""
        if not self.uncounted:
            return f"{self.batch_size} {what}{'' if self.batch_size == 1 else 's'}"
        plural = "" if self.distinct == 1 else "s"
        if self.counted is not None and self.counted.visits:
            return (
                f"{self.batch_size} visits of at least {self.distinct} distinct {what}{plural}; "
                f"{self.uncounted}"
            )
        return f"{self.distinct} distinct {what}{plural}; {self.uncounted}"

    @property
    def labels(self) -> Tensor:
        """(B,) the most likely class of each sample."""
        return self.targets.argmax(dim=1)

    @property
    def made_up(self) -> bool:
        """Whether the samples listed may be none: the client may have trained otherwise than it is
        taken to have, and nothing vouches for the answer."""
        sure = self.inputs_exact is not None and bool(self.inputs_exact.any())
        return bool(self.training_doubt) and not self.exact and not sure

    @property
    def undecided(self) -> str:
        """Why samples that no attack found may leak all the same; empty where an attack was tried
        that applies."""
        if self.training_doubt:
            return self.training_doubt
        if not self.tried or any(
            not attempt.refused and not attempt.blind for attempt in self.tried
        ):
            return ""
        # A refusal below the head is not why the head does not determine the samples.
        first = next((one for one in self.tried if one.at_head or not one.refused), self.tried[0])
        return first.refused or first.blind

    @property
    def tells_rows(self) -> bool:
        """Whether an embedding shows which tokens or categories occurred: not where all of them
        did."""
        return any(
            len(rows) < self.embedding_rows.get(name, len(rows) + 1)
            for name, rows in self.occurred.items()
        )

    def __repr__(self) -> str:
        sure = "exact" if self.exact else f"predicted error {self.predicted_error:.1e}"
        number = self.number_of().partition(";")[0]
        return f"Leak({self.method}: {number}, {sure}, {self.seconds:.2f} s)"

    def _repr_html_(self) -> str:
        """For notebooks."""
        expected = error(self.predicted_error)
        title = f"{sample_count(self.batch_size)} found by {self.method}"
        if self.made_up:  # what it lists is no sample, and its prediction is of nothing
            return page("open", "Not certified", "No sample was told apart", self.notes, [])
        sure = "Certified exact" if self.exact else "Not certified"
        cards = self._cards() if self.tokens is None else list(map(_sequence_card, self.tokens))
        said = [f"The attack expects an error of {expected} in the features.", *self.notes]
        return page("severe" if self.exact else "open", sure, title, said, cards)

    def _cards(self) -> list[Card]:
        cards = []
        for i, label in enumerate(self.labels.tolist()):
            facts = [
                ("label", f"class {label}"),
                ("its probability", fixed(float(self.targets[i, label]), 2)),
            ]
            if self.inputs_exact is not None and bool(self.inputs_exact[i]):
                facts.append(("input", "certified exact"))
            picture = None if self.images is None else self.images[i]
            cards.append(Card(f"recovered sample {i + 1}", facts, [("recovered", picture)]))
        return cards


def _sequence_card(tokens: list[int]) -> Card:
    return Card(f"{len(tokens)} tokens", [(" ".join(map(str, tokens)), "")])


@dataclass(frozen=True)
class Attempt:
    """One attack that was tried on an update: what it answered, or why it refused.

    `blind` says why samples that it did not find may be there all the same: it does not apply to
    this update, or was cut short. `labels` (n,) are those of an attack that looks for nothing else,
    in no order.
    """

    method: str
    leak: Leak | None = None
    refused: str = ""
    blind: str = ""
    at_head: bool = True  # reads the last layer alone
    labels: Tensor | None = None


@dataclass(frozen=True)
class LabelCounts:
    """How many samples of each class a client has: (C,) counts, and intervals that hold the true
    one as often as `level` says.

    Without the number of `samples` they are shares of the whole. `sure` is a lower bound that holds
    whatever the model answered, as long as the client trains as declared.
    """

    counts: Tensor
    low: Tensor
    high: Tensor
    sure: Tensor
    level: float
    samples: int | None
    steps: int

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> LabelCounts:
        """What `to_dict` made."""
        read: dict[str, Any] = {
            name: torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
            for name, value in content.items()
        }
        return cls(**read)

    def to_dict(self) -> dict[str, Any]:
        """In plain types."""
        return {
            name: value.tolist() if isinstance(value, Tensor) else value
            for name, value in vars(self).items()
        }
