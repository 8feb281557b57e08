"""Searches that can be watched, and that Ctrl-C ends with the best answer so far."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import unsum
from support.long import long
from unsum.running import deadline
from unsum.running.deadline import interruptible, out_of_time, time_limit, trying
from unsum.running.progress import Looking, OneLine, Progress

NETWORK = """from torch import nn


def build():
    made = nn.Sequential(nn.Flatten(), nn.Linear(512, 100))
    made.image_size = 8
    return made
"""
ENDLESS = 10**9  # steps, which no machine takes


class Heard(Progress):
    def __init__(self) -> None:
        self.states: list[Looking] = []

    def looking(self, state: Looking) -> None:
        self.states.append(state)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search tells from its first moment on."""
    monkeypatch.setattr(deadline, "_QUIET", 0.0)
    monkeypatch.setattr(deadline, "_EVERY", 0.0)


def hopeless(
    classes: int = 100, width: int = 512, rank: int = 24
) -> tuple[nn.Module, unsum.Update]:
    """A gradient of so many directions that no batch has: every way is tried, for minutes where it
    is large."""
    torch.manual_seed(1)
    U = torch.randn(classes, rank)
    U = U - U.mean(0)
    sent = {"1.weight": U @ torch.randn(rank, width).relu(), "1.bias": U.sum(1)}
    return nn.Sequential(nn.Flatten(), nn.Linear(width, classes)), unsum.Update(sent)


@pytest.mark.usefixtures("at_once")
def test_a_search_says_what_it_tries_how_far_it_is_and_how_near() -> None:
    heard = Heard()
    unsum.separate(*hopeless(20, 64, 2), time_limit=500, progress=heard)
    named = [state for state in heard.states if state.what.startswith("the start ")]
    assert {state.limit for state in heard.states} == {500}
    assert len({state.what for state in named}) > 1
    assert all(1 <= state.done <= state.total for state in named)
    assert any("standard deviations off" in state.best for state in named)
    seconds = [state.seconds for state in heard.states]
    assert seconds == sorted(seconds)


@pytest.mark.usefixtures("at_once")
def test_what_comes_after_the_attacks_is_not_called_the_last_of_them() -> None:
    torch.manual_seed(0)
    model, heard = (
        nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 20)),
        Heard(),
    )
    unsum.attack(
        model,
        unsum.capture(model, torch.rand(2, 3, 4, 4), torch.tensor([4, 1])),
        progress=heard,
        time_limit=60,
    )
    below = [state for state in heard.states if state.part == "layers below the last one"]
    assert below, "peeling asks for its time"
    assert all("the attack" not in str(state) for state in below)


def test_a_quick_search_says_nothing() -> None:
    torch.manual_seed(0)
    model, heard = nn.Linear(64, 20), Heard()
    unsum.attack(
        model, unsum.capture(model, torch.randn(3, 64), torch.tensor([4, 4, 1])), progress=heard
    )
    assert heard.states == []


@pytest.mark.usefixtures("at_once")
def test_an_inner_limit_tells_whoever_listens_outside() -> None:
    heard = Heard()
    with time_limit(None, heard), time_limit(1000):
        trying("something", 2, 3)
        assert not out_of_time("a part")
    (state,) = heard.states
    assert (state.what, state.part, state.done, state.total, state.limit) == (
        "something",
        "a part",
        2,
        3,
        1000,
    )


@pytest.fixture
def own_interrupt() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    # whoever took it gave it back
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def press(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


@pytest.mark.usefixtures("own_interrupt")
@pytest.mark.parametrize("interactive", [False, True])
def test_the_first_interrupt_gives_the_best_answer_so_far(
    interactive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, update = hopeless()
    press(0.7)
    if interactive:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
        leak = unsum.attack(model, update)
    else:
        with interruptible():
            leak = unsum.attack(model, update)
            assert out_of_time("whatever follows")
    assert not leak.exact
    assert leak.notes[0].startswith("The search was interrupted; left untried: ")
    assert leak.features.shape[1] == 512
    assert leak.undecided.startswith("the search was interrupted")  # nobody calls that a low leak


@pytest.mark.usefixtures("own_interrupt")
def test_the_second_interrupt_quits() -> None:
    with interruptible(), time_limit(None):
        signal.raise_signal(signal.SIGINT)
        assert out_of_time("the search")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("own_interrupt")
def test_a_script_that_asked_for_nothing_is_interrupted_as_ever() -> None:
    with pytest.raises(KeyboardInterrupt), time_limit(None):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("own_interrupt")
def test_before_and_after_a_search_an_interrupt_quits_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)


def test_one_line_replaces_itself(capsys: pytest.CaptureFixture[str]) -> None:
    line = OneLine()
    line.say("Separating the batch")
    line.looking(Looking("a start", seconds=3))
    line.looking(Looking("b", seconds=4))
    line.say("Drawing")
    shown = capsys.readouterr().err
    assert shown.startswith(
        "\runsum: Separating the batch: trying a start; 3 s\runsum: Separating the batch: trying "
        "b; 4 s "
    )
    assert shown.endswith(" \r")


def small_network() -> tuple[nn.Module, unsum.Update]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(196, 10)
    )
    return model, unsum.capture(model, torch.rand(2, 3, 16, 16), torch.tensor([1, 3]))


@pytest.mark.parametrize("method", ["dlg", "ig", *long("gradinversion", "rog", "soft-g")])
def test_matching_without_end_ends_with_its_time(method: str) -> None:
    model, update = small_network()
    leak = unsum.attack(
        model,
        update,
        method,
        options={"image_size": 16, "steps": ENDLESS},
        batch_size=2,
        time_limit=0.3,
    )
    assert leak.notes[0].startswith(
        "Time was over; left untried: further steps of gradient matching"
    )
    assert leak.images is not None
    assert leak.images.shape == (2, 3, 16, 16)
    assert float(leak.images.std()) > 0.01


@pytest.mark.parametrize(("method", "option"), [("rgla", "steps"), ("cocktail", "iterations")])
def test_separators_that_iterate_without_end_end_with_their_time(method: str, option: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 20)
    update = unsum.capture(model, torch.rand(3, 64), torch.tensor([4, 7, 1]))
    start = time.process_time()
    leak = unsum.separate(model, update, method, time_limit=0.3, batch_size=3, **{option: ENDLESS})
    assert time.process_time() - start < 20
    assert leak.notes[0].startswith("Time was over; left untried: further steps of ")
    assert leak.features.shape == (3, 64)
    assert bool(torch.isfinite(leak.features).all())


@pytest.mark.long
def test_ctrl_c_at_the_command_line_gives_the_best_answer_so_far(tmp_path: Path) -> None:
    model, update = hopeless()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    update.save(tmp_path / "update.safetensors")
    (tmp_path / "net.py").write_text(NETWORK)
    words = [
        "attack",
        "--model",
        "net.py:build",
        "--weights",
        "weights.pt",
        "--update",
        "update.safetensors",
        "--json",
    ]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "unsum", *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        end = time.monotonic() + 300
        while "trying the start" not in (tmp_path / "said").read_text() and time.monotonic() < end:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, (tmp_path / "said").read_text()
    assert json.loads(out)["notes"][0].startswith("The search was interrupted; left untried: ")
