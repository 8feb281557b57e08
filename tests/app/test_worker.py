"""One computation at a time, and none that nobody waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from unsum.app import worker
from unsum.app.round import Answer
from unsum.app.worker import Worker
from unsum.errors import UnsumError
from unsum.running import deadline
from unsum.running.deadline import out_of_time, trying


def run(answers: Coroutine[Any, Any, Any]) -> Any:
    """In a thread of its own: the browser that other tests share keeps this one's event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, answers).result()


LONGEST = 60.0  # seconds that a computation would go on if nothing stopped it


def endless() -> Generator[Answer, None, None]:
    """Small calls of PyTorch inside code that keeps going after errors, as attacks do."""
    yield {"kind": "stage"}
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        try:
            torch.ones(3).sum()
        except Exception:
            continue
    yield {"kind": "result"}


def short() -> Generator[Answer, None, None]:
    yield {"kind": "result"}


async def kinds(job: Any) -> list[str]:
    return [answer["kind"] async for answer in job.answers()]


def test_a_newer_request_of_the_page_stops_the_older_one_halfway() -> None:
    async def both() -> tuple[list[str], list[str]]:
        working = Worker()
        older = working.start("page", endless)
        listening = asyncio.create_task(kinds(older))
        await asyncio.sleep(0.3)
        newer = await kinds(working.start("page", short))
        working.close()
        return await listening, newer

    start = time.monotonic()
    older, newer = run(both())
    assert (older, newer) == (["stage", "superseded"], ["result"])
    assert time.monotonic() - start < LONGEST / 2


def test_whoever_leaves_stops_the_computation() -> None:
    async def leave() -> list[str]:
        working = Worker()
        async for _ in (answers := working.start("page", endless).answers()):
            break
        await answers.aclose()  # type: ignore[attr-defined]
        other = await kinds(working.start("another page", short))
        working.close()
        return other

    start = time.monotonic()
    assert run(leave()) == ["result"]
    assert time.monotonic() - start < LONGEST / 2


def test_pages_wait_for_one_another_but_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MOST_WAITING", 2)

    async def crowd() -> list[str]:
        working = Worker()
        first = working.start("one", endless)
        second = working.start("two", short)
        with pytest.raises(UnsumError, match="Too many pages"):
            working.start("three", short)
        first.stop()
        answered = await kinds(second)
        working.close()
        return answered

    assert run(crowd()) == ["result"]


def test_errors_become_sentences(caplog: pytest.LogCaptureFixture) -> None:
    def wrong() -> Generator[Answer, None, None]:
        raise UnsumError("Do this instead.")
        yield {}

    def broken() -> Generator[Answer, None, None]:
        raise ZeroDivisionError
        yield {}

    async def answers() -> list[Answer]:
        working = Worker()
        found = [a for work in (wrong, broken) async for a in working.start("page", work).answers()]
        working.close()
        return found

    first, second = run(answers())
    assert first == {"kind": "error", "sentence": "Do this instead."}
    assert "the terminal" in second["sentence"]
    # the defect itself is for the terminal, not for the page
    assert "ZeroDivisionError" in caplog.text


def searching() -> Generator[Answer, None, None]:
    trying("something", 1, 2)
    assert not out_of_time("a part")
    yield {"kind": "result"}


def test_a_long_search_says_what_it_is_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "_QUIET", 0.0)
    monkeypatch.setattr(deadline, "_EVERY", 0.0)

    async def all_of_them() -> list[Answer]:
        working = Worker()
        found = [answer async for answer in working.start("page", searching).answers()]
        working.close()
        return found

    said, result = run(all_of_them())
    assert said == {"kind": "search", "sentence": "The server is trying something (1 of 2); 0 s"}
    assert result == {"kind": "result"}
