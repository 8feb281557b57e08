"""Between text and the token numbers of a language model: the tokenizer in its Hugging Face folder, or plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unsum.errors import UnsumError, first_line
from unsum.models.built import optional

_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@dataclass(frozen=True)
class Tokenizer:
    """`own` is the folder's; without one, text is token numbers with spaces between them.

    >>> Tokenizer().encode("7 3 5"), Tokenizer().decode([7, 3, 5])
    ([7, 3, 5], '7 3 5')
    """

    own: Any = None

    def encode(self, text: str) -> list[int]:
        if self.own is not None:
            return [int(token) for token in self.own.encode(text, add_special_tokens=False)]
        try:
            return [int(word) for word in text.split()]
        except ValueError:
            raise UnsumError(
                "There is no tokenizer beside this model, so its text is token numbers with spaces between them; "
                "save one into its folder (tokenizer.save_pretrained), or give numbers."
            ) from None

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens)) if self.own is None else str(self.own.decode(list(tokens)))


def tokenizer_of(model: Any) -> Tokenizer:
    """The tokenizer of a model given by name, `hf:FOLDER`, where the folder holds one."""
    folder = Path(str(model).partition(":")[2])
    if not str(model).startswith("hf:") or not any((folder / name).is_file() for name in _FILES):
        return Tokenizer()
    transformers = optional("transformers", "hf", "Models called hf:PATH")
    try:
        # Without code of the folder's own: a tokenizer from elsewhere must not run anything here.
        own = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises nearly anything on a damaged or foreign folder
        raise UnsumError(f"The tokenizer in {str(folder)!r} cannot be loaded: {first_line(error)}.") from error
    return Tokenizer(own)
