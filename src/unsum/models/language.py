"""What makes a model a language model, what it predicts, and its loss: every position with a label
is a sample.

Between text and the token numbers of a language model: the tokenizer in its Hugging Face folder, or
plain numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError, first_line, optional
from unsum.head import find_head
from unsum.models.from_peft import SETTINGS as ADAPTERS
from unsum.models.from_peft import base_of

_SAME = 1e-5  # relative difference of two forward passes that compute the same
IGNORED = -100  # the label of a position that takes no part, as PyTorch and Hugging Face have it


class TextTask(StrEnum):
    """What a model of tokens is trained to predict."""

    NEXT = "next"  # at every position the token after it
    MASKED = "masked"  # at some positions the token that was put out of sight there
    CLASS = "class"  # one class for every sequence


# As Hugging Face names its classes.
_ENDINGS = {"ForSequenceClassification": TextTask.CLASS, "ForMaskedLM": TextTask.MASKED}


def task_of(model: nn.Module) -> TextTask:
    """As the model says itself (`text_task`), or as the name of its Hugging Face class does; else
    the next token."""
    said = getattr(model, "text_task", None)
    if said is not None:
        return TextTask(said)
    unwrap = getattr(model, "get_base_model", None)  # of peft's
    inner = unwrap() if callable(unwrap) else model
    names = [kind.__name__ for kind in type(inner).__mro__]
    return next(
        (task for end, task in _ENDINGS.items() for name in names if name.endswith(end)),
        TextTask.NEXT,
    )


def embedding_of(model: nn.Module) -> tuple[str, nn.Embedding] | None:
    """The embedding of the tokens: the one with a row for every output of the head; None where
    there is no such.

    A classifier of text has its own way to say which it is, or its first one.
    """
    embeddings = [
        (name, module) for name, module in model.named_modules() if isinstance(module, nn.Embedding)
    ]
    # Before the head is looked for, which takes a while. A table's column may have as many values
    # as there are classes.
    if not embeddings or getattr(model, "reads_table", False):
        return None
    if task_of(model) is TextTask.CLASS:
        asked = getattr(model, "get_input_embeddings", None)
        own = asked() if callable(asked) else embeddings[0][1]
        return next((pair for pair in embeddings if pair[1] is own), None)
    try:
        _, head = find_head(model)
    except UnsumError:
        return None
    return next((pair for pair in embeddings if pair[1].num_embeddings == head.out_features), None)


def is_language_model(model: nn.Module) -> bool:
    """Whether the model reads tokens, and predicts tokens of the same vocabulary or a class of the
    whole text."""
    return embedding_of(model) is not None


def vocabulary_of(model: nn.Module) -> int:
    """How many tokens there are."""
    return _embedding(model).num_embeddings


def _embedding(model: nn.Module) -> nn.Embedding:
    found = embedding_of(model)
    if found is None:
        raise UnsumError(
            f"{type(model).__name__} is no language model: no embedding has a row for every output "
            "of its head."
        )
    return found[1]


def rows_of(embedding: nn.Module) -> int:
    """How many tokens or values an embedding has a row for; the padding is none."""
    padded = getattr(embedding, "padding_idx", None) is not None
    return int(embedding.weight.shape[0]) - padded  # type: ignore[index]


def embedding_width(model: nn.Module) -> int:
    """How many features the layers that read tokens have."""
    return _embedding(model).embedding_dim


def longest_text(model: nn.Module) -> int | None:
    """How many positions the model reads at once, as its config says, or its embedding of
    positions."""
    config = getattr(model, "config", None)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return _positions_embedded(model)
    # RoBERTa's kind counts positions from behind the padding's number, and has as many fewer.
    offset = (
        int(getattr(config, "pad_token_id", None) or 0) + 1
        if "roberta" in type(model).__name__.lower()
        else 0
    )
    return int(positions) - offset


def _positions_embedded(model: nn.Module) -> int | None:
    """The size of an embedding that is asked for one row after another, whatever the tokens are."""
    rising = [
        (m, rows)
        for m, rows in rows_asked(model).items()
        if len(rows) == 3 and bool((rows.diff() == 1).all())
    ]
    return min((m.num_embeddings - int(rows[0]) for m, rows in rising), default=None)


def rows_asked(model: nn.Module) -> dict[nn.Embedding, Tensor]:
    """The rows that each embedding is asked for when the model reads the first token three
    times."""
    asked: dict[nn.Embedding, Tensor] = {}

    def remember(module: nn.Module, given: tuple[Any, ...]) -> None:
        # OPT's positions are given a mask.
        if (
            isinstance(module, nn.Embedding)
            and type(module).forward is nn.Embedding.forward
            and given
        ):
            asked[module] = given[0].detach().flatten()

    _watched(model, [[0, 0, 0]], remember)
    return asked


def _watched(
    model: nn.Module,
    tokens: list[list[int]],
    remember: Callable[[nn.Module, tuple[Any, ...]], None],
) -> None:
    """Let the model read tokens, and `remember` what each of its layers is given."""
    with ExitStack() as hooks, torch.no_grad():
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(remember))
        model(torch.tensor(tokens, device=next(model.parameters()).device))


def looks_ahead(model: nn.Module) -> bool:
    """Whether any layer reads at a position what depends on what comes after it."""
    read: list[Tensor] = []

    def remember(module: nn.Module, given: tuple[Any, ...]) -> None:
        layer = isinstance(module, nn.Linear | nn.LayerNorm)
        if layer and given and isinstance(given[0], Tensor) and given[0].ndim == 3:
            read.append(given[0][:, 1])

    last = (
        min((m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)), default=3)
        - 1
    )
    _watched(
        model,
        [[min(1, last), min(2, last), min(1, last)], [min(1, last), min(2, last), 0]],
        remember,
    )
    return any(float((x[0] - x[1]).norm()) > _SAME * float(x[0].norm()) for x in read)


def is_tied(model: nn.Module) -> bool:
    """Whether the head's weight is the embedding's."""
    found = embedding_of(model)
    return found is not None and found[1].weight is find_head(model)[1].weight


def logits_of(output: Any) -> Tensor:
    """(n, L, V) or (n, C) logits out of what a model of text returns: a tensor, a tuple, or an
    object with `.logits`."""
    found = getattr(output, "logits", output)
    found = found[0] if isinstance(found, tuple | list) else found
    if not isinstance(found, Tensor) or found.ndim not in (2, 3):
        raise UnsumError(
            "A model of text must return (n, L, V) or (n, C) logits for (n, L) tokens; this one "
            "does not."
        )
    return found


def next_tokens(labels: Tensor) -> Tensor:
    """(n, L − 1) what positions 0…L−2 are to predict; IGNORED where they take no part.

    >>> next_tokens(torch.tensor([[7, 3, -100, 5]]))
    tensor([[   3, -100,    5]])
    """
    return labels[:, 1:]


def targets(task: TextTask, labels: Tensor) -> Tensor:
    """(n, P) what the head's P positions are to predict: the next tokens, those in the same place,
    or one class."""
    if task is TextTask.NEXT:
        return next_tokens(labels)
    return labels if task is TextTask.MASKED else labels.view(len(labels), 1)


def text_loss(task: TextTask, logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over the positions that take part; labels (n, L) are not yet shifted, or
    (n,) classes."""
    wanted = targets(task, labels)
    flat = logits[:, : wanted.shape[1]] if logits.ndim == 3 else logits
    return nn.functional.cross_entropy(
        flat.reshape(-1, flat.shape[-1]), wanted.reshape(-1), ignore_index=IGNORED
    )


