"""Audit an update that was captured elsewhere: there is no truth to compare with, so certificates take its place."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.attack.pictures import Inverses
from unsum.attack.recipe import Say
from unsum.attack.recipe import attack as run_attack
from unsum.audit.comparison import CAPTURED, Comparison
from unsum.audit.result import Audit, Setting
from unsum.audit.setting import device_name, versions
from unsum.client.capture import in_mode
from unsum.invert.refine import Mode
from unsum.update import Update


def audit_captured(
    name: str,
    model: nn.Module,
    update: Update,
    *,
    attack: str,
    label_rule: str | None,
    batch_size: int | None,
    auxiliary: tuple[Tensor, Tensor] | None,
    inverse: Inverses,
    refine: Mode | None,
    train: bool,
    device: torch.device,
    seed: int,
    command: str,
    say: Say,
    steps: Callable[..., None] | None,
) -> Audit:
    """Attack `update` and report what the attack itself vouches for."""
    start = time.perf_counter()
    network = model.to(device)
    with in_mode(network, train):
        leak = run_attack(
            network,
            update.map(lambda _name, tensor: tensor.to(device)),
            attack,
            batch_size=batch_size,
            label_rule=label_rule,
            auxiliary=auxiliary,
            inverse=inverse,
            refine=refine,
            device=device,
            seed=seed,
            progress=say,
            steps=steps,
        )
    leak = replace(leak, notes=[*update.notes, *leak.notes])
    setting = Setting(
        model=name,
        batch_size=leak.batch_size,
        classes=leak.targets.shape[1],
        mode="train" if train else "eval",
        defenses="unknown: the update was captured elsewhere",
        attack=leak.method if label_rule is None else f"{leak.method}, labels by {label_rule}",
        seed=seed,
        device=device_name(device),
        command=command,
        versions=versions(),
    )
    seconds = time.perf_counter() - start
    return Audit(setting, None, leak, [], {}, seconds, comparison=Comparison(absent=CAPTURED))
