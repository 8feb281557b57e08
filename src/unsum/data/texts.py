"""A client's text for a language model: lines of a file, sentences that ship with the package, or token numbers."""

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
    """What a client trains on: (n, L) tokens padded on the right, labels, and a mask that is false at padding, if need be."""

    tokens: Tensor
    labels: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True)
class TextBatch:
    """One client's sequences of token numbers, what each reads like, and its class where the data say so."""

    sequences: list[list[int]]
    texts: list[str]
    classes: list[int | None] = field(default_factory=list)

    def padded(self, padding: int = 0) -> TextStep:
        """For a model of next tokens: the tokens are the labels, the padding is left out."""
        tokens, mask = self._filled(padding)
        return TextStep(tokens, tokens.where(mask, IGNORED))

    def classified(self, number: int, padding: int = 0) -> TextStep:
        """For a classifier: classes are as the data say, else one after another."""
        tokens, mask = self._filled(padding)
        given = self.classes or [None] * len(tokens)
        labels = [i % number if known is None else known for i, known in enumerate(given)]
        return TextStep(tokens, torch.tensor(labels), None if bool(mask.all()) else mask)

    def masked(self, mask_token: int, seed: int, padding: int = 0) -> TextStep:
        """For a model of masked tokens: 15 % of each text's, as BERT has it, at least one, never the first or the last."""
        tokens, mask = self._filled(padding)
        labels = torch.full_like(tokens, IGNORED)
        generator = torch.Generator().manual_seed(seed)
        for row, sequence in enumerate(self.sequences):
            inner = torch.arange(1, len(sequence) - 1) if len(sequence) > 2 else torch.arange(len(sequence))
            hidden = inner[torch.randperm(len(inner), generator=generator)[: max(1, round(_HIDDEN * len(inner)))]]
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
    found = [(sequence[:longest], label) for sequence, label in _sequences(data, tokenizer, vocabulary, seed, framed)]
    found = [(sequence, label) for sequence, label in found if len(sequence) > 1]  # one token has nothing to predict
    if count is not None and not 1 <= count <= len(found):
        raise UnsumError(f"The data hold {len(found)} texts of two tokens or more; choose 1 to as many, not {count}.")
    if not found:
        raise UnsumError("The data hold no text of two tokens or more; give a file with one text in each line.")
    sequences = [sequence for sequence, _ in found[:count]]
    return TextBatch(sequences, [tokenizer.decode(some) for some in sequences], [label for _, label in found[:count]])


def _sequences(
    data: TextData | None, tokenizer: Tokenizer, vocabulary: int, seed: int, framed: bool
) -> list[tuple[list[int], int | None]]:
    if data is None and tokenizer.own is None:
        generator = torch.Generator().manual_seed(seed)
        made = torch.randint(0, vocabulary, (len(_sentences()), _NUMBERS), generator=generator).tolist()
        return [(row, None) for row in made]
    if data is None:
        return [(tokenizer.encode(line, framed=framed), None) for line in _sentences()]
    if isinstance(data, str | Path):
        lines = _labeled_lines(Path(data))
        return [(tokenizer.encode(line, framed=framed), label) for line, label in lines]
    if isinstance(data, Tensor):
        return [([int(token) for token in row if int(token) != IGNORED], None) for row in data]
    return [
        (tokenizer.encode(row, framed=framed) if isinstance(row, str) else [int(token) for token in row], None)
        for row in data
    ]


def _labeled_lines(path: Path) -> list[tuple[str, int | None]]:
    """Lines of text; of a .jsonl file, a text each, or an object with a `text` and, where it is known, a `label`."""
    if path.suffix != ".jsonl":
        return [(line, None) for line in _lines(path)]
    found = []
    for number, line in enumerate(_lines(path), 1):
        try:
            entry = json.loads(line)
            text, label = (entry, None) if isinstance(entry, str) else (entry["text"], entry.get("label"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            text = label = None
        if not isinstance(text, str) or not (label is None or type(label) is int):
            raise UnsumError(
                f'Line {number} of {path.name!r} is no text; write {{"text": "…"}}, with "label": 0 for a class, in each.'
            )
        found.append((text, label))
    return found


def _sentences() -> list[str]:
    return (files("unsum.data") / "sentences.txt").read_text("utf-8").splitlines()


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UnsumError(
                f"{str(path)!r} is larger than the {_MOST_BYTES >> 20} MB of text that are read; take a part."
            )
        return [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UnsumError(
            f"{str(path)!r} cannot be read as text; a language model takes a UTF-8 file with one text in each line."
        ) from error
