"""Notes keep their codes wherever they go, and programs ask for nothing else."""

from __future__ import annotations

import copy
import json
import pickle
import re
from pathlib import Path

import pytest

import unsum
from unsum.notes import Code, Note, code_of, has, without

SOURCE = Path(unsum.__file__).parent


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda note: pickle.loads(pickle.dumps(note))]
)
def test_a_copy_has_the_code(copied: object) -> None:
    note = copied(Note("Time was over.", Code.CUT_SHORT))  # type: ignore[operator]
    assert note == "Time was over."
    assert code_of(note) is Code.CUT_SHORT


def test_the_words_alone_are_no_code() -> None:
    words, note = "Time was over.", Note("Time was over.", Code.CUT_SHORT)
    assert not has([words], Code.CUT_SHORT)
    assert has([words, note], Code.CUT_SHORT)
    assert not has([note], Code.NO_HEAD)
    assert without([words, note], Code.CUT_SHORT) == [words]
    assert without([words, note], Code.NO_HEAD) == [words, note]


def test_json_holds_the_sentence() -> None:
    assert json.dumps([Note("Time was over.", Code.CUT_SHORT)]) == '["Time was over."]'


def test_no_program_searches_the_words_of_a_note() -> None:
    searching = re.compile(
        r"""(["'] |[A-Z_]{3,} )(not )?in (note|reason|sentence)s?\b|"""
        r"(note|reason|sentence)\.(startswith|partition)\("
    )
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if searching.search(line)
    ]
    assert found == []
