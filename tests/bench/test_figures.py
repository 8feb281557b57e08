"""Curves hold the figures of their cells, and lines can be told apart without color."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from support.bench_cells import cell
from unsum import UnsumError
from unsum_bench import figures as drawing
from unsum_bench.experiments import EXPERIMENTS
from unsum_bench.figures import coordinate, curves, draw, histories
from unsum_bench.material import Material, declaration_of
from unsum_bench.measure import Outcome
from unsum_bench.plan import cells_of
from unsum_bench.run import _measured
from unsum_bench.store import Store
from unsum_bench.table import matrix, read_table

DUPLICATES = EXPERIMENTS["rgla-figure-4-left"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """PSNR by a rule that is easy to recognize: a decibel of the attack's place, a tenth less for
    every label alike."""
    store = Store(tmp_path / "store.sqlite")
    cells = cells_of(DUPLICATES, "small")
    names = list(dict.fromkeys(str(c.attack) for c in cells))
    for number, one in enumerate(cells):
        values = {
            "psnr": 20 - names.index(str(one.attack)) - 0.1 * one.same,
            "psnr_se": 0.25,
            "batches": 20.0,
        }
        store.put(f"{number}", declaration_of(one), one.content(), Outcome("measured", values), {})
    return store


def test_curves_are_the_figures_of_their_cells_in_the_order_of_x(store: Store) -> None:
    assert DUPLICATES.figure is not None
    lines = curves(read_table(DUPLICATES, "small", store), DUPLICATES.figure)
    assert list(lines) == ["RGLA", "RGLA, D differentiated", "FGLA", "exact, nothing granted"]
    assert [x for x, _ in lines["FGLA"]] == [0, 2, 4, 6, 8]
    assert [y for _, y in lines["FGLA"]] == pytest.approx(
        [18 - 0.1 * same for same in (0, 2, 4, 6, 8)]
    )


def test_a_row_of_many_batches_has_its_standard_error_and_counts_them(store: Store) -> None:
    table = read_table(DUPLICATES, "small", store)
    assert table.cells(table.rows[0]) == ["0/8", "RGLA", "20.00 ± 0.25", "20"]


def test_losses_over_steps_are_drawn_as_they_were_noted(tmp_path: Path) -> None:
    starts = EXPERIMENTS["rgla-figure-9"]
    with Store(tmp_path / "losses.sqlite") as store:
        first = cells_of(starts, "small")[0]
        noted = {"loss_at_0": 1e4, "loss_at_800": 10.0, "loss_at_100": 1e3, "loss": 10.0}
        store.put("1", declaration_of(first), first.content(), Outcome("measured", noted), {})
        table = read_table(starts, "small", store)
        assert histories(table) == {"RGLA from randn": [(0, 1e4), (100, 1e3), (800, 10.0)]}
        assert draw(table, tmp_path / "losses.png")


def test_the_drawing_is_a_picture_and_an_empty_one_is_not_made(
    store: Store, tmp_path: Path
) -> None:
    assert draw(read_table(DUPLICATES, "small", store), tmp_path / "drawn.png")
    with Image.open(tmp_path / "drawn.png") as picture:
        assert len(picture.convert("L").getcolors(1 << 24) or []) > 20
    assert not draw(read_table(DUPLICATES, "paper", store), tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_right_solutions_and_twins_are_points(tmp_path: Path) -> None:
    twins = EXPERIMENTS["rgla-figure-3"]
    with Store(tmp_path / "twins.sqlite") as store:
        first = cells_of(twins, "small")[0]
        points = {
            "w_of_0": 1e-8,
            "entropy_of_0": 4.6,
            "psnr_of_0": 20.0,
            "w_of_1": 1e-3,
            "entropy_of_1": 0.1,
            "psnr_of_1": 8.0,
        }
        store.put(
            "1",
            declaration_of(first),
            first.content(),
            Outcome("measured", points | {"batches": 2.0}),
            {},
        )
        table = read_table(twins, "small", store)
        assert drawing._points(table.rows[0]) == [(1e-8, 4.6, 20.0), (1e-3, 0.1, 8.0)]
        assert draw(table, tmp_path / "twins.png")
        assert not draw(read_table(twins, "smoke", store), tmp_path / "none.png")


def test_rows_of_one_attack_name_their_defense(tmp_path: Path) -> None:
    figure = EXPERIMENTS["rgla-figure-16"]
    blob = io.BytesIO()
    Image.new("RGB", (64, 16)).save(blob, "PNG")
    with Store(tmp_path / "f.sqlite") as store:
        for number, one in enumerate(cells_of(figure, "smoke")):
            outcome = Outcome("measured", {"psnr": 1.0}, picture=blob.getvalue())
            store.put(f"key {number}", declaration_of(one), one.content(), outcome, {})
        drawn = drawing._pictures(read_table(figure, "smoke", store))
    assert drawn is not None
    assert [axis.get_ylabel() for axis in drawn.axes][:3] == [
        "original",
        "RGLA, none",
        "RGLA, prune:0.8",
    ]


def test_lines_differ_in_mark_and_dash() -> None:
    marks, dashes = (
        [mark for _, mark, _ in drawing._LINES],
        [str(dash) for _, _, dash in drawing._LINES],
    )
    assert len(set(marks)) == len(marks)
    assert len(set(dashes)) == len(dashes)


def test_where_cells_stand() -> None:
    assert coordinate(cell(defense="noise:0.01"), "strength") == 0.01
    assert coordinate(cell(), "strength") == 0
    assert coordinate(cell(batch=4, same=2), "same") == 2


def test_a_matrix_has_a_column_for_each_value_of_its_axis(tmp_path: Path) -> None:
    field = EXPERIMENTS["field"]
    with Store(tmp_path / "field.sqlite") as store:
        for number, one in enumerate(cells_of(field, "smoke")):
            outcome = Outcome("measured", {"leakage": 0.25})
            if one.attack.name == "gias":
                outcome = Outcome("needs", sentence="a generator")
            if one.attack.name == "exact" and one.attack.family == "attack":
                continue
            store.put(f"{number}", declaration_of(one), one.content(), outcome, {})
        lines = matrix(read_table(field, "smoke", store)).splitlines()
    assert lines[0] == "| network | batch | attack | none | noise:0.01 | clip:4 | prune:0.9 |"
    assert "| conv, 16², C = 20 | 4 | adaptive | 0.25 | 0.25 | 0.25 | 0.25 |" in lines
    assert "| conv, 16², C = 20 | 4 | exact | not run | not run | not run | not run |" in lines
    assert lines[-1] == "- `gias`: needs: a generator"


def test_a_worker_with_other_code_refuses_its_cell() -> None:
    with pytest.raises(
        UnsumError, match=r"A node of the cluster has another unsum \(code \w+, not older\)"
    ):
        _measured(cell(), Material(), "older")
