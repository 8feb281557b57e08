"""Searches that keep a time limit: the best answer so far, no claim, and a note on what was left
untried."""

from __future__ import annotations

import math
import time
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import unsum
from support.long import long
from unsum.attack.options import AttackOptions
from unsum.certify.claim import grant_each
from unsum.commands import options
from unsum.errors import UnsumError
from unsum.running.deadline import DEFAULT_LIMIT, interruptible, out_of_time, overtime, time_limit

# Seconds of CPU. Without a limit each of these searches takes minutes; how close to its limit of
# one second a search ends is the business of a benchmark, because a machine that imports slowly or
# does other work must not fail a test.
FAR_FROM_MINUTES = 20


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(512, 100))


def _forged() -> unsum.Update:
    """A gradient of 24 directions that no batch has: nothing explains it, and every way is tried
    for minutes."""
    torch.manual_seed(1)
    U = torch.randn(100, 24)
    U = U - U.mean(0)
    return unsum.Update({"1.weight": U @ torch.randn(24, 512).relu(), "1.bias": U.sum(1)})


def test_without_a_limit_time_is_never_over() -> None:
    assert not out_of_time("anything")
    with time_limit(math.inf) as deadline:
        assert not out_of_time("anything", needed=1e9)
    assert deadline.cut == []


def test_whoever_says_nothing_has_a_minute_or_what_is_left_of_the_limit_around() -> None:
    assert DEFAULT_LIMIT == 60.0
    with time_limit(None) as alone:
        assert 59 < alone.end - time.monotonic() <= 60
    with time_limit(1000), time_limit(None) as inside:
        assert 999 < inside.end - time.monotonic() <= 1000
    with time_limit(math.inf), time_limit(None) as endless:
        assert endless.end == math.inf
    with interruptible(), time_limit(None) as asked:  # which says nothing of how long
        assert 59 < asked.end - time.monotonic() <= 60


def test_what_costs_next_to_nothing_has_time_when_time_is_over() -> None:
    with time_limit(1e-9) as outer:
        assert out_of_time("a search")
        with overtime(10.0):
            assert not out_of_time("a look")
            assert out_of_time("a long look", needed=11.0)
        assert out_of_time("a search")
    assert outer.cut == ["a search", "a long look"]
    with time_limit(100.0) as longer, overtime(1.0):
        assert not out_of_time("what had time anyway", needed=50.0)
    with time_limit(100.0) as longer:
        longer.stop.set()
        with overtime(10.0):
            assert out_of_time("whatever was interrupted")
    with overtime(1.0):
        assert not out_of_time("anything")


def test_what_nothing_can_end_is_begun_only_with_time_left_for_it() -> None:
    with time_limit(10.0) as deadline:
        assert not out_of_time("short work", needed=5.0)
        assert out_of_time("long work", needed=11.0)
    assert deadline.cut == ["long work"]


@pytest.mark.parametrize("call", ["attack", "separate", "audit"])
def test_python_has_the_limit_that_the_command_line_has(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("unsum.attack.options"), "DEFAULT_LIMIT", 0.3)
    monkeypatch.setattr(import_module("unsum.separate"), "DEFAULT_LIMIT", 0.3)
    start = time.process_time()
    if call == "audit":
        notes = unsum.audit(_model(), update=_forged()).leak.notes
    else:
        notes = getattr(unsum, call)(_model(), _forged()).notes
    assert time.process_time() - start < FAR_FROM_MINUTES
    assert any(note.startswith("Time was over; left untried: ") for note in notes)


def test_without_end_is_infinity_and_zero_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(import_module("unsum.attack.options"), "DEFAULT_LIMIT", 1e-6)
    model, images = _model(), torch.rand(6, 512)
    update = unsum.capture(model, images, torch.arange(6))
    assert unsum.attack(model, update, time_limit=math.inf).exact
    assert not unsum.attack(model, update).exact
    assert (options.seconds(0.0), options.seconds(7.0), options.seconds(None)) == (
        math.inf,
        7.0,
        None,
    )


@pytest.mark.parametrize(
    ("method", "seconds"),
    [
        ("auto", 60.0),
        ("exact", 60.0),
        ("ig", math.inf),
        ("ig:steps=3", math.inf),
        ("rgla", math.inf),
    ],
)
def test_methods_of_a_fixed_number_of_steps_have_no_limit_by_default(
    method: str, seconds: float
) -> None:
    assert AttackOptions(method).default_limit == seconds


def test_limits_inside_each_other_end_with_the_earliest_and_remember_what_each_cut() -> None:
    with time_limit(1e-9) as outer:
        with time_limit(1000) as inner:
            assert out_of_time("a search")
            assert out_of_time("a search")
        assert out_of_time("another")
    # what is inside was cut short, too
    assert (inner.cut, outer.cut) == (["a search"], ["a search", "another"])
    assert not out_of_time("after it")


def test_an_interrupt_ends_every_search_inside_whatever_time_is_left() -> None:
    with time_limit(1000) as outer, time_limit(500) as inner:
        assert not out_of_time("a search")
        outer.stop.set()  # as Ctrl-C does
        assert out_of_time("a search")
    assert inner.over == outer.over == "the search was interrupted; left untried: a search"


