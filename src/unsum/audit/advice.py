"""What to do now: sentences for whoever holds an audit, each with the command that goes with it,
ready to be copied.

What was done already is not advised again, and a defense that ruins the model is said to.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

from unsum.audit.leakage import DEFAULT_LEVEL
from unsum.audit.result import AuditResult
from unsum.audit.sweep.result import DEFAULT_RANGE
from unsum.audit.sweep.task import ruins
from unsum.audit.verdict import PROTECTED, Level
from unsum.audit.wording import percent
from unsum.notes import Code, code_of, has


@dataclass(frozen=True)
class Advice:
    """A sentence, and a command that goes with it, if any."""

    text: str
    command: str = ""


_KEEP = Advice(
    "Treat updates like these as the personal data they were computed from: who may see them, how "
    "long they are kept, and what the people concerned are told."
)
_SUM = (
    "that hold several times as many samples together as the model has classes and its widest "
    "dense layer has units: a sum over fewer is as readable as one client's update."
)
_ALARM = Advice(
    "Rely on neither figure, found or ceiling, until it is known which of them is wrong: report "
    "this audit with its command and seed, which stand below."
)
_STRONGER = Advice(
    "Try the other attacks, and more of the attacker's knowledge, before relying on it.",
    "unsum list",
)
_STEPS: dict[Level, tuple[str, ...]] = {  # the most urgent first
    "severe": ("ruin", "keep", "sum", "sweep", "gate"),
    "partial": ("ruin", "keep", "sweep", "sum", "gate"),
    "features": ("ruin", "keep", "sum", "sweep", "gate"),
    "labels": ("ruin", "keep", "sum", "stronger", "gate"),
    "unproven": ("ruin", "prove", "stronger", "gate"),
    "protected": ("ruin", "gate"),
    "open": ("ruin", "keep", "prove open", "grant", "measure", "stronger"),
}
_NOISE = re.compile(r"(?<!\w)Noise\(([^)]+)\)")
_OF_UPDATES = (
    "--update",
    "--before",
    "--after",
    "--delta",
    "--server",
    "--buffers",
    "--junit",
    "--sarif",
    "--fail-above",
    "--prove-below",
)
_OF_ATTACKS = (
    "--attack",
    "--labels",
    "--inverse",
    "--refine",
    "--server",
    "--batch-size-known",
    "--time-limit",
    "--compare",
    "--no-compare",
    "--ceiling",
    "--out",
)
_FIRST_NOISE = "0.1"  # where a language model was audited without any
_LOUDER = 10.0  # times the noise that was too weak, where one strength is tried at a time
_PATIENT = 600  # [s] for attacks that had too little. Chosen by: arbitrary budget
# times the noise that was too weak or too strong, to look for the strength that is enough
_WIDER = 1e3


def advice(audit: AuditResult) -> list[Advice]:
    """The most urgent first."""
    made = {
        "ruin": _ruined(audit),
        "keep": _KEEP,
        "sum": _summed(audit),
        "sweep": _swept(audit),
        "gate": _gated(audit),
        "grant": _granted(audit),
        "measure": _measured(audit),
        "stronger": _patient(audit) if _headless(audit) else _STRONGER,
        "prove": _proved(audit),
        # what no attack decides, a ceiling may
        "prove open": None if audit.bound is None else _proved(audit),
    }
    steps = _STEPS[
        "unproven" if audit.verdict.level == "open" and _headless(audit) else audit.verdict.level
    ]
    first = [_ALARM] if audit.verdict.alarm else []
    return [*first, *(step for name in steps if (step := made[name]) is not None)]


def _ruined(audit: AuditResult) -> Advice | None:
    """Where the defense that was audited was priced, and no model learns under it."""
    points = audit.comparison.points
    if not audit.comparison.audited_second or len(points) < 2:
        return None
    before, after = points[0].accuracy, points[1].accuracy
    if before is None or after is None or not ruins(before, after, audit.comparison.chance):
        return None
    ruined = (
        f"Do not deploy this defense as it is: {points[1].defenses} ruins the model. A small "
        f"network learns to {percent(after.mean)} accuracy under it instead of "
        f"{percent(before.mean)}."
    )
    if audit.verdict.state == PROTECTED:
        weaker = (
            " A weaker strength may protect, too, and leave a model; or let the server see only "
            "sums over clients."
        )
        return Advice(ruined + weaker, _sweep_command(audit, weaker=True))
    return Advice(
        f"{ruined} Nor is it proven to protect; look for another defense.", "unsum list defenses"
    )


def _summed(audit: AuditResult) -> Advice | None:
    if _headless(audit) or audit.texts is not None:
        return None  # how many samples a sum must hold is known of classifiers alone
    if "SecAgg" in audit.setting.defenses:
        return Advice(f"Let more clients into one sum: the server should see only sums {_SUM}")
    return Advice(f"Let the server see only sums over clients (secure aggregation) {_SUM}")


def _headless(audit: AuditResult) -> bool:
    """Whether the network is neither a classifier nor a model of text; no sweep plays it."""
    return audit.truth is not None and not audit.truth.class_names and audit.texts is None


def _swept(audit: AuditResult) -> Advice:
    if _headless(audit):
        return _proved(audit)
    used = audit.setting.defenses
    if audit.texts is not None:
        text = "Try a defense, and look at what it proves; " + (
            "noise is one." if used == "none" else f"{used} is not enough here."
        )
        return Advice(text, _defended_command(audit))
    if audit.truth is None or used == "none":
        text = "Find out how strong a defense must be here, and what it costs in accuracy."
    else:
        text = (
            f"{used} is not enough here; find out how strong a defense must be, and what that "
            "costs in accuracy."
        )
    return Advice(text, _sweep_command(audit))


def _defended_command(audit: AuditResult) -> str:
    """The same round under noise, stronger than any that was too weak: of what cannot be swept."""
    own, louder = _own_noise(audit), _louder(audit)
    if not audit.setting.command:
        return f"unsum.audit(model, data, defenses=unsum.Noise({louder}))"
    return again(
        audit.setting.command, f"--defense noise:{louder}", without=_OF_UPDATES, louder=bool(own)
    )


def _own_noise(audit: AuditResult) -> list[float]:
    """The noise that was audited, each strength of it."""
    return [float(found) for found in _NOISE.findall(audit.setting.defenses)]


def _louder(audit: AuditResult) -> str:
    """Noise above the one that was too weak, or the first to try."""
    own = _own_noise(audit)
    return f"{own[-1] * _LOUDER:g}" if own and own[-1] > 0 else _FIRST_NOISE


def _sweep_command(audit: AuditResult, *, weaker: bool = False) -> str:
    """The same round under many strengths of noise; from noise that was too weak on, or up to noise
    that was too strong, where there was some."""
    own = _own_noise(audit)
    low, high = (1 / _WIDER, 1.0) if weaker else (1.0, _WIDER)
    wanted = (
        f"noise={own[-1] * low:g}..{own[-1] * high:g}" if own and own[-1] > 0 else DEFAULT_RANGE
    )
    if not audit.setting.command:
        return f'unsum.sweep(model, data, over="{wanted}")'
    how: dict[str, Any] = {
        "without": (*_OF_UPDATES, "--compare", "--no-compare"),
        "out": "unsum-sweep",
    }
    return again(audit.setting.command, f"--sweep {wanted}", **how, louder=bool(own))


def _gated(audit: AuditResult) -> Advice | None:
    if "--fail-above" in audit.setting.command:
        return None
    if audit.verdict.state == PROTECTED:
        return _held(audit)
    text = (
        "Keep it from coming back: fail the build when any sample leaks more than, say, "
        f"{percent(DEFAULT_LEVEL)}."
    )
    if not audit.setting.command:
        return Advice(text, f"report.gate({DEFAULT_LEVEL:g}).exit_code")
    return Advice(text, again(audit.setting.command, f"--fail-above {DEFAULT_LEVEL:g}"))


def _held(audit: AuditResult) -> Advice | None:
    """A gate on the proof, where there is one."""
    if "--prove-below" in audit.setting.command:
        return None
    text = (
        "Keep it proven: fail the build when the ceiling of any sample is "
        f"{percent(DEFAULT_LEVEL)} or more."
    )
    if not audit.setting.command:
        return Advice(
            text, f"report.gate({DEFAULT_LEVEL:g}, prove_below={DEFAULT_LEVEL:g}).exit_code"
        )
    return Advice(text, again(audit.setting.command, f"--prove-below {DEFAULT_LEVEL:g}"))


def _proved(audit: AuditResult) -> Advice:
    """What would make it green: noise that proves the ceiling."""
    if _headless(audit) or audit.texts is not None:
        text = (
            "Prove it: add noise, and more of it until the ceiling of every sample is below the "
            "level."
        )
        louder = _louder(audit)
        how = f"--defense clip:1 --defense noise:{louder} --prove-below {DEFAULT_LEVEL:g}"
        dropped = ("--defense", "--fail-above", "--prove-below")
        loss = "" if audit.texts is not None else "client=unsum.ClientTraining(loss=loss), "
        own = f"unsum.audit(model, data, {loss}defenses=[unsum.Clip(1), unsum.Noise({louder})])"
        return Advice(
            text,
            again(audit.setting.command, how, without=dropped) if audit.setting.command else own,
        )
    proven = [point.defenses for point in audit.comparison.points if point.proven(DEFAULT_LEVEL)]
    if audit.bound is not None and audit.bound.decided(DEFAULT_LEVEL) == "open":
        return Advice(
            "Decide it: time was over before the ceiling was known. Give it more.",
            _ceiling_command(audit),
        )
    text = (
        "Prove it: find the noise at which nobody can read the samples, and what that costs in "
        "accuracy."
    )
    if proven:
        text += f" {proven[0]} is enough."
    return Advice(text, _sweep_command(audit))


def _ceiling_command(audit: AuditResult) -> str:
    """The ceiling alone, with as much time as it takes."""
    if not audit.setting.command:
        return (
            f"unsum.ceiling(model, data, defenses={audit.setting.defenses}, "
            f"level={DEFAULT_LEVEL:g})"
        )
    how: dict[str, Any] = {"without": (*_OF_UPDATES, *_OF_ATTACKS)}
    alone = again(
        audit.setting.command, f"--prove-below {DEFAULT_LEVEL:g} --time-limit {_PATIENT}", **how
    )
    return alone.replace("unsum audit", "unsum ceiling", 1)


def _patient(audit: AuditResult) -> Advice | None:
    """More time, where an attack had too little."""
    if not has([audit.verdict.reason, *(one.remark for one in audit.tried)], Code.CUT_SHORT):
        return None
    text = "Give the attacks more time: what they left untried is named on this page."
    if not audit.setting.command:
        return Advice(
            text, f"unsum.audit(model, data, limits=unsum.AuditLimits(time_limit={_PATIENT}))"
        )
    return Advice(
        text,
        again(audit.setting.command, f"--time-limit {_PATIENT}", without=("--time-limit",)),
    )


def _granted(audit: AuditResult) -> Advice | None:
    code = code_of(audit.verdict.reason)
    refused = audit.texts is not None and all(one.refused for one in audit.tried)
    if code in (Code.NO_HEAD, Code.OTHER_TRAINING) or refused:
        return None  # whatever the batch
    if code is Code.CUT_SHORT:
        return _patient(audit)
    text = "Where the batch is the reason, "
    if audit.leak.knowledge.known_batch_size is not None:
        return Advice(f"{text}audit a smaller one: the attacker knew the size of this one already.")
    text += (
        "grant the attacker what a server may know (its size, the labels), or audit a smaller one."
    )
    if not audit.setting.command:
        return Advice(
            text, "unsum.audit(model, data, attacker=unsum.Attacker(batch_size_known=True))"
        )
    size = "" if audit.truth is not None or "--batch " in audit.setting.command else " --batch N"
    return Advice(text, again(audit.setting.command, f"--batch-size-known{size}"))


def _measured(audit: AuditResult) -> Advice | None:
    """Who has the truth need not be told to bring it: where a ceiling was proven, the client's
    samples were there."""
    if audit.truth is not None or audit.bound is not None:
        return None
    text = (
        "Measure with samples of your own whose truth you know: simulate the same round and "
        "compare."
    )
    if not audit.setting.command:
        return Advice(text, "unsum.audit(model, (inputs, targets))")
    return Advice(text, again(audit.setting.command, "", without=_OF_UPDATES))


def again(
    command: str, more: str, *, without: tuple[str, ...] = (), out: str = "", louder: bool = False
) -> str:
    """The command of an audit with `more`, and without some of its options and what they were
    given; `louder` drops the noise, where `more` brings another."""
    try:
        words = shlex.split(command)
    except ValueError:  # no command that a shell could have been given
        words = []
    if words[:2] != ["unsum", "audit"]:
        words = ["unsum", "audit"]
    dropped = (*without, *(("--out",) if out else ()), "--force")
    options = list[list[str]]()  # each with what it was given
    for word in words[2:]:
        if word.startswith("--") or not options:
            options.append([word])
        else:
            options[-1].append(word)
    left = [part for part in options if part[0].partition("=")[0] not in dropped]
    if louder:
        left = [
            part
            for part in left
            if not (part[0].startswith("--defense") and "noise" in " ".join(part))
        ]
    kept = [*words[:2], *(word for part in left for word in part)]
    return " ".join(filter(None, [shlex.join(kept), more, f"--out {out}" if out else ""]))
