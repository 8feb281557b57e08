"""What the adaptive separator expects of itself, and how it compares under every defense of RGLA's
tables."""

from __future__ import annotations

import statistics

import pytest

from separate.sparse_cases import sparse_case
from support.long import long
from unsum import separate

TABLE = ["noise:0.01", "clip:4", "prune:0.8", "prune:0.9", "prune:0.99", "prune:0.999"]


@pytest.mark.parametrize(
    ("defense", "same"),
    [
        ("noise:0.01", 6),
        ("prune:0.97", 0),
        *long(("noise:0.03", 0), ("prune:0.97", 6)),
    ],
)
def test_errors_are_predicted_within_a_factor_of_two(defense: str, same: int) -> None:
    ratios = []
    for seed in range(5):
        case = sparse_case(same=same, seed=seed)
        leak = separate(case.model, case.defended(defense, seed), "adaptive", labels=case.labels)
        assert not leak.exact
        ratios.append(leak.predicted_error / case.scored(leak)[1])
    assert 0.5 < statistics.median(ratios) < 2


@pytest.mark.parametrize(
    ("defense", "same"),
    [*((defense, 0) for defense in TABLE), *long(*zip(TABLE, (3, 6) * 3, strict=True))],
)
def test_never_worse_than_the_published_attacks_with_labels_granted(
    defense: str, same: int
) -> None:
    case = sparse_case(same=same)
    adaptive = case.run(defense, "adaptive", labels=case.labels)
    for rival in ("fgla", "rgla-newton"):
        cosine, error = case.run(defense, rival, labels=case.labels)
        assert adaptive[0] > cosine - 0.01, rival
        assert adaptive[1] < 1.02 * error, rival


@pytest.mark.parametrize("defense", TABLE)
def test_labels_are_found_as_well(defense: str) -> None:
    case = sparse_case()
    leak = separate(case.model, case.defended(defense), "adaptive", batch_size=6)
    assert leak.labels.sort().values.tolist() == case.labels.sort().values.tolist()
