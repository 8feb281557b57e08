"""What is in question: photos' components, cells, tokens; and that every pair differs in one secret
alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import unsum
from unsum.ceiling import alternatives
from unsum.ceiling.alternatives import changeable, likeliest_tokens, other_labels
from unsum.ceiling.bits import bits_sent, leakage_of_bits
from unsum.ceiling.bound import Distances
from unsum.ceiling.client import Played, World
from unsum.ceiling.coin import normal_cdf
from unsum.ceiling.photos import coefficients, component
from unsum.ceiling.secret import Cells, Components, Entries, Presence, Tokens
from unsum.data.table_schema import TableColumn, TableSchema
from unsum.defend.added import AddedNoise
from unsum.models.language import IGNORED, TextTask


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_basis_is_orthonormal_and_read_back() -> None:
    shape = (3, 4, 6)
    basis = torch.stack([component(shape, place) for place in range(3 * 4 * 6)])
    flat = basis.flatten(1)
    assert torch.allclose(flat @ flat.T, torch.eye(72, dtype=torch.float64), atol=1e-12)
    read = coefficients(basis).flatten(1)
    assert torch.allclose(read, torch.eye(72, dtype=torch.float64), atol=1e-12)


def photo(count: int = 3, channels: int = 3, side: int = 8) -> tuple[World, torch.Tensor]:
    """A client's world, and what its samples would be answered with: gray."""
    inputs = torch.rand(count, channels, side, side, dtype=torch.float64, generator=generator(5))
    return World(inputs, torch.arange(count)), torch.full_like(inputs, 0.5).flatten(1)


def test_a_photos_pair_differs_in_one_component_which_is_mirrored_at_the_guess() -> None:
    world, guess = photo()
    secret = Components(world, 1, guess[1], pictures=True)
    off = coefficients((world.inputs - 0.5)[1:2])[0].flatten()
    for stratum in range(secret.strata):
        pair = secret.draw(stratum, generator(stratum))
        assert pair.one is world  # the client's own, which is played once for all pairs
        assert torch.equal(pair.other.inputs[[0, 2]], world.inputs[[0, 2]])
        mirrored = coefficients((pair.other.inputs - 0.5)[1:2])[0].flatten()
        place = int((mirrored - off).abs().argmax())
        assert float(mirrored[place]) == pytest.approx(-float(off[place]))
        assert float((mirrored - off).abs().sum()) == pytest.approx(2 * abs(float(off[place])))
        assert pair.name == (1, place)
        # the guess is as far off
        assert (pair.other.inputs[1] - 0.5).norm() == pytest.approx(float(off.norm()))


def test_components_are_drawn_as_often_as_their_share_of_the_error_says() -> None:
    """So that the mean over draws is Σ c² known / Σ c², in the unit of the leakage."""
    world, guess = photo(1, 1, 4)
    secret, n = Components(world, 0, guess[0], pictures=True), 4000
    squares = coefficients(world.inputs - 0.5)[0].flatten().square()
    drawn = torch.bincount(
        torch.tensor([secret.draw(k % 4, generator(k)).name[1] for k in range(n)]),
        minlength=len(squares),
    )
    expected = squares / squares.sum()
    assert float((drawn / n - expected).abs().max()) < 4 * math.sqrt(0.25 / n)
    # χ² of the counts
    assert float(((drawn / n - expected).square() / expected).sum()) < 2 * len(squares) / n


