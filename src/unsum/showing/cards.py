"""What a notebook shows of a result: cards that hold their pictures themselves and need no script.

A notebook has a light or a dark page of its own, so cards take its colors; only a badge brings both
of its own, which can be read on any page. Names come from files and classes: every text is escaped
here.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from PIL import Image
from torch import Tensor

from unsum.showing.wording import percent, plain

_TONES = {
    "severe": "#9d1519",
    "partial": "#7a4600",
    "features": "#9d1519",
    "labels": "#1a4d86",
    "unproven": "#7a4600",
    "protected": "#1a5c36",
    "open": "#47505b",
}
_MOST = 24  # samples in a notebook; all of them stand in the report
_STYLE = """
.unsum-cards { font: 14px/1.5 system-ui, sans-serif; max-width: 70rem; color: inherit;
  overflow-wrap: anywhere; }
.unsum-cards * { color: inherit; }
.unsum-cards .unsum-badge { display: inline-block; color: #ffffff; font-size: 12px;
  font-weight: 700; padding: 1px 8px;
  border-radius: 4px; }
.unsum-cards .unsum-title { font-size: 18px; font-weight: 600; margin: 4px 0; }
.unsum-cards .unsum-alarm { border: 2px solid #9d1519; background: #fdeeec; color: #9d1519;
  font-weight: 700;
  padding: 6px 10px; border-radius: 4px; }
.unsum-cards ul { margin: 4px 0; padding-left: 20px; }
.unsum-cards .unsum-grid { display: grid; gap: 8px; margin-top: 8px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 210px), 1fr)); }
.unsum-cards .unsum-card { border: 1px solid rgba(128, 128, 128, 0.5); border-radius: 6px;
  padding: 8px; min-width: 0; }
.unsum-cards .unsum-pair { display: grid; grid-template-columns: 1fr 1fr; gap: 6px; }
.unsum-cards .unsum-pair span { display: block; font-size: 12px; opacity: 0.8; }
.unsum-cards img { width: 100%; max-width: 160px; border-radius: 4px; margin: 0; background: none; }
.unsum-cards .unsum-name { font-weight: 600; margin-top: 4px; }
.unsum-cards .unsum-fact { display: flex; justify-content: space-between; gap: 8px; font-size: 13px;
  }
.unsum-cards .unsum-fact span:first-child { opacity: 0.8; }
.unsum-cards .unsum-fact span:last-child { text-align: right; flex-shrink: 0; max-width: 70%; }
"""


@dataclass(frozen=True)
class Card:
    """One sample: what it is called, figures with their names, and pictures (C, h, w) in [0, 1]
    with theirs."""

    name: str
    facts: Sequence[tuple[str, str]] = ()
    pictures: Sequence[tuple[str, Tensor | None]] = ()


def to_image(picture: Tensor) -> Image.Image:
    """An 8-bit picture from (1 or 3, h, w) in [0, 1], rounded to the nearest value."""
    pixels = picture.detach().cpu().float().nan_to_num().clamp(0, 1).mul(255).round().byte()
    return Image.fromarray((pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)).numpy())


def is_picture(sample: Tensor | None) -> bool:
    """Whether it is a (1 or 3, h, w) picture, and not, say, a row of a table."""
    return sample is not None and sample.ndim == 3 and len(sample) in (1, 3)


def data_uri(picture: Tensor | None, kind: str = "png", **options: int) -> str | None:
    """A picture in [0, 1] that a page holds itself; None for samples that are no pictures, such as
    rows of a table."""
    if picture is None or not is_picture(picture):
        return None
    buffer = io.BytesIO()
    to_image(picture).save(buffer, format=kind, **options)
    return f"data:image/{kind};base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def page(
    tone: str,
    badge: str,
    title: str,
    sentences: Iterable[str] = (),
    cards: Sequence[Card] = (),
    alarm: str = "",
) -> str:
    """A headline with its badge, an alarm if there is one, what is to be said, and a card for each
    sample."""
    more = f"{len(cards) - _MOST} more samples are in the report." if len(cards) > _MOST else ""
    said = "".join(f"<li>{_text(sentence)}</li>" for sentence in filter(None, [*sentences, more]))
    shown = "".join(_card(card) for card in cards[:_MOST])
    listed = f"<ul>{said}</ul>" if said else ""
    grid = f'<div class="unsum-grid">{shown}</div>' if shown else ""
    warned = f'<div class="unsum-alarm" role="alert">{_text(alarm)}</div>' if alarm else ""
    return (
        f'<div class="unsum-cards"><style>{_STYLE}</style>'
        f'<span class="unsum-badge" style="background: {_TONES[tone]}; color: '
        f'#ffffff">{_text(badge)}</span>'
        f'<div class="unsum-title">{_text(title)}</div>'
        f"{warned}{listed}{grid}</div>"
    )


def of_ceiling(ceiling: Any, title: str, sentences: Iterable[str] = ()) -> str:
    """Limits of every sample (B,), of its label (B,), and how many pairs of worlds were compared;
    `title` says what they are."""
    samples, labels = (_numbers(getattr(ceiling, name, ())) for name in ("samples", "labels"))
    cards = [
        Card(
            f"sample {i + 1}",
            [
                ("sample, at most", percent(most)),
                *(
                    [("label told from another, at most", percent(labels[i]))]
                    if i < len(labels)
                    else []
                ),
            ],
        )
        for i, most in enumerate(samples)
    ]
    pairs = int(getattr(ceiling, "pairs", 0))
    told = f"{'1 pair' if pairs == 1 else f'{pairs} pairs'} of worlds compared." if pairs else ""
    return page("open", "Ceiling", title, [*sentences, told], cards)


def _numbers(values: Any) -> list[float]:
    flat = values.detach().flatten().tolist() if isinstance(values, Tensor) else values
    return [float(value) for value in flat]


def _card(card: Card) -> str:
    facts = "".join(
        f'<div class="unsum-fact"><span>{_text(name)}</span><span>{_text(value)}</span></div>'
        for name, value in card.facts
    )
    drawn = [
        (name, uri)
        for name, picture in card.pictures
        if (uri := data_uri(picture, "jpeg", quality=85))
    ]
    pictures = "".join(
        (
            f'<div><span>{_text(name)}</span><img alt="{_text(name)}: {_text(card.name)}" '
            f'src="{uri}"></div>'
        )
        for name, uri in drawn
    )
    pair = f'<div class="unsum-pair">{pictures}</div>' if drawn else ""
    return (
        f'<div class="unsum-card">{pair}<div '
        f'class="unsum-name">{_text(card.name)}</div>{facts}</div>'
    )


def _text(text: str) -> str:
    return escape(plain(text))
