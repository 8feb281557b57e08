"""Declarations, their cells and their keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from support.bench_cells import CONV, EXACT, FGLA, cell
from unsum.active import SERVERS
from unsum.labels import LABEL_RULES
from unsum.match import MATCHERS
from unsum.peel import PEELERS
from unsum.separate import SEPARATORS
from unsum_bench import material as keys
from unsum_bench.declare import Attack, Grid, Network
from unsum_bench.experiments import EXPERIMENTS, field
from unsum_bench.material import Material, declaration_of, key_of
from unsum_bench.plan import cells_of, cells_of_all
from unsum_bench.table import _belongs

EMBEDDED = Material()


def test_a_grid_is_the_product_of_its_axes() -> None:
    grid = Grid((CONV,), (EXACT, FGLA), (2, 4), (0, 2), defenses=("none", "clip:4"), seeds=3)
    cells = list(grid.cells())
    assert len(cells) == len(set(cells)) == 2 * 2 * 2 * 2 * 3
    assert {(c.batch, c.same, c.defense, c.seed) for c in cells} >= {
        (2, 0, "none", 0),
        (4, 2, "clip:4", 2),
    }


def test_all_tables_and_figures_of_both_papers_and_the_field_are_declared() -> None:
    figures = {*range(1, 18)} - {4} | {"4-left", "4-right"}
    expected = {f"rgla-{n}" for n in range(1, 13)} | {f"rgla-figure-{n}" for n in figures}
    expected |= {"soft-success", "soft-noise", "soft-fcn", "soft-cnn", "field"}
    assert set(EXPERIMENTS) == expected


@pytest.mark.parametrize("size", ["smoke", "small", "paper"])
def test_every_table_has_cells_of_every_size_and_says_where_it_differs(size: str) -> None:
    for experiment in EXPERIMENTS.values():
        assert cells_of(experiment, size)  # type: ignore[arg-type]
        assert experiment.deviations[size], experiment.name  # type: ignore[index]


def test_the_field_is_every_method_of_every_registry_against_the_four_defenses() -> None:
    pairs = {
        ((c.attack.family, c.attack.name), c.defense)
        for c in cells_of(EXPERIMENTS["field"], "smoke")
    }
    attacks = {("attack", e.name) for registry in (SEPARATORS, MATCHERS) for e in registry}
    attacks |= {("peeler", e.name) for e in PEELERS} | {("server", e.name) for e in SERVERS}
    attacks |= {("labels", e.name) for e in LABEL_RULES}
    assert pairs == {(attack, defense) for attack in attacks for defense in field.SMOKE_DEFENSES}


def test_tables_share_cells_and_first_batches_come_first() -> None:
    tables = [EXPERIMENTS["rgla-6"], EXPERIMENTS["rgla-10"]]
    together = cells_of_all(tables, "small")
    assert len(together) < sum(len(cells_of(table, "small")) for table in tables)
    assert [c.seed for c in together] == sorted(c.seed for c in together)


def test_subjects_stand_under_the_papers_numbers() -> None:
    """A reader who lays the paper beside the page finds the same subject under the same number."""
    subjects = {
        1: "how large a batch", 2: "three defenses", 3: "objectives", 4: "CIFAR-100",
        5: "estimated loss", 6: "logits", 7: "starts", 8: "duplicate labels", 9: "iLRG",
        10: "batch size", 11: "larger photos", 12: "compression",
    }  # fmt: skip
    for number, subject in subjects.items():
        assert subject in EXPERIMENTS[f"rgla-{number}"].title
    for name, subject in {
        "3": "twins",
        "6": "estimated loss",
        "9": "iterations",
        "17": "ablation",
    }.items():
        assert subject in EXPERIMENTS[f"rgla-figure-{name}"].title


def test_every_published_figure_stands_beside_a_row_of_ours() -> None:
    """Of attacks that the bench measures at the paper's size; the others' rows are those of size
    small."""
    for experiment in EXPERIMENTS.values():
        cells = (
            [*cells_of(experiment, "paper"), *cells_of(experiment, "small")]
            if experiment.paper == "rgla"
            else []
        )
        # of table 1, and the rivals between 0 and 8 labels alike
        known = ("Fowl", "R-GAP", "DLG", "IG", "GGL")
        for entry in experiment.published if cells else ():
            assert entry.where["attack"] in known or any(_belongs(entry, c) for c in cells), (
                experiment.name,
                entry,
            )


def test_labels_are_drawn_at_random_by_default_and_rgla_holds_D_constant() -> None:
    for number in (2, 3, 6, 7, 9, 10, 11, 12):
        cells = [
            c for c in cells_of(EXPERIMENTS[f"rgla-{number}"], "paper") if c.attack.name == "rgla"
        ]
        assert all(c.random_labels for c in cells)
        assert {
            dict(c.attack.options)["constant_D"] for c in cells if c.attack.title == "RGLA"
        } <= {True}
    assert not any(c.random_labels for c in cells_of(EXPERIMENTS["rgla-8"], "paper"))


def test_every_cell_of_a_separator_has_twenty_batches_at_the_papers_size() -> None:
    for number in (*range(2, 5), *range(6, 13)):
        for one in cells_of(EXPERIMENTS[f"rgla-{number}"], "paper"):
            assert one.draws >= 20 or one.attack.name == "rgla-newton"


def test_titles_do_not_make_another_cell() -> None:
    named = cell(replace(EXACT, title="ours"))
    assert key_of(named, EMBEDDED) == key_of(cell(), EMBEDDED)
    assert named == cell()


@pytest.mark.parametrize(
    "other",
    [
        cell(seed=1),
        cell(batch=3),
        cell(defense="clip:4"),
        cell(same=2),
        cell(FGLA),
        cell(Attack("exact", granted="batch size")),
        replace(cell(), network=Network("conv", 16, 11)),
        replace(cell(), labels="smooth"),
        replace(cell(), random_labels=True),
        replace(cell(), draws=2),
    ],
)
def test_any_other_declaration_is_another_key(other: object) -> None:
    assert key_of(other, EMBEDDED) != key_of(cell(), EMBEDDED)  # type: ignore[arg-type]
    assert declaration_of(other) != declaration_of(cell())  # type: ignore[arg-type]


def test_other_data_are_another_key_wherever_they_lie(tmp_path: Path) -> None:
    for name, gray in (("one", 10), ("same", 10), ("other", 20)):
        (tmp_path / name / "a").mkdir(parents=True)
        Image.new("RGB", (8, 8), (gray, gray, gray)).save(tmp_path / name / "a" / "photo.png")
    one, same, other = (
        key_of(cell(), Material(data=str(tmp_path / name))) for name in ("one", "same", "other")
    )
    assert one == same != other
    assert one != key_of(cell(), EMBEDDED)


def test_other_code_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(cell(), EMBEDDED)
    monkeypatch.setattr(keys, "code_version", lambda: "another")
    assert key_of(cell(), EMBEDDED) != before
    assert declaration_of(cell()) == declaration_of(cell())


def test_the_code_version_covers_what_measures_and_not_what_shows() -> None:
    covered = {name for name, _ in keys._measuring()}
    weights = {name for name in covered if name.endswith(".safetensors")}
    assert weights
    assert covered >= {
        "separate/exact/search.py",
        "registry.py",
        "audit/round.py",
        "bench/networks.py",
        "bench/measure/scores.py",
    }
    shows = {
        "commands/main.py",
        "app/server.py",
        "audit/report.py",
        "bench/command.py",
        "bench/table.py",
        "bench/pages.py",
    }
    assert not covered & shows
    assert not any(name.startswith("bench/scripts/") for name in covered)
