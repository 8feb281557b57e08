"""The shortest report: one picture with every original above what came back."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

if TYPE_CHECKING:
    from unsum.audit.result import Audit

_TILE, _GAP, _MARGIN, _CAPTION = 192, 8, 96, 44
_PER_LINE = 8


def to_image(picture: Tensor) -> Image.Image:
    """An 8-bit picture from (1 or 3, h, w) in [0, 1], rounded to the nearest value (torchvision would round floats down)."""
    return to_pil_image(picture.detach().cpu().float().nan_to_num().clamp(0, 1).mul(255).round().byte())  # type: ignore[no-any-return]


def picture_grid(audit: Audit) -> Image.Image:
    """Originals above recovered pictures, eight pairs to a line; a sample that was not found stays grey."""
    count = audit.rows
    columns, lines = min(count, _PER_LINE), -(-count // _PER_LINE)
    line_height = 2 * _TILE + _GAP + _CAPTION
    page = Image.new("RGB", (_MARGIN + columns * (_TILE + _GAP), lines * line_height + _GAP), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size=15)
    for line in range(lines):
        top = _GAP + line * line_height
        for row, text in enumerate(("private photo", "read back from the update")):
            draw.multiline_text(
                (_GAP, top + row * (_TILE + _GAP) + _TILE // 2 - 20), textwrap.fill(text, 10), "black", font
            )
    for i in range(count):
        left = _MARGIN + i % _PER_LINE * (_TILE + _GAP)
        top = _GAP + i // _PER_LINE * line_height
        page.paste(_tile(None if audit.truth is None else audit.truth.images[i]), (left, top))
        found = i if audit.truth is None else audit.samples[i].found
        recovered = None if found is None or audit.leak.images is None else audit.leak.images[found]
        page.paste(_tile(recovered), (left, top + _TILE + _GAP))
        draw.text((left, top + 2 * _TILE + _GAP + 4), _caption(audit, i), "black", font)
    return page


def _tile(picture: Tensor | None) -> Image.Image:
    if picture is None:
        return Image.new("RGB", (_TILE, _TILE), "lightgrey")
    return to_image(picture).resize((_TILE, _TILE), Image.Resampling.BICUBIC)


def _caption(audit: Audit, i: int) -> str:
    quality = float("nan") if audit.truth is None else audit.samples[i].psnr
    decibels = "" if quality != quality else f", {quality:.1f} dB"
    return f"{audit.found_label(i) or 'not found'}{decibels}"
