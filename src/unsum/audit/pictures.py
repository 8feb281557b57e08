"""The shortest report: one picture with every original above what came back."""

from __future__ import annotations

import math
import textwrap

from PIL import Image, ImageDraw, ImageFont

from unsum.audit.result import AuditResult
from unsum.showing.cards import data_uri as data_uri
from unsum.showing.cards import is_picture as is_picture
from unsum.showing.cards import to_image as to_image

_TILE, _GAP, _MARGIN, _CAPTION = 192, 8, 96, 44  # pixels
_PER_LINE = 8  # pictures


def picture_grid(audit: AuditResult) -> Image.Image:
    """Originals above recovered pictures, eight pairs to a line; a sample that was not found stays
    gray.

    Where the truth is not known, the recovered pictures stand alone.
    """
    shown = audit.rows
    texts = (["private photo"] if audit.truth else []) + ["read back from the update"]
    columns, lines = min(len(shown), _PER_LINE), -(-len(shown) // _PER_LINE)
    line_height = len(texts) * (_TILE + _GAP) - _GAP + _CAPTION
    page = Image.new(
        "RGB", (_MARGIN + columns * (_TILE + _GAP), lines * line_height + _GAP), "white"
    )
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size=15)
    for line in range(lines):
        top = _GAP + line * line_height
        for i, text in enumerate(texts):
            draw.multiline_text(
                (_GAP, top + i * (_TILE + _GAP) + _TILE // 2 - 20),
                textwrap.fill(text, 10),
                "black",
                font,
            )
    for i, row in enumerate(shown):
        left = _MARGIN + i % _PER_LINE * (_TILE + _GAP)
        top = _GAP + i // _PER_LINE * line_height
        for picture in ([row.original] if audit.truth else []) + [row.recovered]:
            tile = Image.new("RGB", (_TILE, _TILE), "lightgrey")
            if picture is not None and is_picture(picture):
                tile = to_image(picture).resize((_TILE, _TILE), Image.Resampling.BICUBIC)
            page.paste(tile, (left, top))
            top += _TILE + _GAP
        quality = math.nan if row.score is None else row.score.psnr
        decibels = "" if math.isnan(quality) else f", {quality:.1f} dB"
        found = textwrap.shorten(row.found_label or "not found", 20, placeholder="…")
        draw.text((left, top - 4), found + decibels, "black", font)
    return page
