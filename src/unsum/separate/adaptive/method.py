"""The adaptive separator: it looks for the marks of a defence first, and solves for what the defence left."""

from __future__ import annotations

from dataclasses import replace

from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.adaptive.answer import answer
from unsum.separate.adaptive.batch import find_batch
from unsum.separate.adaptive.recognise import recognise
from unsum.separate.adaptive.rounds import fit_noisy, fit_pruned
from unsum.separate.exact import exact
from unsum.separate.method import SEPARATORS


@SEPARATORS.register(
    "adaptive",
    summary="recognises noise, pruning, quantisation and Soteria in the update and solves for what they left (unsum)",
    needs="the last layer's gradient; fewer samples than classes",
)
def adaptive(head: Head, knowledge: Knowledge, *, seed: int) -> Leak:
    """Separate a batch whose gradient was tampered with; `notes` say which defence was found and what was done."""
    defence = recognise(head)
    if defence.kind == "none":
        return replace(exact(head, knowledge, seed=seed), method="adaptive")
    batch = find_batch(head, knowledge, defence)
    if batch is None:
        return replace(exact(head, knowledge, seed=seed), method="adaptive")
    fit = fit_noisy(head, batch, defence) if defence.is_noise else fit_pruned(head, batch, defence)
    return answer(head, batch, defence, fit)
