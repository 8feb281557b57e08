"""`unsum bench` as a user types it: the smoke run, its tables, figures and pages, and what is
refused."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from support.bench_process import Result
from unsum_bench.experiments import EXPERIMENTS
from unsum_bench.material import Material, key_of
from unsum_bench.plan import cells_of, cells_of_all
from unsum_bench.run import Summary
from unsum_bench.store import Store
from unsum_bench.table import read_table

Bench = Callable[..., Result]


@pytest.mark.long
def test_the_smoke_run_measures_every_cell_within_two_minutes_of_processor_time(
    smoke: tuple[Path, Result],
) -> None:
    path, result = smoke
    assert result.code == 0, result.err
    cells = cells_of_all(EXPERIMENTS.values(), "smoke")
    with Store(path, read_only=True) as store:
        found = list(store)
    assert {r.key for r in found} == {key_of(cell, Material()) for cell in cells}
    assert {r.outcome.status for r in found} == {"measured", "needs"}
    # the rest of the two minutes is PyTorch's import
    assert sum(r.outcome.cpu_seconds for r in found) < 90
    assert f"{len(cells)} cells: " in result.out
    assert "cells to measure, 0 in the store" in result.err


@pytest.mark.parametrize(
    ("failed", "code"), [({}, 0), ({"failed": 1}, 2), ({"failed_before": 1}, 2)]
)
def test_a_cell_that_failed_is_no_leak_above_a_gate(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, failed: dict[str, int], code: int
) -> None:
    monkeypatch.setattr(
        sys.modules["unsum_bench.run"],
        "run",
        lambda cells, *_, **__: Summary(len(cells), 0, **failed),
    )
    assert bench("run", "rgla-8", "--attack", "exact").code == code


@pytest.mark.long
def test_only_methods_that_lack_something_say_that_they_need_it(smoke: tuple[Path, Result]) -> None:
    with Store(smoke[0], read_only=True) as store:
        table = read_table(EXPERIMENTS["field"], "smoke", store)
    lacking = {row.cell.attack.name: row.remark for row in table.rows if not row.measured}
    assert set(lacking) == {
        "ggl",
        "gias",
        "local-steps",
        "ratio",
        "residual",
        "rgap",
        "spans",
        "text",
        "tokens",
    }
    assert "needs: 'gias' needs a generator of pictures" in lacking["gias"]


@pytest.mark.long
def test_figures_of_the_field_are_what_is_known_of_the_methods(smoke: tuple[Path, Result]) -> None:
    with Store(smoke[0], read_only=True) as store:
        rows = read_table(EXPERIMENTS["field"], "smoke", store).rows
    leakage = {
        (row.cell.attack.name, row.cell.defense): row.measured[0].outcome.values["leakage"]
        for row in rows
        if row.measured and row.cell.attack.family == "attack"
    }
    assert leakage["exact", "none"] > 0.999
    assert leakage["exact", "clip:4"] > 0.999
    assert leakage["exact", "noise:0.01"] < 0.5 < leakage["fgla", "none"]
    peeled = [r for r in rows if r.cell.attack.name == "layers" and r.cell.defense == "none"]
    assert peeled[0].measured[0].outcome.values["psnr"] > 60


@pytest.mark.long
def test_tables_in_every_form(smoke: tuple[Path, Result], bench: Bench) -> None:
    store = str(smoke[0])
    markdown = bench("show", "rgla-8", "--store", store, "--markdown")
    assert markdown.code == 0
    assert re.search(r"^\| 4/8 \| RGLA \| 18\.556 \| ", markdown.out, re.MULTILINE)
    latex = bench("show", "rgla-8", "--store", store, "--latex").out
    assert r"\begin{tabular}" in latex
    assert r"RGLA's equations, Levenberg--Marquardt" in latex
    assert r"100\%" in latex
    lines = list(csv.reader(io.StringIO(bench("show", "rgla-8", "--store", store, "--csv").out)))
    assert lines[0][:4] == ["table", "size", "alike", "attack"]
    assert len([line for line in lines if line]) == 1 + len(
        set(cells_of(EXPERIMENTS["rgla-8"], "smoke"))
    )
    assert "duplicate labels" in bench("show", "rgla-8", "--store", store).out


@pytest.mark.long
def test_rows_that_were_not_run_say_so(smoke: tuple[Path, Result], bench: Bench) -> None:
    shown = bench("show", "rgla-8", "--size", "small", "--store", str(smoke[0]), "--markdown")
    assert shown.out.count("not run") == len(
        {(c.attack, c.same) for c in cells_of(EXPERIMENTS["rgla-8"], "small")}
    )


def test_the_list_has_every_table(bench: Bench) -> None:
    listed = json.loads(bench("list", "--json").out)
    assert [row["name"] for row in listed] == list(EXPERIMENTS)
    assert {row["name"] for row in listed if row["figure"]} == {
        f"rgla-figure-{n}" for n in (1, 3, "4-left", "4-right", *range(5, 18))
    }


@pytest.mark.long
def test_figures_are_drawn(smoke: tuple[Path, Result], bench: Bench, tmp_path: Path) -> None:
    result = bench("figures", "--store", str(smoke[0]), "--out", "drawn")
    assert result.code == 0, result.err
    names = {path.stem for path in (tmp_path / "drawn").iterdir()}
    # the smoke's network has no inverse, so no pictures and no PSNR
    assert names == {"rgla-figure-6", "rgla-figure-9"}
    with Image.open(tmp_path / "drawn" / "rgla-figure-9.png") as picture:
        assert min(picture.size) > 300


@pytest.mark.long
def test_pages_stand_by_themselves(
    smoke: tuple[Path, Result], bench: Bench, tmp_path: Path
) -> None:
    result = bench("pages", "--store", str(smoke[0]), "--size", "smoke", "--out", "pages")
    assert result.code == 0, result.err
    page = (tmp_path / "pages" / "bench-rgla.md").read_text("utf-8")
    for wanted in (
        "**Hardware:**",
        "embedded photos (sha256 ",
        "    unsum",
        "Size smoke:",
        "(../exact-features.md)",
        "19.242",
    ):
        assert wanted in page, wanted
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page):
        assert (tmp_path / "pages" / picture).is_file()
    field = (tmp_path / "pages" / "bench-field.md").read_text("utf-8")
    assert "| network | batch | attack | none | noise:0.01 | clip:4 | prune:0.9 |" in field
    assert "- `gias`: needs: 'gias' needs a generator" in field


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("rgla-88",), "There is no table 'rgla-88'; did you mean 'rgla-8'"),
        (("--size", "huge"), "There is no size 'huge'"),
        (("show", "rgla-8"), "There is no store 'unsum-bench.sqlite'; run `unsum bench` first"),
        (("show", "--markdown", "--csv"), "Choose one of --markdown, --latex and --csv."),
        (("rgla-8", "--data", "nowhere.tar"), "There is no file or folder 'nowhere.tar'"),
        (("rgla-8", "--store", "/proc/bench.sqlite"), "cannot be opened or made there"),
        (("rgla-8", "--option", "generator=x"), "--option reads ATTACK:KEY=VALUE"),
        (
            ("rgla-8", "--ray", "auto", "--device", "cuda:7"),
            "There is no device for cells on Ray 'cuda:7'",
        ),
        (
            ("rgla-8", "--ray", "nowhere"),
            "--ray takes auto, local or an address, HOST:PORT, not 'nowhere'.",
        ),
        (("rgla-8", "--ray", "127.0.0.1:1"), "Nothing answers at '127.0.0.1:1'"),
        (("rgla-8", "--threads", "0"), "A cell needs at least one thread, not 0."),
        (
            ("rgla-8", "--shard", "5/3"),
            "--shard reads I/N with I from 1 to N, as in 2/8, not '5/3'.",
        ),
        (("rgla-8", "--shard", "0/3"), "--shard reads I/N"),
        (("rgla-8", "--shard", "half"), "--shard reads I/N"),
        (("rgla-8", "--minutes", "-1"), "--minutes takes a number above 0, not -1."),
        (
            ("rgla-8", "--attack", "exat"),
            "There is no attack in these tables 'exat'; did you mean 'exact'",
        ),
        (("rgla-8", "--without", "soft"), "There is no attack in these tables 'soft'"),
        (("merge", "nowhere.sqlite"), "There is no store 'nowhere.sqlite'"),
        (("rgla-8", "--device", "cuda:7"), "The device 'cuda:7' cannot be used here"),
    ],
)
def test_wrong_input_is_one_sentence_and_code_2(
    bench: Bench, words: tuple[str, ...], sentence: str
) -> None:
    result = bench(*words)
    assert result.code == 2
    assert sentence in result.err
    assert "Traceback" not in result.err
    assert len(result.err.strip().splitlines()) == 1


@pytest.mark.long
def test_nothing_to_draw_or_to_make_pages_of_is_a_sentence(
    smoke: tuple[Path, Result], bench: Bench
) -> None:
    drawn = bench("figures", "--size", "paper", "--store", str(smoke[0]))
    assert (drawn.code, "nothing to draw at size 'paper'" in drawn.err) == (2, True)
    pages = bench("pages", "--size", "paper", "--store", str(smoke[0]))
    assert (pages.code, "The store has nothing of size 'paper'" in pages.err) == (2, True)
    none = bench("figures", "rgla-8", "--store", str(smoke[0]))
    assert (none.code, "The table 'rgla-8' has no figure" in none.err) == (2, True)
    closed = bench("pages", "--size", "smoke", "--store", str(smoke[0]), "--out", "/proc/pages")
    assert (closed.code, "The pages cannot be written to '/proc/pages'" in closed.err) == (2, True)
