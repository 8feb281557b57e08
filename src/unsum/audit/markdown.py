"""The audit as Markdown, for a pull request, a wiki or a ticket; the pictures lie beside it in `pictures.png`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from unsum.audit.result import AuditResult, SampleRow
from unsum.audit.texts import BADGES, BLURRED, PRICED, advice, credits_of, glossary, unpictured
from unsum.audit.wording import error, fixed, percent, plain, sample_count
from unsum.audit.wording import markdown as text
from unsum.knowledge import CHANGES_MODEL


def render_markdown(audit: AuditResult) -> str:
    """The complete file. Whatever came from outside is escaped, sign by sign."""
    parts = [
        _verdict(audit),
        _steps(audit),
        _pictures(audit),
        _samples(audit),
        _tried(audit),
        _others(audit),
        _granted(audit),
    ]
    return "\n\n".join([*parts, _confidence(audit), _setting(audit), _glossary(), _footer(audit)]) + "\n"


def _verdict(audit: AuditResult) -> str:
    verdict = audit.verdict
    lines = [f"# {text(verdict.headline)}", "", f"**{BADGES[verdict.level]}.**", "", *_list(verdict.details)]
    caution = (
        "This is what the attacks tried recovered from one update. A stronger or better informed attack may recover more: little "
        "leakage here is no proof of safety."
    )
    if verdict.level == "open":
        caution = "That is no proof of safety: samples that no attack found may leak all the same."
    return "\n".join(lines if verdict.level == "severe" else [*lines, "", caution])


def _steps(audit: AuditResult) -> str:
    steps = [
        f"{number}. {text(step.text)}" + (f" `{step.command}`" if step.command else "")
        for number, step in enumerate(advice(audit.verdict.level, truth_known=audit.truth is not None), start=1)
    ]
    return "\n".join(["## What to do now", "", *steps])


def _pictures(audit: AuditResult) -> str:
    if audit.texts is not None:
        return "## Pictures\n\nThere are none: the client trains on text, which is in the table below."
    if audit.leak.images is None:
        return f"## Pictures\n\n{unpictured(audit)}"
    names = ", ".join(row.title for row in audit.rows)
    what = (
        "Each private sample above what was read back from the update" if audit.truth else "Read back from the update"
    )
    meaning = f"\n\n{text(BLURRED)}" if audit.truth and audit.leak.inputs is None else ""
    return f"## Pictures\n\n![{text(f'{what}: {names}')}](pictures.png){meaning}"


def _samples(audit: AuditResult) -> str:
    if audit.truth is None:
        table = _table(
            "Sample | Found label | Leakage (certified)",
            [[row.title, row.found_label or "not found", percent(row.leakage)] for row in audit.rows],
            numbers=1,
        )
        note = (
            "The truth is not known: leakage is what the attack's own certificate vouches for; “–” where it does not."
        )
    elif audit.texts is not None:
        rows = [
            [row.title, row.label or "", row.found_label or "not found", percent(row.leakage)] for row in audit.rows
        ]
        table = _table("Text | As it was | Recovered | Leakage", rows, numbers=1)
        note = "Leakage is the share of a text's tokens that were found in their place."
    else:
        headings = (
            "Sample | Label | Found label | By the attack | Leakage | Feature error | Cosine | PSNR (dB) | SSIM | LPIPS"
        )
        table = _table(headings, [_cells(row) for row in audit.rows], numbers=6)
        note = "“–” was not measured." + (f" {text(audit.trained_on)}" if audit.trained_on else "")
    return f"## Sample by sample\n\n{table}\n\n{note}"


def _tried(audit: AuditResult) -> str:
    rows = [[one.attack, one.got, one.remark] for one in audit.tried]
    return (
        f"## Attacks tried, and what each got\n\n{_table('Attack | What it got | What it cannot say', rows, numbers=0)}"
    )


def _cells(row: SampleRow) -> list[str]:
    assert row.score is not None
    found, score = f"{row.found_label} ({'correct' if row.label_correct else 'wrong'})", row.score
    return [
        row.title,
        row.label or "",
        "not found" if row.found_label is None else found,
        row.by or "–",
        percent(row.leakage),
        error(score.feature_error),
        fixed(score.feature_cosine, 4),
        fixed(score.psnr, 1),
        fixed(score.ssim, 2),
        fixed(score.lpips, 2),
    ]


def _others(audit: AuditResult) -> str:
    comparison = audit.comparison
    heading = "## The same round under other defenses\n\n"
    if not comparison.points:
        return f"{heading}Not shown here. {text(comparison.absent)}"
    headings = "Defense | Attack | Largest leakage | Mean leakage | Labels found | PSNR (dB) | Accuracy"
    rows = [
        [
            comparison.label(i),
            point.method or f"refused: {point.refused}",
            percent(point.worst),
            percent(point.mean),
            "–" if point.refused else f"{point.labels_right} of {len(point.samples)}",
            fixed(point.psnr, 1),
            percent(point.accuracy.mean) if point.accuracy else "–",
        ]
        for i, point in enumerate(comparison.points)
    ]
    note = f"{PRICED} Little leakage here is what this attack recovers, no proof of safety."
    return f"{heading}{text(comparison.answer)}\n\n{_table(headings, rows, numbers=5)}\n\n{note}"


def _granted(audit: AuditResult) -> str:
    return "\n".join(["## Threat model: what the attacker was granted", "", *map(_permission, audit.granted)])


def _permission(sentence: str) -> str:
    """Markdown knows no red, so a mark of that color stands before what no honest server may do."""
    return f"- 🔴 **{text(sentence)}**" if sentence == CHANGES_MODEL else f"- {text(sentence)}"


def _confidence(audit: AuditResult) -> str:
    leak = audit.leak
    vouches = "vouches" if leak.exact else "does not vouch"
    worst = audit.scores.get("worst_feature_error", math.nan)
    facts = {
        "Certificate": f"{'exact' if leak.exact else 'not exact'}: the attack {vouches} for its answer",
        "Predicted feature error": error(leak.predicted_error)
        + ("" if math.isnan(worst) else f" (largest measured: {error(worst)})"),
        "Residual": f"{error(leak.residual)} of the gradient left unexplained",
        "Samples found": f"{leak.batch_size}" + (f" (there are {len(audit.samples)})" if audit.truth else ""),
        "Gradient scale found": f"{leak.scale:.6g}",
        "Notes": " ".join(leak.notes) or "none",
    }
    return f"## How sure the attacker is\n\n{_facts(facts)}"


def _setting(audit: AuditResult) -> str:
    setting = audit.setting
    facts = {
        "Model": setting.model,
        "Private batch": f"{sample_count(setting.batch_size) if audit.truth else 'of unknown size'}, {setting.classes} classes",
        "BatchNorm mode": setting.mode,
        "Defense": setting.defenses,
        **({"Loss": setting.loss} if setting.loss else {}),
        **({"Local training": _declared(setting.training)} if setting.training else {}),
        "Attack": setting.attack,
        "Seed": str(setting.seed),
        "Device": setting.device,
        "Versions": ", ".join(f"{name} {version}" for name, version in setting.versions.items()),
        "Time": f"attack {audit.leak.seconds:.2f} s, everything {audit.seconds:.1f} s",
    }
    again = _block(setting.command) if setting.command else "Started from Python: call `unsum.audit` with this setting."
    return f"## Method, versions, and how to run it again\n\n{again}\n\n{_facts(facts)}"


def _declared(training: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in training.items() if value is not None)


def _glossary() -> str:
    lines = [f"- **{text(word)}**: {text(what)}" for word, what in glossary()]
    return "\n".join(["## The words used here", "", *lines])


def _footer(audit: AuditResult) -> str:
    lines = ["---", "", "Responsible use: audit what you operate or have permission to test."]
    for photo in credits_of(audit.truth.titles) if audit.truth else []:
        lines += ["", f"“{text(photo['title'])}”: {text(photo['author'])}, {text(photo['license'])}."]
    return "\n".join(lines)


def _list(sentences: Iterable[str]) -> list[str]:
    return [f"- {text(sentence)}" for sentence in sentences]


def _facts(facts: dict[str, str]) -> str:
    return _table(" | ", [list(pair) for pair in facts.items()], numbers=0)


def _table(headings: str, rows: list[list[str]], *, numbers: int) -> str:
    """A table whose last `numbers` columns are aligned to the right."""
    words = headings.count(" | ") + 1 - numbers
    lines = [[headings], [":--"] * words + ["--:"] * numbers, *([text(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _block(command: str) -> str:
    """A fence longer than any run of backticks inside, so that the command cannot end it."""
    command = "\n".join(plain(command).splitlines())
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", command)), default=0))
    return f"{fence}console\n{command}\n{fence}"
