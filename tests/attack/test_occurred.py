"""Rows of embeddings that were asked for name the tokens or categories that occurred, whatever else was found."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsum
from separate.language_models import batch, gpt2
from unsum.attack.occurred import rows_asked_for
from unsum.audit.verdict import judge_captured
from unsum.defend import Defense
from unsum.score.occurred import RowsNamed

VALUES, WIDTH = 1000, 8


class Recommender(nn.Module):
    """(B, 2) numbers of a user's group and of an item → one of ten classes."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.group, self.item = nn.Embedding(40, WIDTH), nn.Embedding(VALUES, WIDTH)
        self.layers = nn.Sequential(nn.Linear(2 * WIDTH, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(torch.cat([self.group(x[:, 0].long()), self.item(x[:, 1].long())], dim=1))


class Tied(nn.Module):
    """The head's weights are the embedding's: its gradient writes to every row."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Embedding(50, 64)
        self.head = nn.Linear(64, 50)
        self.head.weight = self.read.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.read(x))


class TiedByHand(Tied):
    """The same, in a way that no module shows."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.read(x).relu(), self.read.weight)


def clients(count: int = 64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(7)
    return torch.stack([torch.randint(40, (count,)), torch.randint(VALUES, (count,))], 1), torch.arange(count) % 10


@pytest.mark.parametrize("defense", [None, unsum.Clip(1e-3), unsum.Sign()])
def test_every_value_that_occurs_is_named_and_no_other(defense: Defense | None) -> None:
    torch.manual_seed(1)
    model, (x, y) = Recommender(), clients()
    update = unsum.capture(model, x, y, defenses=[] if defense is None else [defense])
    found = rows_asked_for(model, update)
    assert found["item"].tolist() == x[:, 1].unique().tolist()
    assert found["group"].tolist() == x[:, 0].unique().tolist()


def test_several_steps_name_every_value_as_well() -> None:
    torch.manual_seed(1)
    model, (x, y) = Recommender(), clients(12)
    update = unsum.capture_local(model, x, y, learning_rate=0.1, local_steps=3)
    assert rows_asked_for(model, update)["item"].tolist() == x[:, 1].unique().tolist()


def test_rows_beyond_the_noise_are_named() -> None:
    """The rows asked for are at least 20 times as long as those of noise."""
    torch.manual_seed(1)
    model, (x, y) = Recommender(), clients(20)
    clean = unsum.capture(model, x, y)
    least = clean.gradients["item.weight"][x[:, 1]].norm(dim=1).min()
    noisy = unsum.Noise(float(least) / (20 * WIDTH**0.5))(clean)
    assert bool(noisy.gradients["item.weight"].any(1).all())
    assert rows_asked_for(model, noisy)["item"].tolist() == x[:, 1].unique().tolist()
    assert rows_asked_for(model, unsum.Noise(10.0)(clean)).get("item", torch.zeros(0)).numel() == 0


@pytest.mark.parametrize("kind", [Tied, TiedByHand])
def test_shared_weights_name_nothing(kind: type[Tied]) -> None:
    torch.manual_seed(1)
    model, x = kind(), torch.tensor([3, 9, 9, 40])
    parameters = dict(model.named_parameters())
    loss = nn.functional.cross_entropy(model(x), torch.tensor([1, 2, 3, 4]))
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    assert rows_asked_for(model, unsum.Update(dict(zip(parameters, gradients, strict=True)))) == {}


def test_an_audit_counts_the_values_and_never_calls_them_nothing() -> None:
    torch.manual_seed(1)
    model, (x, y) = Recommender(dropout=0.5), clients()
    audit = unsum.audit(model, (x.float(), y))
    item = next(named for named in audit.occurred if named.embedding == "item")
    total = len(x[:, 1].unique())
    assert (item.rows, item.total, item.named, item.right) == (VALUES, total, total, total)
    assert audit.verdict.state == "leaks"
    assert any(f"names {total} of the {total} rows" in sentence for sentence in audit.verdict.details)
    captured = judge_captured(audit.leak, audit.undecided)
    assert captured.state == "leaks"
    assert any(f"'item' names {total} rows" in sentence for sentence in captured.details)


def test_values_that_all_occur_are_no_news() -> None:
    """Both values of two: whoever says so without the update is right as well. Half of four, all named: 2 against 1."""
    assert not RowsNamed("sex", rows=2, total=2, named=2, right=2).given_away
    half = RowsNamed("race", rows=4, total=2, named=2, right=2)
    assert (half.by_chance, half.given_away) == (1.0, True)
    assert not RowsNamed("race", rows=4, total=2, named=4, right=2).given_away


def test_words_of_texts_that_are_not_found_are_named() -> None:
    """Dropout ends the search for the texts; of all tokens the last one of a text alone has no gradient."""
    torch.manual_seed(2)
    model = gpt2(tied=False, dropout=0.3)
    tokens = torch.cat([torch.randperm(140)[:21].view(3, 7), torch.tensor([[140], [141], [142]])], 1)
    audit = unsum.audit(model, tokens)
    assert not audit.leak.exact
    (named,) = audit.occurred  # no positions
    assert (named.total, named.right, named.named) == (24, 21, 21)
    assert audit.verdict.state == "leaks"
    assert audit.verdict.headline == "This update gives away the words of the texts, in no order."


def test_words_are_not_claimed_where_the_embedding_is_the_head() -> None:
    model = gpt2(tied=True, dropout=0.3)
    audit = unsum.audit(model, batch(3, 8))
    assert audit.occurred == []
