"""Commands of packages of their own: found by their entry points, and one sentence where the
package is not there."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import typer

from support.command import Run, runner
from unsum import registry
from unsum.commands import installed
from unsum.errors import UnsumError

OTHER = "unsum_that_is_not_there:app"


@pytest.fixture
def unsum(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(monkeypatch, capsys)


def named(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [p for p in points if p.group == group]
    )
    monkeypatch.setattr(registry, "PROBLEMS", [])


def test_the_bench_that_is_installed_is_the_command(unsum: Run) -> None:
    import unsum_bench.command

    assert installed.groups()["bench"] is unsum_bench.command.app
    assert "rgla-8" in unsum("bench", "list").out


@pytest.mark.parametrize("words", [(), ("list",), ("rgla-8", "--size", "smoke"), ("--help",)])
def test_without_its_package_the_command_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    named(monkeypatch)
    app = typer.Typer()
    app.add_typer(installed.groups()["bench"], name="bench")
    with pytest.raises(
        UnsumError, match=r"unsum-bench, which is not installed here .* `pip install \./bench`"
    ):
        app(["bench", *words], standalone_mode=False)


def test_a_package_that_cannot_be_imported_stops_no_other_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named(monkeypatch, EntryPoint("bench", OTHER, registry.COMMANDS))
    with pytest.raises(UnsumError, match="cannot be imported"):
        typer.main.get_command(installed.groups()["bench"])(["list"], standalone_mode=False)
    (sentence,) = registry.PROBLEMS
    assert sentence.startswith(f"The plug-in 'bench' ({OTHER}) could not be loaded: ")
