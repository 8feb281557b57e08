"""The answer of a search that had no time to end: the best so far, and what was left untried."""

from __future__ import annotations

from dataclasses import replace

from unsum.certify.claim import grant_each
from unsum.deadline import LEFT_UNTRIED, Deadline
from unsum.leak import Leak


def cut_short(leak: Leak, deadline: Deadline) -> Leak:
    """The leak as it is where its search came to its end under this limit.

    A certificate of the batch stays: a separator that was cut short gives none itself, so what was cut came after it.
    """
    if not deadline.cut:
        return leak
    sure = [attempt.leak is not None and attempt.leak.exact for attempt in leak.tried]
    tried = [one if ended else replace(one, blind=deadline.over) for one, ended in zip(leak.tried, sure, strict=True)]
    notes = [deadline.sentence, *(note for note in leak.notes if LEFT_UNTRIED not in note)]
    if leak.inputs_exact is not None:  # peeling that was cut short vouches for nothing
        leak = replace(leak, inputs_exact=grant_each(leak.inputs_exact.double(), above=False))
    return replace(leak, tried=tried, notes=notes)