def test_a_sample_that_anybody_guesses_has_no_secret() -> None:
    world, _ = photo(1)
    assert torch.equal(
        *(
            Components(world, 0, world.inputs[0], p).draw(0, generator()).other.inputs
            for p in (True, False)
        )
    )
    assert Components(world, 0, world.inputs[0]).draw(0, generator()).other is world
    rows = World(torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
    moved = Components(rows, 0, torch.tensor([1.0, 0.5])).draw(0, generator()).other.inputs
    # of other data an entry, and never one that is the guess already
    assert moved.tolist() == [[1.0, -1.0]]


def test_entries_are_drawn_by_variance_and_never_where_there_is_none() -> None:
    spread = torch.tensor([0.0, 1.0, 0.0, 2.0, 0.0])
    secret = Entries(World(torch.zeros(1, 5), torch.tensor([0])), 0, spread)
    drawn = [
        int((pair.one.inputs - pair.other.inputs).abs().argmax())
        for pair in (secret.draw(0, generator(n)) for n in range(2000))
    ]
    assert set(drawn) == {1, 3}
    assert drawn.count(3) / 2000 == pytest.approx(0.8, abs=0.04)


def test_presence_leaves_one_row_out_of_everything() -> None:
    world = World(torch.arange(3), torch.arange(3), torch.ones(3, 2), None)
    one, other = Presence(world, 1).draw(0, generator())[:2]
    assert one is world
    assert (other.inputs.tolist(), other.mask.shape, other.segments) == ([0, 2], (2, 2), None)  # type: ignore[union-attr]


# Tables.

TABLE = """age,job,smokes,outcome
31,nurse,yes,a
42,baker,no,b
53,nurse,no,a
64,smith,yes,b
25,baker,no,a
36,smith,yes,b
"""


def test_cells_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text(TABLE)
    how = {"data": path, "target": "outcome", "batch": 4}
    read = unsum.ceiling("mlp", noise=1e-6, **how)
    hidden = unsum.ceiling("mlp", noise=100.0, **how)
    assert read.unit == "row"
    assert read.pairs == 4 * 3  # every cell once
    assert float(read.samples.min()) > 0.99
    assert float(hidden.samples.max()) < 0.01
    assert torch.equal(read.lower, read.samples)  # nothing is left to chance
    assert 0.5 <= float(hidden.labels.max()) < 0.51


def test_a_number_is_mirrored_and_a_category_exchanged_and_each_counts_as_in_the_leakage() -> None:
    number, two = (
        TableColumn("age", "number"),
        TableColumn("smokes", "category", values=("no", "yes")),
    )
    job = TableColumn("job", "category", values=("baker", "nurse", "smith"))
    schema = TableSchema((number, two, job), "outcome", ("a", "b"))
    world = World(torch.tensor([[3.0, 1.0, 0.0, 1.0, 0.0]]), torch.tensor([0]))
    secret = Cells(world, 0, schema, torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0], dtype=torch.float64))
    assert list(secret.weights) == [6.25, 0.25, 1.0]
    pairs = [secret.draw(stratum, generator()) for stratum in range(secret.strata)]
    assert pairs[0].other.inputs.tolist() == [[-2.0, 1.0, 0.0, 1.0, 0.0]]
    assert pairs[1].other.inputs.tolist() == [[3.0, 0.0, 0.0, 1.0, 0.0]]
    assert pairs[2].other.inputs[0, 2:].tolist() in ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0])
    assert [pair.discrete for pair in pairs] == [False, True, True]
    distances = Distances(lambda w: Played({"sent": w.inputs[:, 0]}), world, [secret])
    distances.cycle(0)
    found = distances.known(0, AddedNoise("gaussian", 1e-3))
    assert found.upper == pytest.approx(6.25 / 7.5)  # the number alone is sent
    assert found.guess == pytest.approx(2 / 3)  # of a cell, whichever


# Text.


def language_model(vocabulary: int = 12) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(vocabulary, 6), nn.Linear(6, vocabulary))


def test_tokens_of_a_text_are_told_from_their_likeliest_alternatives() -> None:
    tokens = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    read = unsum.ceiling(language_model(), tokens, noise=1e-6)
    hidden = unsum.ceiling(language_model(), tokens, noise=100.0)
    assert (read.unit, read.pairs) == ("text", 10)
    assert float(read.samples.min()) > 0.999
    assert float(hidden.samples.max()) < 0.01


def test_of_tokens_counts_what_is_named_and_not_a_squared_error() -> None:
    """The chance p to name one of two is 2 p − 1 beyond a guess, more than the share of variance
    that it explains."""
    found = unsum.ceiling(language_model(), torch.tensor([[3, 1, 4]]), noise=0.3)
    assert found.samples.tolist() == pytest.approx([2 * float(found.guesses[0]) - 1])
    clean = found.distances.found[0]  # type: ignore[union-attr]
    expected = sum(2 * normal_cdf(math.sqrt(one.squared) / 0.6) - 1 for one in clean) / 3
    assert found.samples.tolist() == pytest.approx([expected])
    assert float(found.samples[0]) > sum(one.known(found.noise) for one in clean) / 3


