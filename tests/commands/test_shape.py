"""The help in panels, one name for one option, and what an option was called before."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from support.command import Run, runner
from unsum.commands.line import app
from unsum.commands.shape import FORMER, PANELS


@pytest.fixture
def unsum(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(monkeypatch, capsys)


def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return {name: command for name, command in group.commands.items() if name != "bench"}


def test_the_help_of_audit_is_short_and_complete(unsum: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = unsum("audit", "--help").out.splitlines()
    assert len(lines) < 150
    titles = [line.strip("╭─╮ ") for line in lines if line.startswith("╭")]
    assert titles == list(PANELS)
    text = "\n".join(lines)
    assert all(option in text for param in commands()["audit"].params for option in param.opts)


def test_every_option_of_audit_has_its_panel() -> None:
    assert {param.rich_help_panel for param in commands()["audit"].params} <= set(PANELS)


def test_an_option_has_one_name_in_all_commands() -> None:
    """A parameter is called alike wherever it is taken, and takes no second name."""
    called: dict[str, set[str]] = {}
    for command in commands().values():
        for param in command.params:
            if (command.name, param.name) == ("train-inverse", "steps"):
                continue  # of the training of the inverse, which is no client's
            called.setdefault(param.name, set()).update(param.opts)
    assert {name: names for name, names in called.items() if len(names) > 1} == {}
    assert called["image_size"] == {"--image-size"}
    assert called["learning_rate"] == {"--lr"}


def test_former_names_are_hidden_and_no_command_takes_both() -> None:
    for name, former in FORMER.items():
        taken = {option for param in commands()[name].params for option in param.opts}
        assert not taken & former.keys()
        assert set(former.values()) <= taken


@pytest.mark.parametrize("former", [["--text", "absent.jsonl"], ["--text=absent.jsonl"]])
def test_a_former_name_works_and_says_what_it_is_called(unsum: Run, former: list[str]) -> None:
    result = unsum("capture", *former)
    assert result.code == 2
    assert "--text is called --data now" in result.err
    assert "absent.jsonl" in result.err.splitlines()[-1]


def test_list_has_two_levels(unsum: Run) -> None:
    names = unsum("list").out
    assert len(names.splitlines()) < 20
    assert "ilrg" in names
    assert "clip-layers" in names
    assert "from a linear system" not in names
    details = unsum("list", "labels").out
    assert "from a linear system" in details
    assert "clip-layers" not in details
    wrong = unsum("list", "defense")
    assert wrong.code == 2
    assert "There is no family 'defense'; did you mean 'defenses'?" in wrong.err
