"""A federated run on disk, client by client and round by round: how it is stored, and how it is
audited afterwards.

seen/round-1/sent.safetensors          the weights of the round, with the settings of the training
                                       that went with them
seen/round-1/sent-7.safetensors        the same for client 7 alone, where it was sent others
seen/round-1/client-7.safetensors      what client 7 sent back, with the number of its samples
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsum.audit.finding import ClientFinding, finding_of, reason_of
from unsum.audit.many.arrived import file_sha256
from unsum.audit.over_time import Audited
from unsum.errors import UnsumError, shown
from unsum.files.tensor_file import read_tensors
from unsum.files.writing import save_tensors, write_whole
from unsum.integrations.finding import attack_seen
from unsum.integrations.rounds import fill, seen
from unsum.local_training import LocalTraining

_FORMAT = "unsum-run"
_SENT, _BACK, _ROUND = "sent", "client", "round"
# as Flower's own examples name it in what they send to clients
_RATES = ("lr", "learning-rate", "learning_rate")
_NUMBERED = re.compile(rf"{_ROUND}-(\d+)$")


def store(folder: Path, number: int, name: str, weights: Mapping[str, Tensor], **told: Any) -> Path:
    """One record of weights, written whole or not at all; `told` are plain values that go with
    it."""
    place = folder / f"{_ROUND}-{number}"
    place.mkdir(parents=True, exist_ok=True)
    tensors = {key: value.detach().cpu().contiguous().clone() for key, value in weights.items()}
    return write_whole(
        place / f"{name}.safetensors",
        lambda part: save_tensors(tensors, part, {_FORMAT: json.dumps(told)}),
    )


def store_sent(
    folder: Path,
    number: int,
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    client: str = "",
) -> Path:
    """The weights that everybody, or one client, was sent, with the settings of its training."""
    plain = {
        key: value for key, value in config.items() if isinstance(value, str | int | float | bool)
    }
    return store(folder, number, f"{_SENT}-{client}" if client else _SENT, weights, config=plain)


def store_back(
    folder: Path,
    number: int,
    weights: Mapping[str, Tensor],
    client: str,
    num_examples: int | None,
    *,
    steps: int | None = None,
    change: bool = False,
) -> Path:
    """What a client sent back, with what it said of itself; `change` where that is the change of
    its weights."""
    told = {"num_examples": num_examples, "steps": steps, "change": change}
    return store(folder, number, f"{_BACK}-{client}", weights, **told)


@dataclass(frozen=True)
class StoredReply:
    """What one client sent back in one round, and what it had been sent."""

    round: int
    client: str
    sent: Path
    back: Path

    def audited(
        self, model: nn.Module, declared: LocalTraining, attack: str | None, **how: Any
    ) -> Audited:
        """The finding; whatever is wrong with this reply is one, too, and never ends the others."""
        model = copy.deepcopy(model)
        try:
            if not self.sent.exists():
                raise UnsumError(
                    f"The weights that round {self.round} sent out are missing ({self.sent.name})."
                )
            sent, back = read_tensors(self.sent, "update"), read_tensors(self.back, "update")
            told, before, after = _told(back.metadata), sent.tensors, back.tensors
            examples, steps = told.get("num_examples"), told.get("steps")
            if told.get("change"):
                after = {name: before[name] + value for name, value in after.items()}
            fill(model, before)
            known = (
                declared
                if declared.steps is not None or not steps
                else replace(declared, steps=steps)
            )
            training = trained_as(known, _told(sent.metadata).get("config", {}), examples)
            found = seen(model, before, after, training, num_examples=examples)
            leak = attack_seen(model, found, attack, **how)
            finding = finding_of(self.round, self.client, found.update, leak)
            return Audited(replace(finding, sha256=file_sha256(self.back)), leak.label_counts)
        except Exception as error:
            reason = reason_of(error)
            failed = ClientFinding(
                self.round, self.client, "failed", notes=(reason,), reason=reason
            )
            return Audited(replace(failed, sha256=file_sha256(self.back)), None)


def _told(metadata: Mapping[str, str]) -> dict[str, Any]:
    content = json.loads(metadata.get(_FORMAT, "{}"))
    return content if isinstance(content, dict) else {}


def trained_as(
    declared: LocalTraining, config: Mapping[str, Any], examples: int | None
) -> LocalTraining:
    """What is declared, and where it is silent, the rate that was sent to the client and the steps
    that its samples take."""
    rates = (config[name] for name in _RATES if isinstance(config.get(name), int | float))
    known = (
        declared
        if declared.learning_rate is not None
        else replace(declared, learning_rate=next(rates, None))
    )
    if known.steps is None and known.batch_size is not None and examples:
        return replace(known, steps=known.epochs * -(-examples // known.batch_size))
    return known


def replies(folder: Path) -> Iterator[StoredReply]:
    """Every reply, round by round."""
    for number, place in sorted(_rounds(folder).items()):
        for back in sorted(place.glob(f"{_BACK}-*.safetensors")):
            client = back.stem.removeprefix(f"{_BACK}-")
            own = place / f"{_SENT}-{client}.safetensors"
            yield StoredReply(
                number, client, own if own.exists() else place / f"{_SENT}.safetensors", back
            )


def sent_weights(folder: Path) -> Iterator[tuple[int, Mapping[str, Tensor]]]:
    """The weights that everybody was sent, round by round; rounds that sent each client its own are
    left out.

    NVFlare's filters store what is sent client by client, which is the same for all as a rule.
    """
    for number, place in sorted(_rounds(folder).items()):
        try:
            sent = [
                read_tensors(path, "update").tensors
                for path in sorted(place.glob(f"{_SENT}*.safetensors"))
            ]
        except UnsumError:  # a damaged file: its clients' findings say so
            continue
        if sent and all(_same(sent[0], other) for other in sent[1:]):
            yield number, sent[0]


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def gaps(folder: Path) -> list[str]:
    """What is not there: a sentence for rounds that are missing, and one for those without a
    reply."""
    rounds = _rounds(folder)
    missing = sorted(set(range(1, max(rounds) + 1)) - rounds.keys())
    empty = sorted(
        number for number, place in rounds.items() if not any(place.glob(f"{_BACK}-*.safetensors"))
    )
    sentences = []
    if missing:
        sentences.append(
            f"{_named(missing)} missing from the folder; the others are audited, and of "
            f"{'this one' if len(missing) == 1 else 'these'} nothing is known."
        )
    if empty:
        sentences.append(f"{_named(empty)} without any client's answer.")
    return sentences


def _named(numbers: list[int]) -> str:
    return (
        f"Round {numbers[0]} is"
        if len(numbers) == 1
        else f"Rounds {', '.join(map(str, numbers))} are"
    )


def _rounds(folder: Path) -> dict[int, Path]:
    if not folder.is_dir():
        raise UnsumError(
            f"There is no folder {shown(str(folder))}; --flower-run takes the one that "
            "StoreUpdates wrote."
        )
    found = {
        int(match[1]): place
        for place in folder.iterdir()
        if (match := _NUMBERED.match(place.name)) and place.is_dir()
    }
    if not found:
        raise UnsumError(
            f"{shown(str(folder))} holds no round-1, round-2 …; wrap the server's strategy in "
            "unsum.integrations.flower_store.StoreUpdates(strategy, FOLDER) and run the training "
            "again."
        )
    return found
