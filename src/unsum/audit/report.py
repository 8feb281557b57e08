"""The report: one HTML page that opens from disk (no network, one small script, every picture
inside), and its companions.

First the sentences that no figure changes: the words in plain language.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from unsum.audit import ceiling_words
from unsum.audit.advice import advice
from unsum.audit.gate import Gate, check_level, check_proof
from unsum.audit.leakage import DEFAULT_LEVEL, WHOLE, Shares
from unsum.audit.pictures import data_uri, is_picture, picture_grid
from unsum.audit.result import AuditResult, SampleRow
from unsum.audit.sweep.bench import mean_of
from unsum.audit.sweep.plot import plot_side_by_side
from unsum.audit.sweep.result import DEFAULT_RANGE
from unsum.audit.verdict import UNVOUCHED, Level
from unsum.audit.wording import error, fixed, markdown, percent, plain, sample_count
from unsum.ceiling.result import ASSUMED
from unsum.files.report_folder import check_folder
from unsum.files.writing import write_text, write_whole
from unsum.knowledge import CHANGES_MODEL
from unsum.models.lpips import lpips_status
from unsum.notes import Code, has
from unsum.showing.cards import Card
from unsum.showing.cards import page as cards_of

if TYPE_CHECKING:
    from jinja2 import Environment


_LEVELS: dict[Level, tuple[str, str]] = {  # a badge, and its color on a terminal
    "severe": ("Severe leakage", "bold red"),
    "partial": ("Partial leakage", "bold yellow"),
    "features": ("Leakage of features", "bold red"),
    "labels": ("Label leakage", "bold yellow"),
    "unproven": ("Unproven", "bold yellow"),
    "protected": ("Protected", "bold green"),
    "open": ("Not decidable", "bold"),
}
BLURRED = (
    "A leakage of 100 % is of the features: the attack read exactly what the model makes of the "
    "sample. The picture beside it is as good as the inverse that draws it from those features, "
    "and may be blurred where nothing is missing."
)
PRICED = (
    "Accuracy is that of a small network after a short federated training under the defense. It is "
    "measured without any defense and where every sample stays under the level."
)
BADGES = {level: badge for level, (badge, _) in _LEVELS.items()}
COLORS = {level: color for level, (_, color) in _LEVELS.items()}


def pictured(audit: AuditResult) -> bool:
    """Whether there are pictures to speak of."""
    return any(
        is_picture(picture) for row in audit.rows for picture in (row.original, row.recovered)
    )


def unpictured(audit: AuditResult) -> str:
    """Why the report shows no recovered pictures."""
    if audit.distribution is not None and not audit.rows:
        return (
            "Samples of several local steps were not told apart, so none is shown. Their labels "
            "are counted below."
        )
    if audit.truth is None and audit.leak.made_up and not audit.rows:
        return (
            "The client may have trained otherwise than the attack takes it to have, so what the "
            "attack lists is no sample, and none is shown."
        )
    if not audit.leak.batch_size and not audit.leak.readings:
        return "No attack gave an answer, so there is nothing to show beside the samples."
    if audit.table is not None:
        return " ".join(audit.table.sentences)
    if audit.truth is not None and not any(is_picture(row.original) for row in audit.rows):
        return "The samples are no pictures; what came back of each is in the table below."
    if any(row.shares.sample >= DEFAULT_LEVEL for row in audit.rows):
        return (
            "Pictures came back pixel by pixel; they are not drawn here, and what was read of each "
            "is in the table below."
        )
    if has(audit.leak.notes, Code.CUT_SHORT):
        return (
            "Time was over before the attack had drawn pictures; a larger --time-limit lets it go "
            "on. What it did recover is in the table below."
        )
    if audit.truth is None and not has(audit.leak.notes, Code.NEEDS_INVERSE):
        return "The attack made no pictures. What it did recover is in the table below."
    return (
        "No inverse fits this model, so the attack ends with features and makes no pictures. What "
        "it did recover is in the table below."
    )


def glossary(*, pictures: bool = True) -> list[tuple[str, str]]:
    """Words and what they mean, in the order in which they are needed; those of pictures where
    there are some."""
    perceived = "A distance between pictures as a neural network perceives them; lower is closer."
    words = {
        "Federated learning": (
            "Many clients (phones, hospitals) train one model together: each trains on its own "
            "data and sends only the change of the model to a server."
        ),
        "Update": "What a client sends to the server after training on its own data; here, one "
        "gradient. The samples themselves never leave the client.",
        "Gradient": (
            "The direction in which a client's samples would change each weight of the model: a "
            "sum over those samples."
        ),
        "Sample": (
            "One private item that the client trained on, such as a photo, a text or a "
            "row. A batch is the samples of one update."
        ),
        "Leakage": (
            "How much better the update lets an attacker answer than no update would, from 0 % (no "
            "better than a guess: public data of the kind, or a typical sample of this client "
            "where its samples differ) to 100 % (all of it). It is measured on features and on the "
            "sample itself: on rows, on pixels, and on pixels up to brightness, tint and contrast; "
            "the largest counts, of the strongest attack tried. Where no attack applies it is not "
            "known, which is shown as –, never as 0 %. A label that was found is not part of it."
        ),
        "Found": (
            "The leakage that the attacks reached: a lower bound of what the update gives away."
        ),
        "Ceiling": (
            "The leakage that no attack can exceed, whatever it computes. The client is played "
            "twice, in two worlds that differ in one bit of a sample; the distance of the two "
            "updates, over the noise that is added to them, bounds how well anyone can tell the "
            "worlds apart. Without noise it is 100 %, unless both worlds send the same."
        ),
        "Protected, unproven": (
            "Protected: every sample's ceiling is below the level. Unproven: nothing was found "
            "above the level, and the ceiling does not show that nothing can be."
        ),
        "Label": "The class that the client assigned to a sample: what a photo shows, say.",
        "Feature": (
            "The numbers that the model computes from one sample just before its last layer. The "
            "feature error is the distance between found and true features, relative to the true "
            "ones: 0 is perfect, 1 is no better than guessing zero. Cosine compares directions "
            "alone: 1 is the same."
        ),
        "PSNR": (
            "Peak signal-to-noise ratio in decibels: how close the pixels are, higher is closer. "
            "It is computed for each picture; the mean is the mean of these values."
        ),
        "SSIM": (
            "Structural similarity: whether edges and textures agree. 1 is the same picture, 0 is "
            "unrelated."
        ),
        "LPIPS": " ".join(filter(None, [perceived, lpips_status()])),
        "Certificate": (
            "The attacker's own statement that its answer is right. It is worked out from the "
            "update alone, so a real attacker would have it, too."
        ),
        "Defense": (
            "A change that the client makes before or while it computes the update, such as added "
            "noise."
        ),
    }
    left_out = () if pictures else ("PSNR", "SSIM", "LPIPS")
    return [(word, meaning) for word, meaning in words.items() if word not in left_out]


def credits_of(titles: list[str]) -> list[dict[str, str]]:
    """Author and license of every photo, if all carry titles of embedded ones, else nothing:
    somebody's own photos."""
    manifest = (files("unsum.data") / "photos" / "manifest.json").read_text("utf-8")
    known: dict[str, dict[str, str]] = {photo["title"]: photo for photo in json.loads(manifest)}
    return [known[title] for title in titles] if all(title in known for title in titles) else []