def test_a_longer_limit_inside_ends_with_the_one_around() -> None:
    with time_limit(10.0) as outer:
        for seconds, end in ((1000.0, outer.end), (math.inf, outer.end), (None, outer.end)):
            with time_limit(seconds) as inner:
                assert inner.end == end
        with time_limit(1.0) as inner:
            assert inner.end < outer.end


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), -math.inf, "5"])
def test_a_limit_that_makes_no_sense(seconds: float) -> None:
    with pytest.raises(UnsumError, match="time limit must be positive"), time_limit(seconds):
        pass


def test_a_forged_gradient_keeps_the_solver_no_longer_than_it_is_given() -> None:
    start = time.process_time()  # of this process alone: other work on the machine does not count
    leak = unsum.separate(_model(), _forged(), time_limit=1.0)
    assert time.process_time() - start < FAR_FROM_MINUTES
    assert not leak.exact
    assert leak.notes[0].startswith("Time was over; left untried: ")
    assert leak.features.shape[1] == 512
    assert not leak.predicted_error < 0.1


# classes, features, directions
SIZES = {"small": (20, 64, 8), "large": (1000, 768, 24), "crowded": (1000, 768, 100)}
PATHS = ("exact", "adaptive", "local-steps", "crowded", "labels found")


def _low_rank(classes: int, inputs: int, rank: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A gradient of so many directions that no batch has, balanced as one of cross-entropy is."""
    torch.manual_seed(2)
    U = torch.randn(classes, rank)
    U = U - U.mean(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))
    return model, {"1.weight": U @ torch.randn(rank, inputs).relu(), "1.bias": U.sum(1)}


@pytest.fixture
def _processor_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits in seconds of this process alone: other work on the machine does not count."""
    monkeypatch.setattr("unsum.running.deadline.time", SimpleNamespace(monotonic=time.process_time))


@pytest.mark.usefixtures("_processor_seconds")
@pytest.mark.parametrize(
    ("path", "size", "limit"),
    [
        *((path, "small", 0.5) for path in PATHS),
        *long(*((path, "large", 6.0) for path in PATHS if path != "crowded")),
        *long(("exact", "crowded", 6.0)),
    ],
)
def test_every_method_that_auto_may_choose_keeps_the_limit(
    path: str, size: str, limit: float
) -> None:
    model, sent = _low_rank(*SIZES[size])
    granted: dict[str, Any] = {}
    update, method = unsum.Update(sent), "auto"
    if path == "adaptive":
        method = path
    elif path == "local-steps":
        training = unsum.LocalTraining(learning_rate=0.1, steps=4)
        update = unsum.Update.from_delta(
            {name: -0.1 * g for name, g in sent.items()}, 0.1, training=training
        )
    elif path == "crowded":  # rows that take part in some columns only, as behind a ReLU
        model, sent = _low_rank(20, 768, 19)
        thinned = torch.where(torch.rand(20, 768) < 0.5, sent["1.weight"], -0.01 * sent["1.weight"])
        update, granted = (
            unsum.Update(sent | {"1.weight": thinned}),
            {"labels": torch.arange(30) % 20},
        )
        limit = 1.0  # it ends by itself soon after
    elif path == "labels found":
        granted = {"batch_size": SIZES[size][0]}
    # what is imported once is no part of the search
    unsum.attack(model, update, method, time_limit=0.1, **granted)
    start = time.process_time()
    leak = unsum.attack(model, update, method, time_limit=limit, **granted)
    # a step that nothing can end takes up to 0.4 s
    assert time.process_time() - start < 1.1 * limit + 0.5
    assert not leak.exact
    assert leak.notes[0].startswith("Time was over; left untried: ")
    # nobody calls that a low leak
    assert all(attempt.blind.startswith("time was over") for attempt in leak.tried)


def test_an_attack_that_was_cut_short_vouches_for_no_input_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Peeling came to its end, and something before it did not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 12))
    update = unsum.capture(model, torch.rand(3, 20), torch.arange(3))
    whole = unsum.attack(model, update)
    assert whole.exact
    assert whole.inputs_exact is not None
    assert whole.inputs_exact.all()

    def cut(*arguments: object, **options: object) -> torch.Tensor:
        with time_limit(1e-9):
            assert out_of_time("a part of the search")
        return grant_each(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(import_module("unsum.peel.walk"), "grant_each", cut)
    late = unsum.attack(model, update)
    assert (late.exact, int(late.inputs_exact.sum())) == (True, 0)  # type: ignore[union-attr] # the batch was sure before
    assert late.notes[0] == "Time was over; left untried: a part of the search."


@pytest.mark.parametrize(("seconds", "exact"), [(600.0, True), (1e-6, False)])
def test_an_honest_batch_is_certified_only_where_its_search_came_to_its_end(
    seconds: float, exact: bool
) -> None:
    model, images = _model(), torch.rand(6, 512)
    update = unsum.capture(model, images, torch.arange(6))
    leak, free = unsum.separate(model, update, time_limit=seconds), unsum.separate(model, update)
    assert free.exact
    assert leak.exact is exact
    assert any("left untried" in note for note in leak.notes) is not exact
    if exact:
        assert torch.equal(leak.features, free.features)
