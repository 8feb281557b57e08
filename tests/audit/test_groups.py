"""Arguments in groups; those that were keywords of their own before still are, with a warning."""

from __future__ import annotations

import math
import warnings
from dataclasses import fields
from inspect import signature

import pytest
import torch
from torch import nn

import unsum
from unsum.audit.groups import GROUPS, Attacker, AuditLimits, ClientTraining, grouped
from unsum.local_training import LocalTraining


@grouped
def called(
    model: str = "default",
    *,
    client: ClientTraining = ClientTraining(),
    limits: AuditLimits = AuditLimits(),
    seed: int = 0,
) -> tuple[str, ClientTraining, AuditLimits, int]:
    return model, client, limits, seed


def test_a_field_is_still_a_keyword() -> None:
    with pytest.warns(
        DeprecationWarning,
        match=r"train= of unsum.called .*: write client=unsum.ClientTraining\(train=…\)",
    ):
        assert called("own", train=False, seed=3) == (
            "own",
            ClientTraining(train=False),
            AuditLimits(),
            3,
        )  # type: ignore[call-arg]


def test_every_group_is_warned_of_by_itself() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = called(epochs=2, momentum=0.5, ceiling=False)  # type: ignore[call-arg]
    assert found[1:3] == (ClientTraining(epochs=2, momentum=0.5), AuditLimits(ceiling=False))
    assert [str(one.message).partition(" of ")[0] for one in said] == [
        "epochs=, momentum=",
        "ceiling=",
    ]
    assert {one.filename for one in said} != {called.__code__.co_filename}


def test_groups_are_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert called(client=ClientTraining(False), limits=AuditLimits(3.0))[1:3] == (
            ClientTraining(train=False),
            AuditLimits(time_limit=3.0),
        )


def test_a_field_beside_its_group_is_refused() -> None:
    with pytest.raises(unsum.UnsumError, match="Give train= within client=, not beside it"):
        called(client=ClientTraining(), train=False)  # type: ignore[call-arg]


def test_a_name_that_is_none_gets_the_nearest() -> None:
    with pytest.raises(
        TypeError, match=r"called\(\) has no argument 'epoch'; did you mean 'epochs'\?"
    ):
        called(epoch=2)  # type: ignore[call-arg]


def test_no_two_groups_share_a_field_and_functions_take_few_arguments() -> None:
    names = [part.name for kind in GROUPS.values() for part in fields(kind)]
    assert len(names) == len(set(names))
    assert not set(names) & set(GROUPS)
    for function in (unsum.audit, unsum.sweep, unsum.doctor):
        assert len(signature(function).parameters) <= 17
        assert not set(names) & set(signature(function).parameters) - {"train", "inverse"}


def test_how_a_client_trains() -> None:
    assert ClientTraining().training is None
    assert ClientTraining(epochs=3).training == LocalTraining(0.01, 3, None, 0.0, 0.0, 3)
    assert ClientTraining(learning_rate=0.5, local_steps=4, epochs=2).training == LocalTraining(
        0.5, 4, None, 0.0, 0.0, 2
    )
    with pytest.raises(unsum.UnsumError, match="number of epochs"):
        _ = ClientTraining(epochs=0).training


def test_a_loss_of_ones_own_is_no_declared_one() -> None:
    def own(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).abs().mean()

    assert (ClientTraining(loss=own).own_loss, ClientTraining(loss=own).declared_loss) == (
        own,
        None,
    )
    assert (ClientTraining(loss="bce").own_loss, ClientTraining(loss="bce").declared_loss) == (
        None,
        "bce",
    )


def test_the_same_audit_in_both_forms() -> None:
    torch.manual_seed(0)
    model, data = nn.Linear(64, 20), (torch.randn(3, 64), torch.tensor([4, 4, 1]))
    new = unsum.audit(
        model,
        data,
        attacker=Attacker(batch_size_known=True),
        limits=AuditLimits(math.inf, ceiling=False),
    )
    with pytest.warns(DeprecationWarning, match="stand"):
        old = unsum.audit(model, data, batch_size_known=True, time_limit=math.inf, ceiling=False)
    assert new.leak.knowledge.batch_size == old.leak.knowledge.batch_size == 3
    assert new.leakages == old.leakages
    assert new.bound is old.bound is None
