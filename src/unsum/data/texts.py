"""A client's text for a language model: lines of a file, sentences that ship with the package, or token numbers."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.models.language import IGNORED, Tokenizer

TextData = Tensor | list[str] | list[list[int]] | str | Path
_MOST_BYTES = 1 << 24  # of a text file
_NUMBERS = 12  # tokens of a made-up sequence, where there is no tokenizer to read sentences with


@dataclass(frozen=True)
class TextBatch:
    """One client's sequences of token numbers, and what each reads like."""

    sequences: list[list[int]]
    texts: list[str]

    def padded(self) -> tuple[Tensor, Tensor]:
        """(n, L) tokens, padded on the right, and labels that leave the padding out."""
        longest = max(map(len, self.sequences))
        tokens = torch.zeros(len(self.sequences), longest, dtype=torch.long)
        labels = torch.full_like(tokens, IGNORED)
        for place, sequence in enumerate(self.sequences):
            tokens[place, : len(sequence)] = labels[place, : len(sequence)] = torch.tensor(sequence)
        return tokens, labels


def text_batch(
    data: TextData | None, tokenizer: Tokenizer, *, count: int | None, vocabulary: int, longest: int | None, seed: int
) -> TextBatch:
    """The first `count` sequences, all by default, none longer than the model reads (`longest`)."""
    sequences = [sequence[:longest] for sequence in _sequences(data, tokenizer, vocabulary, seed)]
    sequences = [sequence for sequence in sequences if len(sequence) > 1]  # one token alone has nothing to predict
    if count is not None and not 1 <= count <= len(sequences):
        raise UnsumError(
            f"The data hold {len(sequences)} texts of two tokens or more; choose 1 to as many, not {count}."
        )
    if not sequences:
        raise UnsumError("The data hold no text of two tokens or more; give a file with one text in each line.")
    chosen = sequences[:count]
    return TextBatch(chosen, [tokenizer.decode(sequence) for sequence in chosen])


def _sequences(data: TextData | None, tokenizer: Tokenizer, vocabulary: int, seed: int) -> list[list[int]]:
    if data is None and tokenizer.own is None:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, vocabulary, (len(_sentences()), _NUMBERS), generator=generator).tolist()
    if data is None:
        return [tokenizer.encode(line) for line in _sentences()]
    if isinstance(data, str | Path):
        return [tokenizer.encode(line) for line in _lines(Path(data))]
    if isinstance(data, Tensor):
        return [[int(token) for token in row if int(token) != IGNORED] for row in data]
    return [tokenizer.encode(row) if isinstance(row, str) else [int(token) for token in row] for row in data]


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
