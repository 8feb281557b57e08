"""How figures and names are written, in every output alike.

Names of files and classes are hostile input: what no output may carry is replaced here, and escaped
where it is written.
"""

from __future__ import annotations

import math
import re

from unsum.showing.level import DEFAULT_LEVEL

NOT_MEASURED = "–"
_FINEST = 4  # digits of a share that is just below the level
# Control characters (XML cannot hold them, terminals obey them), lone surrogates (UTF-8 cannot hold
# them; undecodable file names have them), noncharacters, and the bidirectional overrides, which
# make a text read as another one.
_UNFIT = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_BREAKS = re.compile("[\t\n\r\u2028\u2029]+")
# What Markdown and GitHub's additions to it read as more than text, wherever it stands; then, at
# the beginning of a line.
_MEANING = re.compile(r"([\\`*_\[\]<>|~&$!#{}]|(?<=www)\.|:(?=//))", re.IGNORECASE)
_OPENING = re.compile(r"^(\d+(?=[.)](?:\s|$))|(?=[-+=](?:[-=\s]|$)))([-+=.)])")


def percent(value: float) -> str:
    """A share in whole percent, and finer where it is small, or where it would read as the level
    and is below it.

    >>> percent(0.298), percent(0.004), percent(0.2), percent(0.1993)
    ('30 %', '0.4 %', '20 %', '19.9 %')
    """
    if math.isnan(value):
        return NOT_MEASURED
    below = value < DEFAULT_LEVEL
    digits = 1 if 5e-4 < value < 0.01 else 0
    while below and digits < _FINEST and round(value, digits + 2) >= DEFAULT_LEVEL:
        digits += 1
    return f"{100 * value:.{digits}f} %"


def error(value: float) -> str:
    """Powers of ten only where they help.

    >>> error(1.7e-07), error(0.354)
    ('1.7e-07', '0.35')
    """
    return f"{value:.1e}" if 0 < value < 0.01 else fixed(value, 2)


def fixed(value: float, digits: int) -> str:
    if math.isnan(value):
        return NOT_MEASURED
    return f"{value:.{digits}f}" if math.isfinite(value) else "∞"


def sample_count(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"


def plain(text: str) -> str:
    """The same with a visible mark in place of every character that is not text.

    >>> plain("a\\x1b[31mb")
    'a\N{REPLACEMENT CHARACTER}[31mb'
    """
    return _UNFIT.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """The same, and no line breaks: for a cell, a heading or a name."""
    return _BREAKS.sub(" ", plain(text))


def markdown(text: str) -> str:
    r"""As text inside Markdown: every sign that could mean something is escaped, and no name calls
    a person.

    >>> print(markdown("a|b *c* <i>"), markdown("1. one"), markdown("https://example.org"))
    a\|b \*c\* \<i\> 1\. one https\://example.org
    """
    escaped = _MEANING.sub(r"\\\1", one_line(text).strip())
    return _OPENING.sub(r"\1\\\2", escaped).replace("@", "@\N{WORD JOINER}")
