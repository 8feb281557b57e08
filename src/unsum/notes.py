"""Notes: sentences for a person, with a code where a program has to recognize one.

No program searches the words of a note: it asks for its code, so that a sentence may be reworded.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Code(Enum):
    """What a note is about."""

    CUT_SHORT = "cut-short"  # time was over, or Ctrl-C came, before the search was done
    TOO_MANY_STEPS = "too-many-steps"  # and how few local steps could have been followed
    OPEN_SLOPES = "open-slopes"  # slopes of an activation that a layer's gradient leaves open
    NEEDS_INVERSE = "needs-inverse"  # no inverse fits this model, so no picture is drawn
    DOUBTED_TEXT = "doubted-text"  # what speaks against a text that was found
    EXPECTED = "expected"  # how much of an answer is expected to be right, if it is one
    OTHER_TRAINING = "other-training"  # the client trained otherwise than by the SGD declared
    NO_HEAD = "no-head"  # the network has no linear head that attacks could start from


class Note(str):
    """A sentence with its code; wherever text is expected it is that sentence.

    >>> note = Note("Time was over.", Code.CUT_SHORT)
    >>> note, note.code
    ('Time was over.', <Code.CUT_SHORT: 'cut-short'>)
    """

    __slots__ = ("code",)
    code: Code

    def __new__(cls, sentence: str, code: Code) -> Note:
        note = super().__new__(cls, sentence)
        note.code = code
        return note

    def __getnewargs__(self) -> tuple[str, Code]:  # type: ignore[override] # copies keep the code
        return str(self), self.code


def code_of(note: str) -> Code | None:
    """The code of a note; None where it has none."""
    return note.code if isinstance(note, Note) else None


def has(notes: Iterable[str], code: Code) -> bool:
    """Whether a note of this code is among them.

    >>> has(["Time was over."], Code.CUT_SHORT)
    False
    """
    return any(code_of(note) is code for note in notes)


def without(notes: Iterable[str], code: Code) -> list[str]:
    """The notes but for those of this code."""
    return [note for note in notes if code_of(note) is not code]
