"""One client's update, attacked: figures that a log can hold. There is no truth here; the certificate takes its place."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from unsum.attack.chain import run_attack
from unsum.attack.options import AttackOptions
from unsum.client.step import in_mode
from unsum.errors import UnsumError
from unsum.integrations.rounds import Seen
from unsum.leak import Leak
from unsum.models.language import is_tied
from unsum.separate import SEPARATORS, separate

Outcome = Literal["audited", "out of time", "failed", "client error"]
LOCAL_STEPS = "local-steps"


@dataclass(frozen=True)
class ClientFinding:
    """What an audit made of one client in one round; without an answer where `outcome` is not "audited".

    `leakage` is what the attack expects to have got, from 0 to 1: 1 − e² for a predicted relative error e of the features, as
    in the reports. Only where `exact` is true does the attack vouch for it; NaN where it predicts nothing.
    """

    round: int
    client: str
    outcome: Outcome
    exact: bool = False
    predicted_error: float = math.nan
    leakage: float = math.nan
    batch_size: int | None = None
    label_counts: dict[int, int] = field(default_factory=dict)
    exact_inputs: int = 0
    method: str = ""
    seconds: float = 0.0
    num_examples: int | None = None
    statistics_layers: int = 0
    local_steps: int | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """In plain types that JSON holds: no NaN or infinity, and class numbers as text."""
        content = {name: _plain(value) for name, value in vars(self).items()}
        content["label_counts"] = {str(label): count for label, count in self.label_counts.items()}
        return content


def check_attack(name: str | None) -> None:
    """Refuse an unknown attack when training begins, not in its first round."""
    if name is not None:
        AttackOptions(name).check()


def attack_seen(model: nn.Module, seen: Seen, attack: str | None, *, train: bool, seed: int) -> Leak:
    """The attack on what was seen; `model` holds the weights that were sent. A separator's name separates and no more.

    None is the quick one that suits the training: `exact`, `local-steps` where the client took several steps, or `text` where
    the head is the embedding.
    """
    if attack is None:
        training = seen.update.training
        several = training is not None and training.several_steps
        attack = LOCAL_STEPS if several else "text" if is_tied(model) else "exact"
    with in_mode(model, train):
        if attack in [entry.name for entry in SEPARATORS]:
            return separate(model, seen.update, attack, seed=seed)
        return run_attack(model, seen.update, AttackOptions(attack, seed=seed))


def finding_of(number: int, client: str, seen: Seen, leak: Leak) -> ClientFinding:
    inputs = 0 if leak.inputs_exact is None else int(leak.inputs_exact.sum())
    notes = [*seen.update.notes, *leak.notes, *filter(None, [seen.statistics.note])]
    return ClientFinding(
        number,
        client,
        "audited",
        exact=leak.exact,
        predicted_error=leak.predicted_error,
        leakage=expected_leakage(leak),
        batch_size=leak.batch_size,
        label_counts=dict(sorted(Counter(leak.labels.tolist()).items())),
        exact_inputs=inputs,
        method=leak.method,
        seconds=leak.seconds,
        num_examples=seen.update.num_examples,
        statistics_layers=len(seen.statistics.layers),
        local_steps=seen.statistics.steps,
        notes=tuple(notes),
    )


def expected_leakage(leak: Leak) -> float:
    """1 − e² for the error e that the attack predicts, whether it vouches for it or not; NaN where it predicts none."""
    if leak.inputs_exact is not None and bool(leak.inputs_exact.any()):
        return 1.0
    return math.nan if math.isnan(leak.predicted_error) else max(1 - leak.predicted_error**2, 0.0)


def reason_of(error: BaseException) -> str:
    """An audit's failure in one sentence: unsum's own as it is, any other with its kind."""
    if isinstance(error, UnsumError):
        return str(error)
    return f"The audit failed with {type(error).__name__}: {error}"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return list(value) if isinstance(value, tuple) else value