def gradients_of(
    model: nn.Module,
    tokens: Tensor,
    labels: Tensor,
    names: list[str],
    mask: Tensor | None = None,
    segments: Tensor | None = None,
) -> dict[str, Tensor]:
    """The gradient of `text_loss` for the named parameters, in the mode that the model is in.

    `mask` (n, L) is false at padding, which nobody then attends to; `segments` (n, L) say which
    sentence of a pair a token is of.
    """
    parameters = dict(model.named_parameters())
    besides = {"attention_mask": None if mask is None else mask.long(), "token_type_ids": segments}
    with torch.enable_grad():
        output = model(
            tokens, **{name: given for name, given in besides.items() if given is not None}
        )
        loss = text_loss(task_of(model), logits_of(output), labels)
        found = torch.autograd.grad(loss, [parameters[name] for name in names], allow_unused=True)
    return {name: g.detach() for name, g in zip(names, found, strict=True) if g is not None}


_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)


@dataclass(frozen=True)
class Tokenizer:
    """`own` is the folder's; without one, text is token numbers with spaces between them.

    >>> Tokenizer().encode("7 3 5"), Tokenizer().decode([7, 3, 5])
    ([7, 3, 5], '7 3 5')
    """

    own: Any = None

    def encode(self, text: str, *, framed: bool = False) -> list[int]:
        """The text's tokens, `framed` by those that open and close it where the tokenizer has
        such."""
        if self.own is not None:
            return [int(token) for token in self.own.encode(text, add_special_tokens=framed)]
        try:
            return [int(word) for word in text.split()]
        except ValueError:
            raise UnsumError(
                "There is no tokenizer beside this model, so its text is token numbers with spaces "
                "between them; save one into its folder (tokenizer.save_pretrained), or give "
                "numbers."
            ) from None

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """The tokens of two sentences, framed, and which of the two each is of, where the model is
        told."""
        if self.own is None:
            raise UnsumError(
                "Pairs of sentences need the model's tokenizer in its folder; save it there."
            )
        found = self.own(first, second)
        tokens = [int(token) for token in found["input_ids"]]
        return tokens, [int(number) for number in found.get("token_type_ids", [0] * len(tokens))]

    def special(self, name: str) -> int | None:
        """The number of a token with a task of its own: `mask`, `pad`."""
        number = getattr(self.own, f"{name}_token_id", None)
        return None if number is None else int(number)

    def decode(self, tokens: Sequence[int]) -> str:
        return (
            " ".join(map(str, tokens)) if self.own is None else str(self.own.decode(list(tokens)))
        )


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _FILES)


def tokenizer_of(model: Any) -> Tokenizer:
    """The tokenizer of a model given by name, `hf:FOLDER`, where the folder holds one, or that of
    the base of its adapters."""
    if not str(model).startswith("hf:"):
        return Tokenizer()
    folder = Path(str(model).partition(":")[2])
    if not _has_tokenizer(folder) and (folder / ADAPTERS).is_file():
        folder = base_of(folder)
    if not _has_tokenizer(folder):
        return Tokenizer()
    transformers = optional("transformers", "hf", "Models called hf:PATH need transformers")
    try:
        # Without code of the folder's own: a tokenizer from elsewhere must not run anything here.
        own = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers raises nearly anything on a damaged or foreign folder
        raise UnsumError(
            f"The tokenizer in {str(folder)!r} cannot be loaded: {first_line(error)}."
        ) from error
    return Tokenizer(own)
