"""A short search for false claims about text, and those that it found;
unsum_bench.scripts.fool.text is the search."""

from __future__ import annotations

import random

import pytest

from unsum_bench.scripts.fool import text as fool

PLAIN = {
    "family": "gpt2", "rank": 4, "init": 0.02,
    "noise": -9.0, "scale": 0.0, "model": 1, "tied": False, "bias": False, "width": 64, "layers": 2,
    "rate": 1e-2, "steps": 0, "memorized": 0, "fresh": 3, "length": 4, "siblings": "none",
    "prompt": 0, "dtype": "float32", "noisy": False, "scaled": "no", "reduction": "mean",
    "told": "nothing", "seed": 772431397,
}  # fmt: skip

# Memorized sequences that were missing from a claim, or made up in it, when 0.1 % of every tensor
# could hide them; and one where half of the batch was missing from a gradient that had been
# doubled.
FOUND = [
    {"steps": 100, "memorized": 3},
    {"steps": 300, "memorized": 3, "length": 8, "seed": 19503171},
    {"steps": 200, "memorized": 2, "fresh": 2, "length": 6, "seed": 666750247},
    {
        "steps": 100, "memorized": 3, "length": 3, "tied": True, "layers": 1, "dtype": "float16",
        "scaled": "twice", "seed": 233563961,
    },
]  # fmt: skip


@pytest.mark.parametrize("changed", FOUND)
def test_memorized_sequences_do_not_go_missing_from_a_claim(changed: dict[str, object]) -> None:
    tried = fool.attempt(PLAIN | changed)
    assert tried.fooled == ""


@pytest.mark.parametrize(
    "changed", [{}, {"tied": True}, {"siblings": "equal"}, {"bias": True, "scaled": "anyhow"}]
)
def test_ordinary_batches_are_claimed(changed: dict[str, object]) -> None:
    tried = fool.attempt(PLAIN | changed)
    assert tried.ended == "claimed"
    assert tried.error < tried.predicted < 1e-4


def test_a_batch_that_is_partly_memorized_is_claimed_while_every_position_still_sends() -> None:
    tried = fool.attempt(PLAIN | {"steps": 30, "memorized": 2, "fresh": 2, "rate": 3e-3})
    assert tried.ended == "claimed"


@pytest.mark.long
def test_no_sequence_is_longer_than_the_model_reads() -> None:
    """A full-length prefix that slipped in, and a label behind it, cannot be replayed; it once
    crashed."""
    changed = {
        "model": 0,
        "tied": True,
        "layers": 1,
        "steps": 200,
        "memorized": 3,
        "length": 8,
        "siblings": "equal",
    }
    tried = fool.attempt(
        PLAIN | changed | {"prompt": 1, "scaled": "anyhow", "scale": -1.3, "seed": 898259415}
    )
    assert tried.fooled == ""


def test_prefixes_that_carry_nothing_are_no_crash() -> None:
    changed = {
        "model": 0,
        "tied": True,
        "bias": True,
        "width": 32,
        "rate": 3e-3,
        "steps": 100,
        "memorized": 3,
        "length": 6,
    }
    told = {
        "siblings": "same beginning",
        "scaled": "anyhow",
        "scale": -1.204923022064019,
        "told": "batch size",
    }
    assert fool.attempt(PLAIN | changed | told | {"seed": 581138131}).ended == "not claimed"


@pytest.mark.long
def test_no_claim_is_false_and_nothing_crashes() -> None:
    chance = random.Random(4)
    few = {
        "family": "gpt2",
        "init": 0.02,
        "model": 0,
        "width": 32,
        "layers": 1,
        "rate": 1e-2,
        "bias": False,
    }  # models that are trained once
    tries = [fool.attempt(fool.random_genome(chance) | few, 3.0) for _ in range(40)]
    assert [tried.genome for tried in tries if tried.fooled] == []
    # a search without claims would show nothing
    assert sum(tried.ended == "claimed" for tried in tries) >= 3
