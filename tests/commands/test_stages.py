"""What a terminal and a log see of the stages of an attack."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from unsum.attack.options import AttackOptions
from unsum.commands.stages import LINE_EVERY, stages


@pytest.mark.parametrize("terminal", [True, False])
def test_losses_are_shown_on_a_terminal_and_stages_everywhere(terminal: bool) -> None:
    stream = io.StringIO()
    with stages(100, Console(file=stream, force_terminal=terminal, width=120)) as shown:
        shown.say("Separating the batch")
        shown.step(50, 1.5e-3, 2.0)
    assert "Separating the batch" in stream.getvalue()
    assert ("step 50: 1.5e-03 2.0e+00" in stream.getvalue()) == terminal


def test_methods_that_iterate_say_how_long() -> None:
    assert AttackOptions("rgla").steps == 20_000
    assert AttackOptions("exact").steps is None
    assert AttackOptions("auto").steps is None


def test_a_log_has_the_parts_that_are_done_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, clock = io.StringIO(), [0.0]
    monkeypatch.setattr("unsum.commands.stages.time.monotonic", lambda: clock[0])
    with stages(console=Console(file=stream, width=120)) as shown:
        shown.say("Auditing the updates")
        for done in range(1, 4):
            clock[0] += LINE_EVERY / 2 + 0.1
            shown.part(done, 9)
    assert stream.getvalue() == "unsum: Auditing the updates\nunsum: 2 of 9 done\n"
