"""What a notebook shows: cards of leaks, audits and sweeps that hold all they need, and a bar while
a call runs."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import unsum
from support.audits import captured, synthetic, with_names
from support.browsing import HOSTILE
from unsum.leak import Leak
from unsum.running.progress import SILENT, Progress
from unsum.running.watching import in_notebook, watched
from unsum.showing.cards import Card, of_ceiling, page

BATCH = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)), torch.tensor([4, 4, 1])


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(64, 20)


def test_an_audit_shows_its_headline_its_cards_and_their_leakage() -> None:
    report = unsum.audit(network(), BATCH)
    html = report._repr_html_()
    assert report.verdict.headline in html
    assert html.count("100 %</span>") == 6
    assert [sample.leakage for sample in report.samples] == report.leakages
    assert min(sample.leakage for sample in report.samples) > 0.99


def test_pictures_are_inside_and_nothing_is_fetched() -> None:
    html = synthetic()._repr_html_()
    assert html.count('src="data:image/jpeg;base64,') == 6
    assert set(re.findall(r'(?:src|href)="([^:"]*):', html)) == {"data"}
    assert "<script" not in html
    assert "url(" not in html


@pytest.mark.parametrize("text", [*HOSTILE, "</style><b>", "' onload='x"])
@pytest.mark.parametrize("make", [synthetic, captured])
def test_hostile_names_are_text(make: Any, text: str) -> None:
    audit = with_names(make(), text)
    calm = with_names(make(), "x")
    for shown, quiet in (
        (audit._repr_html_(), calm._repr_html_()),
        (audit.leak._repr_html_(), calm.leak._repr_html_()),
    ):
        assert text not in shown
        assert re.findall(r"<[^>]*>", re.sub(r'alt="[^"]*"', "", shown)).__len__() == (
            re.findall(r"<[^>]*>", re.sub(r'alt="[^"]*"', "", quiet)).__len__()
        )


def test_a_leak_says_whether_it_is_certified() -> None:
    leak = unsum.attack(network(), unsum.capture(network(), *BATCH))
    assert "Certified exact" in leak._repr_html_()
    assert "class 4" in leak._repr_html_()
    assert "Not certified" in replace(leak, exact=False)._repr_html_()
    empty = Leak(
        "exact", torch.zeros(0, 4), torch.zeros(0, 4), torch.zeros(0, 5), math.nan, math.nan, False
    )
    assert "0 samples found by exact" in empty._repr_html_()


def test_a_sweep_shows_every_defense() -> None:
    swept = unsum.sweep(network(), BATCH, over=["noise=1e-5,1e-1", "sign"], utility=False)
    html = swept._repr_html_()
    assert "noise: largest found to ceiling, by strength" in html
    assert "sign: largest found to ceiling, by strength" in html
    # what was found, and what nobody can exceed
    assert re.search(r"1e-05</span><span>\d+ % to 100 %<", html)


def test_a_ceiling_shows_a_bound_for_every_sample_and_label() -> None:
    ceiling = SimpleNamespace(
        samples=torch.tensor([0.2, 0.9]), labels=torch.tensor([1.0, 0.5]), pairs=1
    )
    html = of_ceiling(ceiling, "What can be read at most")
    assert re.findall(r"(\d+ %)", html) == ["20 %", "100 %", "90 %", "50 %"]
    assert "1 pair of worlds compared" in html


def test_many_samples_are_cut_and_counted() -> None:
    html = page("protected", "b", "t", [], [Card(f"s{i}") for i in range(30)])
    assert html.count('class="unsum-card"') == 24
    assert "6 more samples" in html


class FakeIPython:
    """As much of IPython's as a bar asks for; what was displayed is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, kernel: bool) -> None:
        self.shown: list[str] = []
        shell = SimpleNamespace(kernel=object()) if kernel else SimpleNamespace()
        main, display = ModuleType("IPython"), ModuleType("IPython.display")
        main.get_ipython = lambda: shell  # type: ignore[attr-defined]
        display.HTML = str  # type: ignore[attr-defined]
        display.display = self._display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", main)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def _display(self, html: str, *, display_id: bool) -> Any:
        assert display_id
        self.shown.append(html)
        return SimpleNamespace(update=self.shown.append)


def test_a_notebook_has_one_bar_which_is_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ipython = FakeIPython(monkeypatch, kernel=True)
    unsum.audit(network(), BATCH)
    # where it begins and where it ends: the attack inside has none of its own
    assert ipython.shown.count("") == 2
    assert ipython.shown[0] == ipython.shown[-1] == ""
    assert any("The client computes its update" in html for html in ipython.shown)
    assert capsys.readouterr() == ("", "")


def test_whoever_listens_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = FakeIPython(monkeypatch, kernel=True)
    unsum.audit(network(), BATCH, progress=Progress())
    assert ipython.shown == []


def test_parts_and_words_of_a_bar_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = FakeIPython(monkeypatch, kernel=True)
    with watched(SILENT) as bar:
        bar.say("<script>")
        bar.part(1, 4)
    assert any('value="0.250"' in html for html in ipython.shown)
    assert not any("<script>" in html for html in ipython.shown)


@pytest.mark.parametrize("kernel", [False, None])
def test_elsewhere_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kernel: bool | None
) -> None:
    """Neither in plain Python nor at IPython's prompt in a terminal, which does not show HTML."""
    if kernel is not None:
        FakeIPython(monkeypatch, kernel=kernel)
    assert not in_notebook()
    unsum.audit(network(), BATCH)
    assert capsys.readouterr() == ("", "")
