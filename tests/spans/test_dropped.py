"""Dropout that is on: samples are found with their masks; and what is said where they are not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.dense import batch, partners
from unsum import UnsumError
from unsum.spans import method


def dropping(
    p: float, *, hidden: int = 2, m: int = 128, bias: bool = True, first: bool = False
) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Dropout(p)] if first else []
    for n in (40, *[m] * (hidden - 1)):
        layers += [nn.Linear(n, m, bias=bias), nn.ReLU(), nn.Dropout(p)]
    return nn.Sequential(*layers, nn.Linear(m, 3, bias=bias))


def sent(model: nn.Sequential, x: Tensor, y: Tensor) -> tuple[unsum.Update, list[Tensor]]:
    """A client's update, and what its dense layers read, under the same dropout."""
    torch.manual_seed(7)
    update = unsum.capture(model, x, y)
    torch.manual_seed(7)
    read: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _m, given, _o: read.append(given[0].detach()))
        for layer in model
        if isinstance(layer, nn.Linear)
    ]
    model(x)
    for hook in hooks:
        hook.remove()
    return update, read


@pytest.mark.parametrize(("p", "hidden", "B"), [(0.5, 2, 10), (0.1, 2, 24), (0.3, 3, 10)])
def test_samples_and_masks_come_back_together(p: float, hidden: int, B: int) -> None:
    model = dropping(p, hidden=hidden)
    x, y = batch(B, 40, 3)
    update, read = sent(model, x, y)
    leak = unsum.separate(model, update, "spans", batch_size=B)
    which, errors = partners(leak, x)
    assert sorted(which.tolist()) == list(range(B))
    assert float(errors.max()) < 1e-4
    assert leak.labels[which].tolist() == y.tolist()
    # with the zeros that dropout made
    assert torch.allclose(leak.features[which], read[-1], atol=1e-4)
    assert leak.exact, leak.notes
    assert leak.inputs is not None


def test_inputs_that_were_dropped_are_what_comes_back() -> None:
    model = dropping(0.5, first=True)
    x, y = batch(8, 40, 3)
    update, read = sent(model, x, y)
    leak = unsum.separate(model, update, "spans", batch_size=8)
    which, errors = partners(leak, read[0])
    assert sorted(which.tolist()) == list(range(8))
    assert float(errors.max()) < 1e-4
    assert leak.exact, leak.notes
    assert leak.inputs is None  # the model's own inputs are not known where dropout fell on them


def test_dropout_on_the_inputs_alone_needs_no_masks() -> None:
    model = nn.Sequential(
        *[layer for i, layer in enumerate(dropping(0.5, first=True)) if i not in (3, 6)]
    )
    x, y = batch(8, 40, 3)
    update, read = sent(model, x, y)
    leak = unsum.separate(model, update, "spans", batch_size=8)
    which, errors = partners(leak, read[0])
    assert sorted(which.tolist()) == list(range(8))
    assert float(errors.max()) < 1e-4
    assert leak.inputs is None


def test_wrong_masks_are_never_vouched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dropping(0.5)
    x, y = batch(8, 40, 3)
    update, _ = sent(model, x, y)
    assert unsum.separate(model, update, "spans", batch_size=8).exact
    monkeypatch.setattr(method, "masked_steps", lambda steps, *_: steps)
    leak = unsum.separate(model, update, "spans", batch_size=8)
    assert not leak.exact


def test_too_many_samples_are_no_reassurance() -> None:
    model = dropping(0.5, m=64)
    x, y = batch(22, 40, 3)
    leak = unsum.separate(model, sent(model, x, y)[0], "spans", batch_size=22)
    assert not leak.exact
    assert leak.batch_size == 0
    assert "no sign that nothing leaks" in leak.notes[0]


def test_what_masks_cannot_be_read_of_is_refused() -> None:
    x, y = batch(6, 40, 3)
    bare = dropping(0.5, bias=False)
    with pytest.raises(UnsumError, match="three dense layers with biases"):
        unsum.separate(bare, sent(bare, x, y)[0], "spans")
    model = dropping(0.5)
    change = unsum.capture_local(model, x, y, learning_rate=0.1, batch_size=2)
    change = change.of_training(
        unsum.LocalTraining(learning_rate=0.1, steps=3), dict(model.named_parameters())
    )
    with pytest.raises(UnsumError, match="one step through dropout"):
        unsum.separate(model, change, "spans")


def test_the_model_stays_in_its_mode() -> None:
    model = dropping(0.5)
    x, y = batch(6, 40, 3)
    unsum.separate(model, sent(model, x, y)[0], "spans")
    assert all(module.training for module in model.modules())
