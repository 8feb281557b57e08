"""The audit of a language model: a client's sentences, what one update gives away of them, and the
verdict over it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unsum.attack.options import AttackOptions
from unsum.audit.bounds import NOT_PROVEN, Bounds
from unsum.audit.compare import Comparison
from unsum.audit.inputs import Inputs, own_model
from unsum.audit.leakage import DEFAULT_LEVEL, Shares, Tried
from unsum.audit.provenance import Provenance, fingerprint, promised
from unsum.audit.report import Audit
from unsum.audit.result import Setting
from unsum.audit.round import attacked
from unsum.audit.sweep.bench import shown
from unsum.audit.text_verdict import Texts
from unsum.ceiling.simulation import Simulation
from unsum.client.capture import in_mode
from unsum.client.text import capture_text
from unsum.data import Batch
from unsum.data.texts import TextBatch, TextStep, text_batch
from unsum.defend import Defense
from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.leak import Leak
from unsum.models import load_model
from unsum.models.from_hugging_face import is_language_folder
from unsum.models.language import (
    TextTask,
    Tokenizer,
    is_language_model,
    longest_text,
    targets,
    task_of,
    tokenizer_of,
    vocabulary_of,
)
from unsum.models.load import LoadedModel
from unsum.running.progress import Progress
from unsum.score import SampleScore
from unsum.score.occurred import rows_named
from unsum.score.text import pair_text, score_text

_NOT_FOR_TEXT = (
    "Text is audited under the defense that it is given; other ones are tried on photos and tables."
)
_NAN = float("nan")


@dataclass(frozen=True)
class TextInputs:
    """A language model under the name it has in reports, its tokenizer, and the client's text."""

    loaded: LoadedModel
    tokenizer: Tokenizer
    batch: TextBatch
    step: TextStep  # what the client trains on


def is_text(model: nn.Module | str) -> bool:
    """Whether a model, or the folder that names it, predicts tokens: then its data are text."""
    return is_language_folder(model) if isinstance(model, str) else is_language_model(model)


def text_inputs(given: Inputs) -> TextInputs:
    """The model and the client's sequences."""
    if isinstance(given.model, str):
        loaded = load_model(given.model, classes=1, seed=given.seed, weights=given.loading.weights)
    else:
        loaded = own_model(given.model, given.loading.weights)
        if given.data is None:
            raise UnsumError(
                "Give data=tokens, (n, L) token numbers, along with your own language model."
            )
    data: Any = given.data[0] if isinstance(given.data, tuple) else given.data
    if isinstance(data, Batch):
        raise UnsumError(
            "A language model takes text: (n, L) token numbers, or a file with one text in each "
            "line."
        )
    tokenizer = tokenizer_of(given.model)
    network, framed = loaded.model, task_of(loaded.model) is not TextTask.NEXT
    batch = text_batch(
        data,
        tokenizer,
        count=given.samples.batch,
        vocabulary=vocabulary_of(network),
        longest=longest_text(network),
        seed=given.seed,
        framed=framed,
    )
    return TextInputs(loaded, tokenizer, batch, _step(network, tokenizer, batch, given.seed))


def _step(network: nn.Module, tokenizer: Tokenizer, batch: TextBatch, seed: int) -> TextStep:
    """What the client trains on, by what its model predicts."""
    task, known = task_of(network), getattr(getattr(network, "config", None), "pad_token_id", None)
    padding = int(known) if known is not None else tokenizer.special("pad") or 0
    if task is TextTask.NEXT:
        return batch.padded(padding)
    if task is TextTask.MASKED:
        hidden = tokenizer.special("mask")
        if hidden is None:
            raise UnsumError(
                "A model of masked tokens needs its tokenizer, with a mask token, in its folder; "
                "save it there."
            )
        return batch.masked(hidden, seed, padding)
    if known is None and len(batch.sequences) > 1:
        raise UnsumError(
            "The classifier takes one text at a time: its config.json names no pad_token_id; set "
            "one."
        )
    classes = find_head(network)[1].out_features
    wrong = [label for label in batch.classes if label is not None and not 0 <= label < classes]
    if wrong:
        raise UnsumError(
            f"The data hold the label {wrong[0]}, and the model's classes are 0…{classes - 1}."
        )
    return batch.classified(classes, padding)


