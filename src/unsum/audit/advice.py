"""What to do now: the next steps that fit a verdict, each with the command that takes it."""

from __future__ import annotations

from dataclasses import dataclass

from unsum.audit.leakage import DEFAULT_LEVEL
from unsum.audit.verdict import Level


@dataclass(frozen=True)
class Step:
    """A sentence, and a command that goes with it, if any."""

    text: str
    command: str = ""


_KEEP = Step(
    "Treat updates like these as the personal data they were computed from: who may see them, how long they are kept, and what "
    "the people concerned are told."
)
_SUM = Step(
    "Let the server see only sums over clients (secure aggregation) that hold several times as many samples together as the "
    "model has classes: a sum over fewer is as readable as one client's update."
)
_SWEEP = Step(
    "Find out how strong a defense must be here, and what it costs in accuracy.",
    "unsum audit … --sweep noise=1e-5..1e-1",
)
_GATE = Step(
    f"Keep it from coming back: fail the build when any sample leaks more than, say, {DEFAULT_LEVEL:.0%}".replace(
        "%", " %"
    )
    + ".",
    f"unsum audit … --fail-above {DEFAULT_LEVEL:g}",
)
_MEASURE = Step(
    "Measure with samples of your own whose truth you know: simulate the same round and compare.", "unsum audit"
)
_STRONGER = Step("Try the other attacks, and more of the attacker's knowledge, before relying on it.", "unsum list")


def advice(level: Level) -> list[Step]:
    """The steps for a verdict, the most urgent first."""
    return {
        "severe": [_KEEP, _SUM, _SWEEP, _GATE],
        "partial": [_KEEP, _SWEEP, _SUM, _GATE],
        "labels": [_KEEP, _SUM, _STRONGER, _GATE],
        "low": [_STRONGER, _GATE],
        "open": [_MEASURE, _STRONGER, _KEEP],
    }[level]
