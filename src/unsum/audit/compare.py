"""Play the audited round again under standard defenses: the same batch, the same attack, only the defense changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from unsum.attack.recipe import AUTO, Say
from unsum.audit.comparison import NOT_ASKED, SLOW, STANDARD, Comparison
from unsum.audit.result import Audit
from unsum.audit.sweep.bench import Bench
from unsum.data import Batch
from unsum.defend import Defense, parse_defense


def compare(
    result: Audit,
    model: nn.Module,
    truth: Batch,
    chain: list[Defense],
    *,
    wanted: bool | None,
    slow: bool,
    train: bool,
    device: torch.device,
    seed: int,
    say: Say,
    **attack_options: Any,
) -> Comparison:
    """`wanted` None compares where it costs little: by the usual attack, on a round that was not `slow`."""
    if wanted is False:
        return Comparison(absent=NOT_ASKED)
    iterates = attack_options["attack"] != AUTO or attack_options["refine"] is not None
    if wanted is None and (slow or iterates):
        return Comparison(absent=SLOW)
    bench = Bench(model, truth, None, say, client_trains=train, device=device, seed=seed, attack_options=attack_options)
    points = [bench.audited(result, chain)]
    if chain:
        points.insert(0, bench.defended([], None))
    standard = [parse_defense(text) for text in STANDARD]
    points += [bench.defended([defense], None) for defense in standard if [repr(defense)] != [repr(d) for d in chain]]
    return Comparison(points, "", audited_second=bool(chain))
