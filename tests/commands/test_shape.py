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
    """Every command by its name; those of a group by both names."""
    group: Any = typer.main.get_command(app)
    found = dict(group.commands)
    bench = found.pop("bench")
    return found | {f"bench {name}": command for name, command in bench.commands.items()}


def options() -> dict[str, dict[str, Any]]:
    """Every option that is shown, by its flag, with the parameter in each command that takes it."""
    found: dict[str, dict[str, Any]] = {}
    for name, command in commands().items():
        for param in command.params:
            for flag in param.opts if param.param_type_name == "option" else ():
                found.setdefault(flag, {})[name] = param
    return found


# Words for one thing, of which one may be an option. What an option means in a single command
# stands behind it.
ONE_THING = (
    {"--batch", "--batch-size", "--size", "--samples", "--photos", "--examples"},
    {"--lr", "--rate", "--learning-rate"},
    {"--local-steps", "--steps", "--iterations"},
    {"--image-size", "--side", "--resolution", "--size"},
    {"--data", "--text", "--dataset", "--images", "--table", "--csv", "--cifar"},
    {"--out", "--output", "--folder", "--to", "--report"},
    {"--model", "--network", "--backbone", "--arch"},
    {"--weights", "--checkpoint", "--state-dict"},
    {"--attack", "--method"},
    {"--defense", "--defenses", "--noise"},
    {"--labels", "--label-rule"},
    {"--classes", "--num-classes"},
    {"--time-limit", "--timeout", "--seconds", "--budget", "--minutes", "--hours"},
    {"--processes", "--workers", "--jobs", "--threads"},
    {"--force", "--overwrite"},
    {"--device", "--gpu", "--cuda"},
    {"--seed", "--random-state"},
    {"--target", "--target-column"},
    {"--prove-below", "--level", "--below"},
    {"--fail-above", "--threshold"},
    {"--eval-mode", "--eval", "--no-train"},
    {"--loss", "--criterion"},
)
OTHER_THINGS = {
    ("train-inverse", "--steps"): "of the training of the inverse, which is no client's",
    ("train-inverse", "--hours"): "of the same training; no search ends by it",
    ("bench run", "--minutes"): "no cell begins after it; no search ends by it",
    ("bench run", "--threads"): "of one cell, which is one process",
    ("bench run", "--cifar"): "beside --data: some tables have photos of their own",
    ("bench show", "--csv"): "a format of output",
    ("ceiling", "--noise"): "comes after --defense, as `noise=` does in Python",
    **{
        (f"bench {name}", "--size"): "of a benchmark"
        for name in ("run", "show", "list", "figures", "pages")
    },
}


def test_the_help_of_audit_is_short_and_complete(
    unsum: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    """No two options of any commands mean one thing: by their parameter, by their help, and by the
    words for it."""
    taken, flags, helps = options(), dict[str, set[str]](), dict[str, set[str]]()
    for flag, where in taken.items():
        for command, param in where.items():
            if (command, flag) not in OTHER_THINGS:
                flags.setdefault(param.name, set()).add(flag)
            helps.setdefault(param.help, set()).add(flag)
    assert len(taken) > 70
    assert {name: found for name, found in flags.items() if len(found) > 1} == {}
    assert {text: found for text, found in helps.items() if len(found) > 1} == {}
    assert flags["image_size"] == {"--image-size"}
    assert flags["learning_rate"] == {"--lr"}
    own = {
        flag
        for flag, where in taken.items()
        if any((name, flag) not in OTHER_THINGS for name in where)
    }
    for words in ONE_THING:
        assert len(own & words) <= 1, f"two names for one thing: {own & words}"
    assert all(flag in taken and command in taken[flag] for command, flag in OTHER_THINGS)


def test_a_flag_means_one_thing_in_all_commands() -> None:
    meant = {flag: {param.name for param in where.values()} for flag, where in options().items()}
    assert meant.pop("--steps") == {"steps"}  # of a training of its own
    meant["--local-steps"] -= {"local_steps", "steps"}
    assert {flag: names for flag, names in meant.items() if len(names) > 1} == {}


def test_former_names_are_hidden_and_no_command_takes_both() -> None:
    for name, former in FORMER.items():
        taken = {option for param in commands()[name].params for option in param.opts}
        assert not taken & former.keys()
        assert set(former.values()) <= taken


def test_the_batch_size_is_granted_under_one_name(unsum: Run) -> None:
    result = unsum("attack", "--update", "absent.npz", "--batch-size", "4")
    assert result.code == 2
    assert "--batch-size is called --batch now" in result.err


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
    assert "There is no family or method 'defense'; did you mean 'defenses'" in wrong.err
    one = unsum("list", "spans").out
    assert "attacks (--attack)" in one
    assert "what --attack auto tries" in one
    assert "crowded" not in one.replace("crowded batch", "")
