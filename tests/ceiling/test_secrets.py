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
from unsum.ceiling.cells import Cells
from unsum.ceiling.client import Played, World
from unsum.ceiling.coin import normal_cdf
from unsum.ceiling.components import Components, Entries
from unsum.ceiling.secret import Presence
from unsum.ceiling.tokens import Tokens
from unsum.data.table_schema import TableColumn, TableSchema
from unsum.defend.added import AddedNoise
from unsum.models.language import IGNORED, TextTask
from unsum.photos import coefficients, component


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
    # Around the row itself every cell and each alternative once: a number, three jobs, yes or no.
    assert read.pairs == 4 * (1 + 2 + 1 + 64)
    assert float(read.samples.min()) > 0.99
    assert float(hidden.samples.max()) < 0.1  # around rows at random, 64 draws of about 0
    assert read.cells is not None
    assert read.cells.shape == (4, 3)
    assert float(read.cells.min()) > 0.99
    assert 0.5 <= float(hidden.cells.max()) < 0.51  # type: ignore[union-attr]
    assert read.to_dict()["cells"] == read.cells.tolist()
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
    assert list(secret.weights) == [6.25, 0.25, 0.5, 0.5]  # a job stands against two others
    pairs = [secret.draw(stratum, generator()) for stratum in range(secret.strata)]
    assert pairs[0].other.inputs.tolist() == [[-2.0, 1.0, 0.0, 1.0, 0.0]]
    assert pairs[1].other.inputs.tolist() == [[3.0, 0.0, 0.0, 1.0, 0.0]]
    assert [pair.other.inputs[0, 2:].tolist() for pair in pairs[2:]] == [[0, 0, 1], [1, 0, 0]]
    assert [pair.discrete for pair in pairs] == [False, True, True, True]
    distances = Distances(lambda w: Played({"sent": w.inputs[:, 0]}), world, [secret])
    distances.cycle(0, "own")
    found = distances.known(0, AddedNoise("gaussian", 1e-3), "own")
    assert found.upper == pytest.approx(6.25 / 7.5)  # the number alone is sent
    assert found.guess == pytest.approx(2 / 3)  # of a cell, whichever


def test_a_category_counts_as_the_mean_over_all_others_and_not_as_one_that_was_drawn() -> None:
    """One category of three, of which one alternative sends the same and the other does not."""
    job = TableColumn("job", "category", values=("baker", "nurse", "smith"))
    schema = TableSchema((job,), "outcome", ("a", "b"))
    world = World(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([0]))
    for seed in range(4):
        secret = Cells(world, 0, schema, torch.zeros(3, dtype=torch.float64))
        distances = Distances(
            lambda w: Played({"sent": w.inputs[:, 2]}), world, [secret], seed=seed
        )
        distances.cycle(0, "own")
        found = distances.known(0, AddedNoise("gaussian", 1e-3), "own")
        assert (found.lower, found.upper, found.guess) == (0.5, 0.5, 0.75)


def test_a_row_of_many_categories_is_drawn_from_with_an_interval() -> None:
    values = tuple(map(str, range(100)))
    schema = TableSchema((TableColumn("town", "category", values=values),), "y", ("a", "b"))
    world = World(torch.nn.functional.one_hot(torch.tensor([7]), 100).float(), torch.tensor([0]))
    secret = Cells(world, 0, schema, torch.zeros(100, dtype=torch.float64))
    assert not secret.exhaustive
    drawn = {int(secret.draw(0, generator(n)).other.inputs.argmax()) for n in range(400)}
    assert 7 not in drawn
    assert len(drawn) > 90
    distances = Distances(lambda w: Played({"sent": w.inputs[:, 0]}), world, [secret])
    for _ in range(8):
        distances.cycle(0, "own")
    found = distances.known(0, AddedNoise("gaussian", 1.0), "own")
    assert found.lower < found.upper


# Worlds at random.


def other_values(secret: Components | Entries | Cells | Tokens, world: World, seed: int) -> World:
    return secret.shuffled(world, generator(seed))


