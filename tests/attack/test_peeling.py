"""Faults of a peeler that nobody foresaw: the attack and the audit keep what they have, and a note
names the fault."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

import unsum
from support.residual_nets import Narrow, client
from unsum.attack.peeling import peeled_or_refused
from unsum.attack.pictures import walked_down
from unsum.leak import Leak
from unsum.network.chain import Shape
from unsum.peel import PEELERS, Peeled

FAULTS = [
    AttributeError("'Walk' object has no attribute 'entered'"),
    torch.linalg.LinAlgError("eigh: failed to converge"),
]


def break_peeler(monkeypatch: pytest.MonkeyPatch, name: str, fault: Exception) -> list[str]:
    """Every call raises the fault; the names of the peelers that were called."""
    called: list[str] = []

    def broken(
        model: nn.Module, update: unsum.Update, leak: Leak | None, *, shape: Shape | None, seed: int
    ) -> Peeled:
        called.append(name)
        raise fault

    (entry,) = (one for one in PEELERS if one.name == name)
    monkeypatch.setitem(PEELERS._entries, name, replace(entry, method=broken))
    return called


def dense() -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(0)
    return (
        nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 20)),
        torch.randn(3, 12),
        torch.tensor([4, 4, 1]),
    )


def named(notes: list[str], fault: Exception) -> bool:
    return any(
        "broke off by a fault of its own" in note and type(fault).__name__ in note for note in notes
    )


def test_without_a_fault_the_inputs_are_peeled() -> None:
    model, x, y = dense()
    leak = unsum.attack(model, unsum.capture(model, x, y))
    assert leak.inputs is not None
    assert bool(leak.inputs_exact.all())
    assert float(torch.cdist(x.double(), leak.inputs.double()).amin(1).max()) < 1e-3


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_an_attack_keeps_the_head_s_answer(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    model, x, y = dense()
    called = break_peeler(monkeypatch, "layers", fault)
    leak = unsum.attack(model, unsum.capture(model, x, y))
    assert called == ["layers"]
    assert leak.exact
    assert sorted(leak.labels.tolist()) == [1, 4, 4]
    assert leak.inputs is None
    assert named(leak.notes, fault)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_an_audit_does_not_end_there(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    model, x, y = dense()
    called = break_peeler(monkeypatch, "layers", fault)
    audit = unsum.audit(model, (x, y), limits=unsum.AuditLimits(compare=False))
    assert called
    assert named(audit.leak.notes, fault)
    assert audit.leak.exact
    assert len(audit.leakages) == 3


def test_the_walk_below_the_maps_is_held_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Narrow(BasicBlock, [16, 32, 64], pooled=False)
    _, update = client(model, 2)
    leak = unsum.separate(model, update, batch_size=2)
    leak = replace(leak, inner={"layers.2.1.conv2": torch.rand(2, 64, 4, 4)})
    called = break_peeler(monkeypatch, "residual", FAULTS[0])
    walked = walked_down(model, update, leak, 0)
    assert called == ["residual"]
    assert named(walked.notes, FAULTS[0])
    assert walked.inner.keys() == leak.inner.keys()


def test_a_lack_of_memory_and_a_refusal_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = dense()
    update = unsum.capture(model, x, y)
    leak = unsum.separate(model, update)
    for fault in (
        MemoryError("no more"),
        torch.OutOfMemoryError("no more"),
        unsum.UnsumError("Not this one."),
    ):
        break_peeler(monkeypatch, "layers", fault)
        with pytest.raises(type(fault)) as raised:
            peeled_or_refused(model, update, leak, "layers")
        assert raised.value is fault