def audit_text(
    given: Inputs,
    chain: list[Defense],
    options: AttackOptions,
    *,
    train: bool,
    command: str,
    progress: Progress,
    proving: bool = True,
    level: float | None = None,
) -> Audit:
    """One step of a client on its sentences, attacked and compared with them."""
    start = time.perf_counter()
    inputs = text_inputs(given)
    network, batch = inputs.loaded.model.to(options.device), inputs.batch
    progress.say("The client computes its update")
    torch.manual_seed(options.seed)
    step = inputs.step
    tokens, labels = step.tokens.to(options.device), step.labels.to(options.device)
    mask, segments = (
        None if part is None else part.to(options.device) for part in (step.mask, step.segments)
    )
    update = capture_text(
        network, tokens, labels, mask=mask, segments=segments, train=train, defenses=chain
    )
    samples = int((targets(task_of(network), inputs.step.labels) >= 0).sum())
    with in_mode(network, train):
        leak = attacked(network, update, options.of_batch(samples), progress)
    pairs = pair_text(leak.tokens or [], batch.sequences)
    shares = [share for _, share, _ in pairs]
    # Where no text came back, that is no measurement: dropout or too many positions end the attack
    # on text, not the leak.
    decided = max(shares) >= DEFAULT_LEVEL
    made = Provenance.of(
        model=fingerprint(network.state_dict()),
        data={"inputs": inputs.step.tokens, "targets": inputs.step.labels},
        update=update.gradients,
        privacy=promised(chain, tensors=len(update.gradients)),
    )
    how: dict[str, Any] = {"train": train, "defenses": shown(chain), "command": command}
    case = Simulation(
        network,
        tokens,
        labels,
        train=train,
        text=True,
        mask=mask,
        segments=segments,
        seed=options.seed,
    )
    bounds = Bounds(case, DEFAULT_LEVEL if level is None else level, progress=progress)
    if proving:
        progress.say("Playing the client in two worlds: what nobody can exceed")
    bound = bounds(chain) if proving else None
    return Audit(
        Setting.of(
            inputs.loaded.name, leak, options, samples=len(batch.texts), provenance=made, **how
        ),
        Batch(
            tokens.cpu(),
            torch.zeros(len(tokens)),
            [f"text {i + 1}" for i in range(len(tokens))],
            [],
        ),
        leak,
        # A text has no features or pixels of its own to measure.
        [
            SampleScore(found, float(whole), _NAN, _NAN, _NAN, _NAN, _NAN, _NAN)
            for found, _, whole in pairs
        ],
        {} if leak.tokens is None else score_text(leak.tokens, batch.sequences),
        time.perf_counter() - start,
        shares=[Shares(sample=share if decided else _NAN) for share in shares],
        tried=[Tried.of(attempt, _shares(attempt.leak, batch.sequences)) for attempt in leak.tried],
        undecided=leak.undecided,
        occurred=rows_named(leak.occurred, network, lambda: _read(network, tokens, mask, train)),
        comparison=Comparison(absent=_NOT_FOR_TEXT),
        bound=bound,
        unbounded=bounds.absent if proving else NOT_PROVEN,
        texts=Texts(
            batch.texts, texts_of(leak, given.model) or [], _tokens_alone(leak, batch.sequences)
        ),
    )


def _read(network: nn.Module, tokens: Tensor, mask: Tensor | None, train: bool) -> None:
    """Let the network read every text without its padding."""
    kept = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()
    with in_mode(network, train), torch.no_grad():
        for row, own in zip(tokens, kept, strict=True):
            network(row[own][None])


def _shares(leak: Leak | None, sequences: Sequence[Sequence[int]]) -> list[float]:
    """How much of each text one attack found in its place; nothing is known of one that looks for
    no order."""
    return (
        []
        if leak is None or leak.tokens is None
        else [share for _, share, _ in pair_text(leak.tokens, sequences)]
    )


def texts_of(leak: Leak, model: nn.Module | str) -> list[str] | None:
    """The sequences that were found, as text; None where the attack does not look for any."""
    if leak.tokens is None:
        return None
    tokenizer = tokenizer_of(model)
    return [tokenizer.decode(sequence) for sequence in leak.tokens]


def _tokens_alone(leak: Leak, sequences: Sequence[Sequence[int]]) -> float:
    """The share of all tokens that were found, in no order: those that anything predicts."""
    if leak.tokens is not None:
        return 0.0
    true = Counter(token for sequence in sequences for token in sequence[1:])
    return (true & Counter(leak.labels.tolist())).total() / true.total()
