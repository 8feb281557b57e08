"""What a server saw of one client, attacked; and findings on disk as they come."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from unsum.attack.agreement import surest as surest
from unsum.attack.auto import only, quick
from unsum.attack.chain import cut_short, run_attack
from unsum.attack.counts import with_counts
from unsum.attack.options import AttackOptions
from unsum.audit.finding import ClientFinding as ClientFinding
from unsum.audit.finding import expected_leakage as expected_leakage
from unsum.audit.finding import finding_of as finding_of
from unsum.audit.finding import reason_of as reason_of
from unsum.audit.round_ceiling import RoundCeiling
from unsum.audit.verdict import NOT_DECIDABLE
from unsum.client.step import in_mode
from unsum.errors import UnsumError
from unsum.integrations.rounds import Seen
from unsum.leak import Leak
from unsum.models.language import is_tied
from unsum.running.deadline import out_of_time
from unsum.running.deadline import time_limit as limited_to
from unsum.running.progress import SILENT
from unsum.running.sharing import sharing
from unsum.separate import SEPARATORS
from unsum.update import Update

LOCAL_STEPS = "local-steps"
FILE = "leakage.jsonl"
CEILINGS = "ceilings.jsonl"
# samples: solving for more takes longer than a round, and few heads tell as many apart
_MOST_GRANTED = 256


def check_attack(name: str | None) -> None:
    """Refuse an unknown attack when training begins, not in its first round."""
    if name is not None:
        AttackOptions(name).check()


def attack_seen(
    model: nn.Module,
    seen: Seen,
    attack: str | None,
    *,
    train: bool,
    seed: int,
    time_limit: float | None = None,
) -> Leak:
    """The attack on what was seen; `model` holds the weights that were sent. A separator's name
    separates and no more.

    None is the quick one that suits the training: `exact`, `local-steps` where the client took
    several steps, or `text` where the head is the embedding; and the rows of every dense layer,
    where that is not certain.

    The number of examples is granted as the batch size first. A client may have drawn a smaller
    batch from them, so without a certain answer the attack is asked again without it. `time_limit`
    is for both together; what it leaves untried is noted.
    """
    with limited_to(time_limit) as deadline, sharing():
        leak = _attacked_twice(model, seen, attack, train=train, seed=seed)
        with in_mode(model, train):
            leak = with_counts(model, seen.update, leak, AttackOptions(seed=seed))
    return cut_short(leak, deadline)


def _attacked_twice(
    model: nn.Module, seen: Seen, attack: str | None, *, train: bool, seed: int
) -> Leak:
    update, told = seen.update, None
    several = update.training is not None and update.training.several_steps
    # How many samples the client's only step was of, as far as a server can tell from the number of
    # its examples.
    known = (
        not several and update.batch_size is None and (update.num_examples or 0) <= _MOST_GRANTED
    )
    granted = update.num_examples if known else None
    with in_mode(model, train):
        if granted is not None:
            with suppress(UnsumError):  # the attack refuses a batch of that size
                told = _attacked(
                    model, seen.update, attack, AttackOptions(batch_size=granted, seed=seed)
                )
        if told is not None and (told.exact or out_of_time("the same without the batch size")):
            return told
        untold = _attacked(model, seen.update, attack, AttackOptions(seed=seed))
    found = [untold] if told is None or told.batch_size != granted else [told, untold]
    return min(found, key=surest)


def _attacked(model: nn.Module, update: Update, attack: str | None, options: AttackOptions) -> Leak:
    if attack is None:
        several = update.training is not None and update.training.several_steps
        return quick(
            LOCAL_STEPS if several else "text" if is_tied(model) else "exact",
            model,
            update,
            options,
            SILENT,
        )
    if attack in [entry.name for entry in SEPARATORS]:
        return only(attack, model, update, options, SILENT)
    return run_attack(model, update, replace(options, method=attack))


class Journal:
    """Writes into `folder`, appending to what an earlier run left there; without a folder it writes
    nothing."""

    def __init__(self, folder: str | Path | None) -> None:
        # servers may change where they stand
        self.folder = None if folder is None else Path(folder).absolute()
        self._curves: Any = None
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def write(
        self, number: int, findings: Sequence[ClientFinding], figures: dict[str, float]
    ) -> None:
        if self.folder is None:
            return
        with (self.folder / FILE).open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps(finding.to_dict()) + "\n" for finding in findings)
        curves = self._open_curves()
        if curves is None:
            return
        for name, value in figures.items():
            curves.add_scalar(f"unsum/{name}", value, number)
        for finding in findings:
            if math.isfinite(finding.leakage):
                curves.add_scalar(f"unsum/client/{finding.client}", finding.leakage, number)
        curves.flush()

    def write_ceilings(self, ceilings: Sequence[RoundCeiling]) -> None:
        """A line for each round, and the curve."""
        if self.folder is None or not ceilings:
            return
        with (self.folder / CEILINGS).open("a", encoding="utf-8") as lines:
            lines.writelines(json.dumps(one.to_dict()) + "\n" for one in ceilings)
        curves = self._open_curves()
        if curves is not None:
            for one in ceilings:
                curves.add_scalar("unsum/leak-ceiling", one.ceiling, one.round)
            curves.flush()

    def _open_curves(self) -> Any:
        if self._curves is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return None
            self._curves = SummaryWriter(str(self.folder))
        return self._curves


def figures_of(findings: Sequence[ClientFinding], seconds: float) -> dict[str, float]:
    """A round in numbers, as a strategy's metrics can hold them: whole numbers and finite ones
    only.

    Where no client's leakage is known, `leak-worst` is left out, and `leak-expected` where the
    attack predicts nothing: dashboards show a gap, never 0.
    """
    audited = [finding for finding in findings if finding.outcome == "audited"]
    most = {
        "leak-worst": [finding.leakage for finding in audited if math.isfinite(finding.leakage)],
        "leak-expected": [
            finding.expected for finding in audited if math.isfinite(finding.expected)
        ],
    }
    sure = [finding for finding in audited if finding.exact]
    figures: dict[str, float] = {
        "leak-audited": len(audited),
        "leak-not-audited": len(findings) - len(audited),
        "leak-not-decidable": sum(finding.state == NOT_DECIDABLE for finding in findings),
        "leak-exact": len(sure),
        "leak-exact-samples": sum(finding.distinct or 0 for finding in sure),
        "leak-statistics": sum(finding.statistics_layers > 0 for finding in audited),
        "leak-seconds": float(seconds),
    }
    return figures | {name: float(max(values)) for name, values in most.items() if values}
