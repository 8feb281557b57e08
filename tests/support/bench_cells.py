"""Small cells that tests share."""

from __future__ import annotations

from unsum_bench.declare import Attack, Cell, Network
from unsum_bench.measure import TIMES
from unsum_bench.store import Store

CONV = Network("conv", 16, 10)
EXACT = Attack("exact")
FGLA = Attack("fgla", granted="labels")
UNKNOWN_OPTION = Attack("exact", (("turns", 3),))  # refused by the attack, in a sentence
# a declaration that makes no sense
BROKEN = Attack("l̂", (("accuracy", "high"),), family="estimate")


def cell(
    attack: Attack = EXACT, batch: int = 4, seed: int = 0, defense: str = "none", same: int = 0
) -> Cell:
    return Cell(CONV, attack, batch, same, defense=defense, seed=seed)


def values(store: Store) -> dict[str, tuple[str, dict[str, float]]]:
    """What two runs must agree on: every cell's status and figures, without times."""
    return {
        result.key: (
            result.outcome.status,
            {name: value for name, value in result.outcome.values.items() if name not in TIMES},
        )
        for result in store
    }
