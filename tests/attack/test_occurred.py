"""Rows of embeddings that were asked for name the tokens or categories that occurred, whatever else
was found."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsum
from separate.language_models import batch, gpt2
from unsum.attack.chain import run_attack
from unsum.attack.occurred import _asked, rows_asked_for
from unsum.attack.options import AttackOptions
from unsum.audit.verdict import OCCURRED, judge_captured
from unsum.defend import Defense, parse_defense
from unsum.leak import Leak
from unsum.score.occurred import RowsNamed, rows_named

VALUES, WIDTH = 1000, 8


class Recommender(nn.Module):
    """(B, 2) numbers of a user's group and of an item → one of ten classes."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.group, self.item = nn.Embedding(40, WIDTH), nn.Embedding(VALUES, WIDTH)
        self.layers = nn.Sequential(
            nn.Linear(2 * WIDTH, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(
            torch.cat([self.group(x[:, 0].long()), self.item(x[:, 1].long())], dim=1)
        )


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


def attacked(model: nn.Module, update: unsum.Update) -> Leak:
    return run_attack(model, update, AttackOptions(pictures=False))


def clients(count: int = 64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(7)
    return torch.stack(
        [torch.randint(40, (count,)), torch.randint(VALUES, (count,))], 1
    ), torch.arange(count) % 10


@pytest.mark.parametrize("defense", [None, unsum.Clip(1e-3), unsum.Sign()])
def test_every_value_that_occurs_is_named_and_no_other(defense: Defense | None) -> None:
    torch.manual_seed(1)
    model, (x, y) = Recommender(), clients()
    update = unsum.capture(model, x, y, defenses=[] if defense is None else [defense])
    found = rows_asked_for(model, update)
    assert found["item"].tolist() == x[:, 1].unique().tolist()
    assert found["group"].tolist() == x[:, 0].unique().tolist()


class Alone(nn.Module):
    """(B, 1) numbers of an item → one of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(VALUES, WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.item(x[:, 0].long()))


class Reader(nn.Module):
    """(B, L) tokens → one of four classes, by their mean with their positions."""

    def __init__(self, *, refuses: int = 0) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(90, WIDTH), nn.Embedding(64, WIDTH)
        self.head, self.refuses = nn.Linear(WIDTH, 4), refuses

    def forward(self, x: Tensor) -> Tensor:
        if self.refuses and len(x) != self.refuses:
            raise ValueError("it takes batches of another size")
        places = self.place(torch.arange(x.shape[1], device=x.device))
        return self.head((self.word(x) + places).mean(1))


@pytest.mark.parametrize("count", [2, 16, 63])
@pytest.mark.parametrize("kind", [Alone, Recommender])
def test_the_most_frequent_values_are_named_as_any(kind: type[nn.Module], count: int) -> None:
    """Numbers by frequency: the values that occur are 0, 1, 2, …, as positions would be."""
    torch.manual_seed(1)
    model, first = kind(), torch.arange(count)
    x = torch.stack([first % 40, first], 1) if kind is Recommender else first[:, None]
    update = unsum.capture(model, x, torch.arange(count) % 10)
    assert rows_asked_for(model, update)["item"].tolist() == first.tolist()


@pytest.mark.parametrize("refuses", [0, 3])  # a model that takes no made-up input, too
@pytest.mark.parametrize("length", [9, 30])
def test_positions_are_no_values(length: int, refuses: int) -> None:
    torch.manual_seed(1)
    model, x = Reader(refuses=refuses), torch.randint(90, (3, length))
    update = unsum.capture(model, x, torch.arange(3))
    found = rows_asked_for(model, update)
    assert {name: rows.tolist() for name, rows in found.items()} == {"word": x.unique().tolist()}


def test_a_single_embedding_is_never_taken_for_positions() -> None:
    torch.manual_seed(1)

    class Refusing(Alone):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) != 20:
                raise ValueError("it takes batches of another size")
            return super().forward(x)

    model = Refusing()
    update = unsum.capture(model, torch.arange(20)[:, None], torch.arange(20) % 10)
    assert rows_asked_for(model, update)["item"].tolist() == list(range(20))


def test_values_that_all_occur_are_no_verdict_of_an_update() -> None:
    """Five values and a row of padding, which is no value: its gradient alone is zero."""
    torch.manual_seed(1)

    class Small(Alone):
        def __init__(self) -> None:
            super().__init__()
            self.item = nn.Embedding(6, WIDTH, padding_idx=0)

    model, y = Small(), torch.arange(64) % 10
    every = attacked(model, unsum.capture(model, 1 + torch.arange(64)[:, None] % 5, y))
    assert len(every.occurred["item"]) == every.embedding_rows["item"] == 5
    verdict = judge_captured(every, every.undecided)
    assert verdict.state == "not decidable"
    assert any("all there are, which gives nothing away" in said for said in verdict.details)
    (named,) = rows_named(every.occurred, model, lambda: model(1 + torch.arange(5)[:, None]))
    assert (named.rows, named.total, named.right, named.given_away) == (5, 5, 5, False)
    four = attacked(model, unsum.capture(model, 1 + torch.arange(64)[:, None] % 4, y))
    assert judge_captured(four, four.undecided).headline.startswith(OCCURRED)


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


@pytest.mark.parametrize("tails", ["normal", "Laplace"])
@pytest.mark.parametrize(("rows", "asked"), [(200, 12), (200, 60), (1000, 63), (200, 110)])
def test_rows_beyond_noise_of_any_tails_are_named(rows: int, asked: int, tails: str) -> None:
    """More than half of all rows are longer than noise, or its tails are heavy: the median of all
    rows is no measure then."""
    generator = torch.Generator().manual_seed(rows + asked)
    true = torch.randperm(rows, generator=generator)[:asked].sort().values
    gradient = torch.zeros(rows, WIDTH)
    gradient[true] = 1 + torch.rand(asked, WIDTH, generator=generator)
    if tails == "normal":
        noise = torch.randn(rows, WIDTH, generator=generator)
    else:  # of deviation 1, like the other
        uniform = torch.rand(rows, WIDTH, generator=generator) - 0.5
        noise = -uniform.sign() * (1 - 2 * uniform.abs()).log() / 2**0.5
    found = _asked(gradient + 0.03 * noise, None)
    assert found is not None
    assert found.tolist() == true.tolist()
    alone = _asked(noise, None)
    assert alone is None or len(alone) == 0


@pytest.mark.parametrize(("kind", "named"), [(Tied, {"read": [3, 9, 40]}), (TiedByHand, {})])
def test_shared_weights_are_told_apart_or_name_nothing(
    kind: type[Tied], named: dict[str, list[int]]
) -> None:
    torch.manual_seed(1)
    model, x = kind(), torch.tensor([3, 9, 9, 40])
    parameters = dict(model.named_parameters())
    loss = nn.functional.cross_entropy(model(x), torch.tensor([1, 2, 3, 4]))
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    found = rows_asked_for(model, unsum.Update(dict(zip(parameters, gradients, strict=True))))
    assert {name: rows.tolist() for name, rows in found.items()} == named


def test_an_audit_counts_the_values_and_never_calls_them_nothing() -> None:
    torch.manual_seed(1)
    model, (x, y) = Recommender(dropout=0.5), clients()
    audit = unsum.audit(model, (x.float(), y))
    item = next(named for named in audit.occurred if named.embedding == "item")
    total = len(x[:, 1].unique())
    assert (item.rows, item.total, item.named, item.right) == (VALUES, total, total, total)
    assert audit.verdict.state == "leaks"
    assert any(
        f"names {total} of the {total} rows" in sentence for sentence in audit.verdict.details
    )
    captured = judge_captured(audit.leak, audit.undecided)
    assert captured.state == "leaks"
    assert any(f"'item' names {total} rows" in sentence for sentence in captured.details)


def test_values_that_all_occur_are_no_news() -> None:
    """Both values of two: whoever says so without the update is right as well. Half of four, all
    named: 2 against 1."""
    assert not RowsNamed("sex", rows=2, total=2, named=2, right=2).given_away
    half = RowsNamed("race", rows=4, total=2, named=2, right=2)
    assert (half.by_chance, half.given_away) == (1.0, True)
    assert not RowsNamed("race", rows=4, total=2, named=4, right=2).given_away


def test_words_of_texts_that_are_not_found_are_named() -> None:
    """Dropout ends the search for the texts; of all tokens the last one of a text alone has no
    gradient."""
    torch.manual_seed(2)
    model = gpt2(tied=False, dropout=0.3)
    tokens = torch.cat(
        [torch.randperm(140)[:21].view(3, 7), torch.tensor([[140], [141], [142]])], 1
    )
    audit = unsum.audit(model, tokens)
    assert not audit.leak.exact
    (named,) = audit.occurred  # no positions
    assert (named.total, named.right, named.named) == (24, 21, 21)
    assert audit.verdict.state == "leaks"
    assert audit.verdict.headline == "This update gives away the words of the texts, in no order."


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_words_beside_the_heads_own_rows_are_named(dropout: float, noise: float) -> None:
    """15 positions in 48 features; the last of each text sends nothing back, unless it occurs
    elsewhere as well."""
    torch.manual_seed(1)
    model, tokens = gpt2(tied=True, dropout=dropout), torch.randperm(150)[:18].view(3, 6)
    update = unsum.capture_text(model, tokens, defenses=[unsum.Noise(noise)] if noise else [])
    found = rows_asked_for(model, update)
    assert found["transformer.wte"].tolist() == sorted(tokens[:, :-1].flatten().tolist())


@pytest.mark.parametrize("defense", ["prune:0.5", "sign", "quantize:8", "qsgd:64"])
@pytest.mark.parametrize("seed", [0, 2, 4, 8])
def test_no_word_is_claimed_that_a_defense_made(defense: str, seed: int) -> None:
    """What is removed or rounded leaves rows that span something else; up to 58 words were named
    that did not occur."""
    model = gpt2(tied=True, seed=seed)
    torch.manual_seed(seed + 100)
    tokens = torch.randint(150, (1 + seed % 5, 4 + seed % 7))
    found = rows_asked_for(
        model, unsum.capture_text(model, tokens, defenses=parse_defense(defense))
    )
    assert set(found.get("transformer.wte", torch.zeros(0)).tolist()) <= set(
        tokens.flatten().tolist()
    )


def test_words_are_not_claimed_where_the_heads_rows_fill_the_width() -> None:
    model = gpt2(tied=True, dropout=0.3)
    assert rows_asked_for(model, unsum.capture_text(model, batch(8, 8))) == {}