def test_a_long_text_is_drawn_from_evenly() -> None:
    """Of 33 tokens in four strata, each is as likely as any other: no quarter of nine weighs
    less."""
    places = torch.arange(33)
    world = World(torch.zeros(1, 33, dtype=torch.long), torch.full((1, 33), IGNORED))
    secret = Tokens(world, 0, torch.ones(1, 33, dtype=torch.long), places)
    drawn = [int((secret.draw(n % 4, generator(n)).other.inputs).argmax()) for n in range(6600)]
    counts = torch.bincount(torch.tensor(drawn), minlength=33)
    assert int(counts.min()) > 200 - 4 * 15
    assert int(counts.max()) < 200 + 4 * 15


def test_what_a_prompt_says_is_in_question_and_padding_is_not() -> None:
    model, labels = language_model(), torch.tensor([[IGNORED, IGNORED, 4, 1, IGNORED]])
    assert changeable(model, torch.tensor([[3, 1, 4, 1, 0]]), None, labels, 0).tolist() == [
        0,
        1,
        2,
        3,
    ]
    assert (
        changeable(
            model, torch.tensor([[3, 1]]), None, torch.tensor([[IGNORED, IGNORED]]), 0
        ).tolist()
        == []
    )


def test_a_text_without_tokens_is_at_rest() -> None:
    labels = torch.tensor([[3, 1, 4], [IGNORED] * 3])
    secret = Tokens(
        World(torch.zeros(2, 3, dtype=torch.long), labels),
        1,
        torch.ones(2, 3, dtype=torch.long),
        torch.arange(0),
    )
    assert secret.strata == 1
    assert secret.draw(0, generator()).one is secret.draw(0, generator()).other


def test_the_alternative_of_a_masked_token_is_not_the_token_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model that is sure of what is masked: the second likeliest stands against it, or both
    worlds were one."""
    monkeypatch.setattr(alternatives, "task_of", lambda _model: TextTask.MASKED)
    model = language_model(5)
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([0.0, 1.0, 9.0, 2.0, 3.0]))
    tokens, labels = torch.tensor([[0, 1]]), torch.tensor([[2, IGNORED]])  # 0 masks token 2
    assert likeliest_tokens(model, tokens, None, labels, seed=0).tolist() == [[4, 2]]


# Labels.


def test_other_labels_are_the_likeliest() -> None:
    model = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 0], [2, 0], [1, 0]]))
    x = torch.tensor([[1.0, 0.0]])
    assert other_labels(model, x, torch.tensor([0])) == [torch.tensor(1)]
    assert other_labels(model, x, torch.tensor([2])) == [torch.tensor(0)]
    assert other_labels(model, x, torch.tensor([[0.1, 0.2, 0.7]]))[0].tolist() == pytest.approx(
        [0.7, 0.2, 0.1]
    )  # type: ignore[index]
    assert other_labels(model, x, torch.tensor([[1.0, 1.0, 0.0]]))[0].tolist() == [1, 1, 1]  # type: ignore[index]
    assert other_labels(model, x, torch.tensor([7])) is None  # no class of this model
    assert other_labels(model, x, torch.tensor([0.5])) is None


# Bits.


def test_bits_of_equal_variances_by_hand() -> None:
    """n components at b bits each leave 2^(−2b) of every variance."""
    for n, b in ((4, 1.0), (10, 0.5), (3, 4.0)):
        assert leakage_of_bits(torch.ones(n), n * b) == pytest.approx(1 - 2 ** (-2 * b))
    assert leakage_of_bits(torch.ones(4), 0) == 0
    # 4² and 1²: the first alone is described until it is as small as the second, after log₂ 4 = 2
    # bits.
    assert leakage_of_bits(torch.tensor([4.0, 1.0]), 2.0) == pytest.approx(15 / 17)


def test_bits_that_are_sent() -> None:
    sizes = {"w": 90, "b": 10}
    assert bits_sent(sizes, []) == 3200
    assert bits_sent(sizes, [], each=64.0) == 6400
    assert bits_sent(sizes, [unsum.BFloat16()]) == 1600
    assert bits_sent(sizes, [unsum.Quantize(4)]) == 4 * 100 + 64 * 2
    assert bits_sent(sizes, [unsum.Sign()]) == pytest.approx(100 * math.log2(3))
    assert bits_sent(sizes, [unsum.PruneGlobal(0.99)]) == pytest.approx(32 + math.log2(100))
    # the mask looks at the samples again
    assert bits_sent(sizes, [unsum.Sign(), unsum.Soteria(0.5)]) == 3200
