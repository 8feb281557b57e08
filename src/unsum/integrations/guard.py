"""The client's side: look at an update before it leaves, and refuse it or add noise while the
attack expects to succeed.

What a guard lets pass is not safe: it only says that this attack expects to fail. Whatever changes
the update afterwards was not looked at, so a guard must be the last to touch it.
"""

from __future__ import annotations

import copy
import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unsum.attack.options import AUTO
from unsum.errors import UnsumError, check_name
from unsum.integrations.finding import attack_seen, check_attack, expected_leakage, reason_of
from unsum.integrations.rounds import fill, seen
from unsum.integrations.time_limit import SEARCHING, OutOfTime, within
from unsum.local_training import LocalTraining

Action = Literal["refuse", "noise"]
WhenUnsure = Literal["refuse", "send"]
# in root mean squares of the update: what a certificate notices and training does not
_FIRST_NOISE = 1e-3
_NOW = 1e-3  # seconds: as good as none
_GROWTH, _TRIES = 3.0, 10  # up to twenty times the update itself


@dataclass(frozen=True)
class Judged:
    """Whether an update may leave, as what, and why."""

    weights: dict[str, Tensor] | None  # to send; None where it is refused
    leakage: float  # of what is sent or refused; NaN where the attack predicts nothing
    noise: float  # standard deviation added to every parameter
    reason: str


@dataclass(eq=False)
class Guard:
    """`judge` looks at what a client received and would send back.

    Args:
        model: the model that is trained; its weights are not looked at.
        threshold: the leakage that an update may have, from 0 to 1; see `ClientFinding.leakage`.
        action: "refuse" what is above, or add Gaussian "noise" to its parameters, more and more,
            until it is not.
        attack: the strongest by default, which tries several; `exact` is faster and gives up
            earlier.
        training: what the client's own training is; knowing it makes the attack stronger.
        when_unsure: whether to "refuse" or to "send" where the attack predicts nothing, fails or
            runs out of time.
        budget_seconds: for one update, all tries together.
        train: BatchNorm's mode in the client's training.
    """

    model: nn.Module
    threshold: float = 0.2
    action: Action = "refuse"
    _: KW_ONLY
    attack: str = AUTO
    training: LocalTraining | None = None
    when_unsure: WhenUnsure = "refuse"
    budget_seconds: float = 30.0
    train: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < 1:
            raise UnsumError(
                f"A guard's threshold is a leakage from 0 to below 1, not {self.threshold}."
            )
        check_name("action", str(self.action), ["refuse", "noise"])
        check_name("way when unsure", str(self.when_unsure), ["refuse", "send"])
        check_attack(self.attack)
        self.model = copy.deepcopy(self.model).cpu()

    def judge(self, received: Mapping[str, Any], leaving: Mapping[str, Any]) -> Judged:
        deadline = time.perf_counter() + self.budget_seconds
        weights = {name: torch.as_tensor(value).detach().cpu() for name, value in leaving.items()}
        noise, tried = 0.0, weights
        # nobody can draw the same noise again
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        for attempt in range(_TRIES):
            try:
                left = deadline - time.perf_counter()
                leakage, why = within(
                    left, partial(self._leakage, received, tried, max(SEARCHING * left, _NOW))
                )
            except OutOfTime:
                return self._unsure(
                    tried, noise, f"the audit took longer than {self.budget_seconds:g} s"
                )
            except Exception as error:
                return self._unsure(tried, noise, reason_of(error))
            if leakage <= self.threshold and not why:
                return Judged(
                    tried, leakage, noise, f"The attack expects a leakage of {leakage:.2f}."
                )
            if self.action == "refuse":
                if math.isnan(leakage) or leakage <= self.threshold:
                    return self._unsure(tried, noise, why or "the attack predicts nothing")
                reason = (
                    f"The attack expects a leakage of {leakage:.2f}, above the threshold of "
                    f"{self.threshold:g}."
                )
                return Judged(None, leakage, noise, reason)
            moved = self._trained(received, weights)
            size = (
                torch.cat([change.double().flatten() for change in moved.values()])
                .square()
                .mean()
                .sqrt()
            )
            noise = _FIRST_NOISE * _GROWTH**attempt * float(size)
            drawn = {name: torch.randn(weights[name].shape, generator=generator) for name in moved}
            tried = weights | {
                name: weights[name] + noise * draw.to(weights[name]) for name, draw in drawn.items()
            }
        return self._unsure(tried, noise, f"noise of {noise:.1g} did not bring the leakage down")

    def _leakage(
        self, received: Mapping[str, Any], leaving: Mapping[str, Tensor], seconds: float
    ) -> tuple[float, str]:
        """What the attack expects to get, and why that is not known where it is not."""
        model = copy.deepcopy(self.model)
        fill(model, received)
        round_ = seen(model, received, leaving, self.training)
        leak = attack_seen(
            model, round_, self.attack, train=self.train, seed=self.seed, time_limit=seconds
        )
        return expected_leakage(leak), leak.undecided

    def _unsure(self, weights: dict[str, Tensor], noise: float, cause: str) -> Judged:
        told = f"Not known whether the update leaks: {cause}."
        return Judged(weights if self.when_unsure == "send" else None, math.nan, noise, told)

    def _trained(
        self, received: Mapping[str, Any], leaving: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """How far each parameter moved that did; neither frozen ones nor BatchNorm's statistics are
        among them."""
        own, state = dict(self.model.named_parameters()), self.model.state_dict()
        if own.keys() & leaving.keys():
            names = [name for name in leaving if name in own]
        elif len(state) == len(leaving):  # under foreign names, in the order of the state dict
            names = [name for name, known in zip(leaving, state, strict=True) if known in own]
        else:
            names = [name for name, value in leaving.items() if value.is_floating_point()]
        moved = {
            name: leaving[name] - torch.as_tensor(received[name]).to(leaving[name])
            for name in names
        }
        return {name: change for name, change in moved.items() if bool(change.any())}
