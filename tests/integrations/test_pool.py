"""Audits behind the training: handed over at once, found later, and none that was accepted is
lost."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from support.many import network
from unsum.attack.options import AttackOptions
from unsum.integrations import pool as pools
from unsum.integrations.pool import ArrivedWeights, AuditPool
from unsum.local_training import LocalTraining

RATE = 0.1


def sent_back(number: int) -> ArrivedWeights:
    """What one step of SGD on three samples makes of the weights."""
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(number)
    images, labels = torch.randn(3, 64), torch.tensor([4, 4, number % 20])
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= RATE * parameter.grad  # type: ignore[operator]
    return ArrivedWeights(
        str(number),
        None,
        1,
        before,
        model.state_dict(),
        LocalTraining(learning_rate=RATE),
        num_examples=3,
    )


def test_a_worker_makes_the_update_of_the_weights() -> None:
    found = sent_back(7).look(network(), AttackOptions(), train=True)
    assert (found.outcome, found.label_counts, found.num_examples) == ("audited", {4: 2, 7: 1}, 3)
    assert found.leakage > 0.99
    torn = ArrivedWeights("8", None, 2, {"1.weight": torch.zeros(2, 2)}, {}).look(
        network(), AttackOptions(), True
    )
    assert (torn.round, torn.outcome) == (2, "failed")


def test_handing_over_never_waits_and_says_when_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slowly(campaign: Any, arrived: Any, processes: int) -> Any:
        for one in arrived:
            time.sleep(0.2)
            yield one, one.look(campaign.model, campaign.options, campaign.train)

    monkeypatch.setattr(pools, "on_processes", slowly)
    pool = AuditPool(network(), 1, train=True, seed=0)
    offered = [sent_back(number) for number in range(8)]
    start = time.perf_counter()
    taken = [one.client for one in offered if pool.offer(one)]
    assert time.perf_counter() - start < 0.2 * len(taken)  # audits take longer than that
    assert 4 <= len(taken) < 8
    found = pool.finish()
    assert [finding.client for finding in found] == taken
    assert all(finding.leakage > 0.99 for finding in found)
    assert pool.offer(offered[-1])  # and again
    assert [finding.client for finding in pool.finish()] == [offered[-1].client]


@pytest.mark.long
def test_on_real_processes() -> None:
    pool = AuditPool(network(), 2, train=True, seed=0, time_limit=60)
    assert all(pool.offer(sent_back(number)) for number in range(5))
    found = sorted(pool.finish(), key=lambda finding: finding.client)
    assert [finding.label_counts for finding in found] == [
        {0: 1, 4: 2}, {1: 1, 4: 2}, {2: 1, 4: 2}, {3: 1, 4: 2}, {4: 3},
    ]  # fmt: skip
