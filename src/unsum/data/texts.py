"""A client's text for a language model: lines of a file, sentences that ship with the package, or
token numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.models.language import IGNORED, Tokenizer

TextData = Tensor | list[str] | list[list[int]] | str | Path
_MOST_BYTES = 1 << 24  # of a text file
_HIDDEN = 0.15  # of a text's tokens are masked (Devlin et al., 2019)
_NUMBERS = 12  # tokens of a made-up sequence, where there is no tokenizer to read sentences with


class TextStep(NamedTuple):
    """What a client trains on: (n, L) tokens padded on the right, labels, a mask that is false at
    padding, if need be, and the segments of pairs."""

    tokens: Tensor
    labels: Tensor
    mask: Tensor | None = None
    segments: Tensor | None = None


@dataclass(frozen=True)
class TextBatch:
    """One client's sequences of token numbers, what each reads like, its class where the data say
    so, and segments of pairs."""

    sequences: list[list[int]]
    texts: list[str]
    classes: list[int | None] = field(default_factory=list)
    segments: list[list[int]] = field(default_factory=list)

    def padded(self, padding: int = 0) -> TextStep:
        """For a model of next tokens: the tokens are the labels, the padding is left out."""
        tokens, mask = self._filled(padding)
        return TextStep(tokens, tokens.where(mask, IGNORED))

    def classified(self, number: int, padding: int = 0) -> TextStep:
        """For a classifier: classes are as the data say, else one after another."""
        tokens, mask = self._filled(padding)
        given = self.classes or [None] * len(tokens)
        labels = [i % number if known is None else known for i, known in enumerate(given)]
        segments = torch.zeros_like(tokens)
        segments[mask] = torch.tensor(
            [number for sequence in self.segments for number in sequence] or [0]
        )
        paired = segments if bool(segments.any()) else None
        return TextStep(tokens, torch.tensor(labels), None if bool(mask.all()) else mask, paired)

    def masked(self, mask_token: int, seed: int, padding: int = 0) -> TextStep:
        """For a model of masked tokens: 15 % of each text's, as BERT has it, at least one, never
        the first or the last."""
        tokens, mask = self._filled(padding)
        labels = torch.full_like(tokens, IGNORED)
        generator = torch.Generator().manual_seed(seed)
        for row, sequence in enumerate(self.sequences):
            inner = (
                torch.arange(1, len(sequence) - 1)
                if len(sequence) > 2
                else torch.arange(len(sequence))
            )
            hidden = inner[
                torch.randperm(len(inner), generator=generator)[
                    : max(1, round(_HIDDEN * len(inner)))
                ]
            ]
            labels[row, hidden] = tokens[row, hidden]
            tokens[row, hidden] = mask_token
        return TextStep(tokens, labels, None if bool(mask.all()) else mask)

    def _filled(self, padding: int) -> tuple[Tensor, Tensor]:
        lengths = torch.tensor([len(sequence) for sequence in self.sequences])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        tokens = torch.full(mask.shape, padding)
        tokens[mask] = torch.tensor([token for sequence in self.sequences for token in sequence])
        return tokens, mask


def text_batch(
    data: TextData | None,
    tokenizer: Tokenizer,
    *,
    count: int | None,
    vocabulary: int,
    longest: int | None,
    seed: int,
    framed: bool = False,
) -> TextBatch:
    """The first `count` sequences, all by default, none longer than the model reads (`longest`)."""
    found = [one.cut(longest) for one in _sequences(data, tokenizer, vocabulary, seed, framed)]
    found = [one for one in found if len(one.tokens) > 1]  # one token has nothing to predict
    if count is not None and not 1 <= count <= len(found):
        raise UnsumError(
            f"The data hold {len(found)} texts of two tokens or more; choose 1 to as many, not "
            f"{count}."
        )
    if not found:
        raise UnsumError(
            "The data hold no text of two tokens or more; give a file with one text in each line."
        )
    some = found[:count]
    if not framed and any(any(one.segments) for one in some):
        raise UnsumError(
            'The data hold pairs of sentences, which only classifiers take; leave "pair" out.'
        )
    return TextBatch(
        [one.tokens for one in some],
        [tokenizer.decode(one.tokens) for one in some],
        [one.label for one in some],
        [one.segments for one in some],
    )


class _Sequence(NamedTuple):
    tokens: list[int]
    segments: list[int]
    label: int | None = None

    @classmethod
    def of(cls, tokens: list[int], label: int | None = None) -> _Sequence:
        return cls(tokens, [0] * len(tokens), label)

    def cut(self, longest: int | None) -> _Sequence:
        return _Sequence(self.tokens[:longest], self.segments[:longest], self.label)


class _Line(NamedTuple):
    text: str
    pair: str | None = None
    label: int | None = None


def _sequences(
    data: TextData | None, tokenizer: Tokenizer, vocabulary: int, seed: int, framed: bool
) -> list[_Sequence]:
    if data is None and tokenizer.own is None:
        generator = torch.Generator().manual_seed(seed)
        made = torch.randint(
            0, vocabulary, (len(_sentences()), _NUMBERS), generator=generator
        ).tolist()
        return [_Sequence.of(row) for row in made]
    if data is None:
        return [_Sequence.of(tokenizer.encode(line, framed=framed)) for line in _sentences()]
    if isinstance(data, str | Path):
        return [
            _Sequence.of(tokenizer.encode(line.text, framed=framed), line.label)
            if line.pair is None
            else _Sequence(*tokenizer.encode_pair(line.text, line.pair), line.label)
            for line in _entries(Path(data))
        ]
    if isinstance(data, Tensor):
        return [
            _Sequence.of([int(token) for token in row if int(token) != IGNORED]) for row in data
        ]
    return [
        _Sequence.of(
            tokenizer.encode(row, framed=framed)
            if isinstance(row, str)
            else [int(token) for token in row]
        )
        for row in data
    ]


def _entries(path: Path) -> list[_Line]:
    """Lines of text; of a .jsonl file, a text each, or an object with a `text` and, where there are
    such, a `label` and a `pair`, the second sentence."""
    if path.suffix != ".jsonl":
        return [_Line(line) for line in _lines(path)]
    found = []
    for number, line in enumerate(_lines(path), 1):
        try:
            entry = json.loads(line)
            one = (
                _Line(entry)
                if isinstance(entry, str)
                else _Line(entry["text"], entry.get("pair"), entry.get("label"))
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            one = _Line(None)  # type: ignore[arg-type]
        texts = isinstance(one.text, str) and isinstance(one.pair, str | None)
        if not texts or not (one.label is None or type(one.label) is int):
            raise UnsumError(
                f'Line {number} of {path.name!r} is no text; write {{"text": "…"}}, with "label": '
                '0 for a class and "pair": "…" '
                "for a second sentence, in each."
            )
        found.append(one)
    return found


def _sentences() -> list[str]:
    return (files("unsum.data") / "sentences.txt").read_text("utf-8").splitlines()


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UnsumError(
                f"{str(path)!r} is larger than the {_MOST_BYTES >> 20} MB of text that are read; "
                "take a part."
            )
        return [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UnsumError(
            f"{str(path)!r} cannot be read as text; a language model takes a UTF-8 file with one "
            "text in each line."
        ) from error
