"""The network itself: whether the layer that is taken for the head was seen to give the model's
output, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unsum.certify.claim import grant_each
from unsum.head import Head
from unsum.leak import Leak

# losses of probabilities: a constant that is added to all logits does not show
_SOFTMAX = ("cross-entropy", "focal")
_READS_TIED = ("text",)  # methods that know a head whose weight is the embedding's


def doubt_network(head: Head, method: str, loss: str) -> list[str]:
    """What a pass through the model left open about its head."""
    check, doubts = head.check, list(head.check.doubts)
    if check.shifted and loss.partition(":")[0] not in _SOFTMAX:
        doubts.append(
            f"The model normalizes its logits (log_softmax), which the loss {loss!r} feels: "
            "nothing is claimed."
        )
    if check.shared and method not in _READS_TIED:
        doubts.append(
            "The head's weight is used elsewhere in the model, too, so its gradient is of both: "
            "nothing is claimed."
        )
    return doubts


def withhold(leak: Leak, doubts: Sequence[str]) -> Leak:
    """The leak with these doubts, and nothing claimed where there are any."""
    if not doubts:
        return leak
    held = replace(leak, exact=False, notes=[*doubts, *leak.notes])
    if leak.inputs_exact is None:
        return held
    return replace(held, inputs_exact=grant_each(leak.inputs_exact, above=False))