_SHOWN = 5  # samples of a printed audit
_MEANS = ("label_correct", "feature_error", "feature_cosine", "psnr", "ssim", "lpips")


class Audit(AuditResult):
    """What the attack made of one update, beside the truth where the round was simulated.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> data = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> report = unsum.audit(model, data)
        >>> print(report)
        This update gives away every sample of the batch.
        Attack: exact on Linear.
        Found: sample 1: 100 %, sample 2: 100 %, sample 3: 100 %.
        Ceiling: 100 % (no noise is added to the update, so that nothing random hides the samples).
        >>> report.gate(0.2).exit_code
        1
    """

    def gate(
        self,
        level: float = DEFAULT_LEVEL,
        *,
        prove_below: float | None = None,
        fail_on_labels: bool = False,
    ) -> Gate:
        """Whether any sample leaks more than `level`, from 0 to below 1: `.result`, `.exit_code`
        and `.reason` say.

        With `prove_below`, every ceiling must be proven to be below that level as well. With
        `fail_on_labels`, labels, their distribution, or tokens and categories that were read fail,
        too.
        """
        check_level(level)
        # silence is no evidence
        whole = SampleRow("the whole update", None, None, Shares(), None, None, None)
        if prove_below is not None:
            check_proof(prove_below)
        why = self.verdict.reason or self.undecided or UNVOUCHED
        proof: dict[str, Any] = {"bound": self.bound, "prove_below": prove_below}
        headline = self.verdict.headline if self.verdict.level == "labels" else ""
        proof |= {"headline": headline, "fail_on_labels": fail_on_labels}
        return Gate(
            level, self.rows or [whole], why, labels=self.labels, occurred=self.occurred, **proof
        )

    def write(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write `report.html`, `report.md`, `result.json` and, where there are pictures,
        `pictures.png`.

        An existing folder is written to only with `force`.
        """
        folder = Path(folder)
        check_folder(folder, force=force)
        page = render(self)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "report.html", page)
        write_text(folder / "report.md", render_markdown(self))
        if self.leak.images is not None and self.rows:
            write_whole(
                folder / "pictures.png", lambda part: picture_grid(self).save(part, format="PNG")
            )
        else:
            # those of an earlier audit would pass for this one's
            (folder / "pictures.png").unlink(missing_ok=True)
        write_text(
            folder / "result.json", json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
        )
        return folder / "report.html"

    def _repr_html_(self) -> str:
        """For notebooks: the report's headline and cards."""
        verdict = self.verdict
        said = [*verdict.details, f"Attack: {self.setting.attack} on {self.setting.model}."]
        cards = [
            Card(
                row.title,
                [
                    *([] if row.label is None else [("true label", row.label)]),
                    ("found label", row.found_label or "not found"),
                    ("found", percent(row.leakage)),
                    ("ceiling", percent(row.ceiling)),
                ],
                [("original", row.original), ("recovered", row.recovered)],
            )
            for row in self.rows
        ]
        return cards_of(
            verdict.level, BADGES[verdict.level], verdict.headline, said, cards, verdict.alarm
        )

    def __repr__(self) -> str:
        """What a person wants to know first; every figure is in `to_dict()` and in the report that
        `write` makes."""
        shown = [row for row in self.rows if not math.isnan(row.leakage)]
        most = sorted(shown, key=lambda row: -round(row.leakage, 2))[:_SHOWN]
        split = any(row.shares.read == "features" for row in most)
        leaked = [f"{row.title}: {row.leaked if split else percent(row.leakage)}" for row in most]
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        unknown = (
            f"; of {len(self.rows) - len(shown)} not known"
            if leaked and len(shown) < len(self.rows)
            else ""
        )
        lines = [self.verdict.headline, f"Attack: {self.setting.attack} on {self.setting.model}."]
        lines += [] if self.distribution is None else [self.distribution.sentence]
        joined = ("; " if split else ", ").join(leaked)
        lines += [f"Found: {joined}{more}{unknown}."] if leaked else []
        return "\n".join(
            [*lines, *filter(None, [ceiling_words.printed(self.bound), self.verdict.alarm])]
        )


def render(audit: AuditResult) -> str:
    """The complete page. Titles, class names and the command are escaped: they may come from
    anywhere."""
    pictures = [(row, data_uri(row.original), data_uri(row.recovered)) for row in audit.rows]
    shown = [
        {"row": row, "original": original, "recovered": recovered}
        for row, original, recovered in pictures
    ]
    # rows of a table are not
    drawn = any(original or recovered for _, original, recovered in pictures)
    comparison = audit.comparison
    labels = [_in_drawing(comparison.label(i)) for i in range(len(comparison.points))]
    if comparison.audited_second:
        labels[1] = "audited"
    compared = plot_side_by_side(comparison.points, labels, DEFAULT_LEVEL) if labels else None
    page = environment().get_template("report.html.j2")
    return page.render(**_told(audit), shown=shown, drawn=drawn, compared=compared)


def _in_drawing(label: str) -> str:
    """A defense below its mark, where longer names would run into their neighbors; the table has
    them whole."""
    if " | " in label:
        return "clip + noise"
    return re.sub(r"^Noise\((.+)\)$", r"σ \1", label)


def render_markdown(audit: AuditResult) -> str:
    """The same for a pull request, a wiki or a ticket; the pictures lie beside it in
    `pictures.png`."""
    command, again = (
        audit.setting.command,
        "Started from Python: call `unsum.audit` with this setting.",
    )
    if command:
        command = "\n".join(plain(command).splitlines())
        fence = _fence(command, 3)
        again = f"{fence}console\n{command}\n{fence}"
    page = _markdown_environment().get_template("report.md.j2")
    return page.render(**_told(audit), again=Markup(again))


def _fence(text: str, least: int) -> str:
    """Longer than any run of backticks inside, so that what stands between two of them cannot end
    there."""
    return "`" * max(least, 1 + max(map(len, re.findall("`+", text)), default=0))


def _code(text: str) -> Markup:
    """A command inside a line of Markdown."""
    line = " ".join(plain(text).split())
    fence = _fence(line, 1)
    return Markup(f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}")


def _told(audit: AuditResult) -> dict[str, Any]:
    """What both templates show."""
    rows, verdict = audit.rows, audit.verdict
    features, own = (
        [value for value in values if not math.isnan(value)]
        for values in ([row.shares.features for row in rows], [row.shares.sample for row in rows])
    )
    return {
        "audit": audit,
        "rows": rows,
        "changes_model": CHANGES_MODEL,
        "setting": audit.setting,
        "leak": audit.leak,
        "verdict": verdict,
        "badge": BADGES[verdict.level],
        "most": max(
            (row for row in rows if not math.isnan(row.leakage)),
            key=lambda row: row.leakage,
            default=None,
        ),
        "means": {name: audit.scores.get(name, math.nan) for name in _MEANS}
        | {"leakage": mean_of([value for value in audit.leakages if not math.isnan(value)])}
        | {"features": mean_of(features), "own": mean_of(own)},
        # what was made of them stands beside
        "split": any(row.shares.read == "features" for row in rows),
        "largest_features": max(features, default=math.nan),
        "whole_features": max(features, default=0.0) >= WHOLE,
        "perceived": any(not math.isnan(sample.lpips) for sample in audit.samples),
        "proof": [audit.unbounded] if audit.bound is None else ceiling_words.details(audit.bound),
        "largest_own": max(own, default=math.nan),
        "noun": audit.sizes.noun,
        "worst_error": audit.scores.get("worst_feature_error", math.nan),
        "mean_ceilings": any(
            "(mean)" in ceiling_words.ceiling_of(one) for one in audit.comparison.points
        ),
        "some_missing": any(row.found_label is None for row in rows),
        "steps": advice(audit),
        "comparison": audit.comparison,
        "strengths": DEFAULT_RANGE,
        "keep_under": DEFAULT_LEVEL,
        "assumed": ASSUMED,
        "meaning": BLURRED,
        "unpictured": unpictured(audit),
        "priced": PRICED,
        "glossary": glossary(pictures=pictured(audit)),
        "pictured": pictured(audit),
        "credits": credits_of(audit.truth.titles) if audit.truth else [],
    }


def _fit(value: Any) -> Any:
    """Whatever a template prints; text without the characters that no page may carry, markup as it
    is."""
    return plain(value) if type(value) is str else value


@cache
def environment(finalize: Callable[[Any], Any] = _fit) -> Environment:
    """Where templates are compiled, once a process: that takes four times as long as a page."""
    # here, so that importing unsum does not import it
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("unsum.audit"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    environment.filters |= {
        "error": error,
        "ceiling": ceiling_words.ceiling_of,
        "fixed": fixed,
        "percent": lambda value: together(percent(value)),
        "together": together,
        "prose": prose,
        "sortable": _sortable,
        "csp_hash": _csp_hash,
    }
    return environment


@cache
def _markdown_environment() -> Environment:
    pages = environment(lambda value: Markup(markdown(value)) if type(value) is str else value)
    pages.filters |= {"percent": percent, "sample_count": sample_count, "code": _code}
    return pages


def together(text: str) -> str:
    """The same with no line break between a number and its per cent sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def prose(text: str) -> Markup:
    """A sentence for HTML: as `together`, with `code` and options of the command line set as such.

    >>> prose("Less than 20 %: `--attack ig`, or --compare")
    Markup('Less than 20\xa0%: <code>--attack ig</code>, or <code class="option">--compare</code>')
    """
    quoted = re.split(r"`([^`]+)`", together(plain(text)))
    options = [
        re.sub(r"(?<![\w-])--[a-z][a-z-]*", r'<code class="option">\g<0></code>', str(escape(part)))
        for part in quoted
    ]
    parts = [
        f"<code>{escape(quoted[i])}</code>" if i % 2 else options[i] for i in range(len(quoted))
    ]
    return Markup("".join(parts))


def _sortable(value: float) -> str:
    """The whole number as JavaScript reads it."""
    return (
        repr(float(value)) if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity"
    )


def _csp_hash(block: str) -> str:
    """The Content-Security-Policy source that admits this one style or script and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(block.encode()).digest()).decode("ascii")