def test_a_photo_at_random_has_the_same_components_with_other_signs() -> None:
    world, guess = photo()
    secret = Components(world, 1, guess[1], pictures=True)
    off, flips = coefficients((world.inputs - 0.5)[1:2])[0].flatten(), []
    for seed in range(8):
        base = other_values(secret, world, seed)
        assert torch.equal(base.inputs[[0, 2]], world.inputs[[0, 2]])
        there = coefficients((base.inputs - 0.5)[1:2])[0].flatten()
        assert torch.allclose(there.abs(), off.abs(), atol=1e-9)
        flips.append(float((there * off < 0).double().mean()))
        for view in secret.views:
            pair = secret.draw(seed % 4, generator(seed), base, view)
            assert pair.one is base
            mirrored = coefficients((pair.other.inputs - 0.5)[1:2])[0].flatten()
            place = pair.name[1]
            assert float(mirrored[place]) == pytest.approx(-float(there[place]))
            assert float((mirrored - there).abs().sum()) == pytest.approx(
                2 * abs(float(off[place]))
            )
    assert sum(flips) / len(flips) == pytest.approx(0.5, abs=0.05)


def test_without_tone_the_means_of_the_colors_are_never_drawn() -> None:
    world, guess = photo(1, 3, 4)
    secret, n = Components(world, 0, guess[0], pictures=True), 2000
    squares = coefficients(world.inputs - 0.5)[0].flatten(1).square()
    squares[:, 0] = 0
    drawn = torch.bincount(
        torch.tensor(
            [secret.draw(k % 4, generator(k), None, "toneless").name[1] for k in range(n)]
        ),
        minlength=48,
    )
    expected = squares.flatten() / squares.sum()
    assert float((drawn / n - expected).abs().max()) < 4 * math.sqrt(0.25 / n)
    assert not drawn.view(3, 16)[:, 0].any()


def test_entries_cells_and_tokens_at_random_are_at_one_of_their_two_values() -> None:
    rows = World(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.tensor([0, 1]))
    entries = Entries(rows, 1, torch.tensor([1.0, 0.5, 0.0]))
    schema = TableSchema(
        (
            TableColumn("age", "number"),
            TableColumn("smokes", "category", values=("no", "yes")),
        ),
        "outcome",
        ("a", "b"),
    )
    table = World(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([0]))
    cells = Cells(table, 0, schema, torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))
    words = World(torch.tensor([[3, 1, 4, 0]]), torch.tensor([[3, 1, 4, IGNORED]]))
    tokens = Tokens(words, 0, torch.tensor([[7, 8, 9, 9]]), torch.arange(3))
    for secret, world, entries_of_it in ((entries, rows, 2), (cells, table, 2), (tokens, words, 3)):
        seen = {str(other_values(secret, world, seed).inputs.tolist()) for seed in range(64)}
        assert len(seen) == 2**entries_of_it
        for seed in range(16):
            base = other_values(secret, world, seed)
            pair = secret.draw(seed % secret.strata, generator(seed), base)
            assert pair.one is base
            assert str(pair.other.inputs.tolist()) in seen  # one further step, and no third value
            assert pair.other.inputs.tolist() != base.inputs.tolist()
    targets = {
        str(base.targets.tolist()) + str(base.inputs.tolist())
        for base in (other_values(tokens, words, seed) for seed in range(64))
    }
    assert len(targets) == 8  # labels change with their tokens


# Text.


def language_model(vocabulary: int = 12) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(vocabulary, 6), nn.Linear(6, vocabulary))


def test_tokens_of_a_text_are_told_from_their_likeliest_alternatives() -> None:
    tokens = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    read = unsum.ceiling(language_model(), tokens, noise=1e-6)
    hidden = unsum.ceiling(language_model(), tokens, noise=100.0)
    assert (read.unit, read.pairs) == ("text", 10 + 2 * 64)
    assert float(read.samples.min()) > 0.999
    assert float(hidden.samples.max()) < 0.1


def test_of_tokens_counts_what_is_named_and_not_a_squared_error() -> None:
    """The chance p to name one of two is 2 p − 1 beyond a guess, more than the share of variance
    that it explains."""
    found = unsum.ceiling(language_model(), torch.tensor([[3, 1, 4]]), noise=0.3)
    assert found.samples.tolist() == pytest.approx([2 * float(found.guesses[0]) - 1])
    assert found.distances is not None
    clean = found.distances.found[0]
    expected = sum(2 * normal_cdf(math.sqrt(one.squared) / 0.6) - 1 for one in clean) / 3
    around_itself = found.distances.known(0, found.noise, "own")
    assert around_itself.upper == pytest.approx(expected)
    assert expected > sum(one.known(found.noise) for one in clean) / 3
    assert float(found.samples[0]) >= expected


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
