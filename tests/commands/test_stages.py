"""What a terminal and a log see of the stages of an attack."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from unsum.attack.options import AttackOptions
from unsum.commands.stages import stages


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
