"""How many samples there are: certain of distinct ones alone, where whole-number weights send what
copies send."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import unsum
from separate.language_models import batch as texts
from separate.language_models import gpt2
from unsum.attack.at_once import attack_at_once
from unsum.attack.options import AttackOptions
from unsum.certify.counted import count
from unsum.knowledge import Knowledge
from unsum.local_training import LocalTraining

CLASSES, WIDTH = 20, 40
# Distinct rows of 3 classes; the loss gives one of them twice the weight of each other.
SHARES: dict[str, tuple[float, ...]] = {
    "class weight of 2": (2 / 4, 1 / 4, 1 / 4),
    "micro-batches of 1 and 2, averaged": (1 / 2, 1 / 4, 1 / 4),
    "two clients of 1 and 2 samples in one sum": (1, 1 / 2, 1 / 2),
    "a mean of the weighted losses": (2 / 3, 1 / 3, 1 / 3),
    "everything doubled": (2 / 6, 2 / 6, 2 / 6),
}


def sent(model: nn.Module, x: Tensor, y: Tensor, shares: tuple[float, ...]) -> unsum.Update:
    losses = nn.functional.cross_entropy(model(x), y, reduction="none")
    found = torch.autograd.grad((torch.tensor(shares) * losses).sum(), list(model.parameters()))
    return unsum.Update(
        dict(zip([name for name, _ in model.named_parameters()], found, strict=True))
    )


def head_case(seed: int = 0) -> tuple[nn.Linear, Tensor, Tensor]:
    torch.manual_seed(seed)
    return nn.Linear(WIDTH, CLASSES), torch.randn(3, WIDTH).relu(), torch.tensor([8, 13, 17])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, CLASSES)
    )


def nearest(found: Tensor, true: Tensor) -> float:
    apart = torch.cdist(found.double(), true.double()) / true.double().norm(dim=1)
    return float(torch.maximum(apart.amin(0).max(), apart.amin(1).max()))


@pytest.mark.parametrize("kind", SHARES)
def test_weights_are_not_claimed_as_copies_at_the_head(kind: str) -> None:
    model, x, y = head_case()
    leak = unsum.separate(model, sent(model, x, y, SHARES[kind]))
    assert nearest(leak.features, x) < 1e-2
    assert set(leak.labels.tolist()) == set(y.tolist())
    assert not leak.counts_certain
    if leak.exact:
        assert leak.distinct == 3
        assert (
            leak.number_of()
            == "3 distinct samples; how many of each is not determined without the batch size"
        )
        assert "3 distinct samples" in repr(leak)
    else:
        assert sum(SHARES[kind]) > 1  # a scale and a weight at once


def test_at_least_these_weights_are_claimed() -> None:
    model, x, y = head_case()
    assert unsum.separate(model, sent(model, x, y, SHARES["class weight of 2"])).exact


@pytest.mark.parametrize("kind", SHARES)
def test_nor_in_the_spans_of_two_layers(kind: str) -> None:
    model = network()
    x, y = torch.randn(3, WIDTH), torch.tensor([8, 13, 17])
    leak = unsum.separate(model, sent(model, x, y, SHARES[kind]), "spans", batch_size=None)
    assert not leak.counts_certain
    assert nearest(leak.inner["0"], x) < 1e-3
    if leak.exact:
        assert leak.distinct == 3


# What each predicted token of two sequences of six weighs.
WEIGHTS: dict[str, Tensor] = {
    "a token of weight 2": torch.tensor([[1.0, 2, 1, 1, 1], [1, 1, 1, 1, 1]]),
    "a class weight of 2": torch.tensor([[2.0, 1, 1, 1, 1], [1, 1, 1, 2, 1]]),
    "a sequence of weight 2": torch.tensor([[2.0] * 5, [1] * 5]),
    "two clients, and one has padding": torch.tensor([[2.0, 2, 0, 0, 0], [1, 1, 1, 1, 0]]),
    "everything doubled": torch.full((2, 5), 2.0),
    "weights of 1 and 1.005": torch.tensor([[1.0] * 5, [1.005] * 5]),
}


# What copies of whole sequences send as well is claimed, as distinct sequences.
WHOLE = ("a sequence of weight 2", "two clients, and one has padding", "everything doubled")


@pytest.mark.parametrize("kind", WEIGHTS)
def test_nor_of_tokens(kind: str) -> None:
    """Of a text the sequences are certain, and neither how often each stands there nor that none
    weighs more."""
    model, tokens = gpt2(tied=False), texts(2, 6)
    logits = model(tokens).logits[:, :-1].flatten(0, 1)
    each = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
    weights = WEIGHTS[kind].flatten()
    total = (weights * each).sum() / (5 if kind.startswith("everything") else weights.sum())
    gradients = torch.autograd.grad(total, list(model.parameters()))
    update = unsum.Update(
        dict(zip([name for name, _ in model.named_parameters()], gradients, strict=True))
    )
    read = [
        row[: 1 + int(kept.sum())]
        for row, kept in zip(tokens.tolist(), WEIGHTS[kind] > 0, strict=True)
    ]
    for told in (None, int((weights > 0).sum()), int(weights.sum())):
        leak = unsum.separate(model, update, "text", batch_size=told)
        if leak.exact:
            assert sorted({*map(tuple, leak.tokens or [])}) == sorted(map(tuple, read))
            assert leak.distinct <= int((weights > 0).sum())
        assert not leak.counts_certain or (leak.batch_size == told == int((weights > 0).sum()))
        if told is None:
            assert leak.exact == (kind in WHOLE), leak.notes


def test_nor_of_many_updates_at_once() -> None:
    model, x, y = head_case()
    updates = [sent(model, x, y, shares) for shares in SHARES.values()]
    options = AttackOptions("exact", pictures=False, device=torch.device("cpu"))
    found = [leak for leak in attack_at_once(model, updates, options) if leak is not None]
    assert len(found) >= 1
    assert all(leak.exact and leak.distinct == 3 and not leak.counts_certain for leak in found)


def test_the_batch_size_settles_it_where_every_sample_is_another() -> None:
    model, x, y = head_case()
    update = sent(model, x, y, (1 / 3, 1 / 3, 1 / 3))
    assert not unsum.separate(model, update).counts_certain
    known = unsum.separate(model, update, batch_size=3)
    assert known.exact
    assert known.counts_certain
    assert known.number_of() == "3 samples"
    (at_once,) = attack_at_once(
        model, [update], AttackOptions("exact", batch_size=3, device=torch.device("cpu"))
    )
    assert at_once is not None
    assert at_once.counts_certain


def test_a_batch_size_that_leaves_a_choice_settles_nothing() -> None:
    """Three samples of four: which of them is there twice, or weighs twice, the gradient does not
    determine."""
    model, x, y = head_case()
    x, y = torch.cat([x, x[:1]]), torch.cat([y, y[:1]])
    leak = unsum.separate(model, sent(model, x, y, (1 / 4,) * 4), batch_size=4)
    if leak.exact:
        assert leak.distinct == 3
        assert not leak.counts_certain
        assert leak.number_of() == "3 distinct samples; how many of each is not determined"


def counted(
    rows: list[float], labels: list[int], known: Knowledge, **besides: Tensor
) -> tuple[int, bool, bool]:
    """Of rows that are multiples of (1, 0), with predicted errors of 1e-4."""
    features = torch.tensor([[value, 1.0] for value in rows], dtype=torch.float64)
    found = count(features, torch.tensor(labels), torch.full((len(rows),), 1e-4), known, **besides)
    return found.distinct, found.certain, found.visits


def test_rows_within_what_is_predicted_of_each_other_are_one_sample() -> None:
    """Two rows of length 1 are one sample up to a distance of 5 · (1e-4 + 1e-4) = 1e-3."""
    assert counted([0.0, 0.9e-3], [1, 1], Knowledge()) == (1, False, False)
    assert counted([0.0, 1.1e-3], [1, 1], Knowledge()) == (2, False, False)
    # of another label it is another
    assert counted([0.0, 0.0], [1, 2], Knowledge()) == (2, False, False)


def test_certain_are_numbers_that_leave_no_choice() -> None:
    assert counted([0.0, 1.0], [1, 1], Knowledge(batch_size=2)) == (2, True, False)
    assert counted([0.0, 1.0], [1, 1], Knowledge(batch_size=3)) == (2, False, False)
    # one of two: the other one may send nothing
    assert counted([0.0, 0.0], [1, 1], Knowledge(batch_size=2)) == (1, False, False)
    assert counted([0.0], [1], Knowledge(batch_size=1)) == (1, True, False)
    assert counted([0.0, 0.0, 1.0], [1, 1, 1], Knowledge(batch_size=3)) == (2, False, False)
    assert counted([0.0, 1.0], [1, 1], Knowledge(batch_size=3), copies=torch.tensor([2, 1])) == (
        2,
        False,
        False,
    )
    labels = Knowledge(labels=torch.tensor([1, 1, 2]))  # one of label 1 may send nothing
    assert counted([0.0, 0.0, 1.0], [1, 1, 2], labels) == (2, False, False)
    assert counted([0.0, 0.5, 1.0], [1, 1, 2], labels) == (3, True, False)
    labels = Knowledge(labels=torch.tensor([1, 1, 1]))
    assert counted([0.0, 0.0, 1.0], [1, 1, 1], labels) == (2, False, False)


def test_visits_of_two_steps_are_distinct_by_their_labels_alone() -> None:
    """Step 0 met two of label 1, step 1 one of label 1 and one of label 2: three samples at the
    least."""
    steps = torch.tensor([0, 0, 1, 1])
    assert counted([0.0, 1.0, 2.0, 3.0], [1, 1, 1, 2], Knowledge(batch_size=4), steps=steps) == (
        3,
        False,
        True,
    )
    assert counted([0.0, 1.0, 2.0, 3.0], [1, 2, 3, 4], Knowledge(batch_size=4), steps=steps) == (
        4,
        True,
        False,
    )
    one = torch.tensor([0, 1])  # one sample of two visits, or two samples
    assert counted([0.0, 1.0], [1, 1], Knowledge(batch_size=2), steps=one) == (1, False, True)


@pytest.mark.parametrize("told", [None, 4, 2])
@pytest.mark.parametrize("method", ["local-steps", "spans"])
def test_samples_that_two_steps_meet_are_not_claimed_twice(method: str, told: int | None) -> None:
    """Two steps of the same two samples, declared as one epoch: four visits."""
    torch.manual_seed(1)
    model = network()
    x, y = torch.randn(2, WIDTH), torch.tensor([3, 7])
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(local(x), y).backward()
        optimizer.step()
    delta = {
        n: (p - q).detach()
        for (n, p), q in zip(local.named_parameters(), model.parameters(), strict=True)
    }
    update = unsum.Update.from_delta(delta, 0.2, training=LocalTraining(0.1, 2))
    leak = unsum.separate(model, update, method, batch_size=told)
    assert not leak.exact or leak.distinct <= 2
    assert not leak.counts_certain or (told == 2 and leak.batch_size == 2)
