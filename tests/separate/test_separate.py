from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from support.material import pictures
from support.progress import Heard
from unsum import Knowledge, Leak, UnsumError, capture, separate
from unsum.head import Head
from unsum.separate.method import SEPARATORS, relative_misfit
from unsum.separate.options import options_of


def test_unknown_options_are_refused_with_those_there_are(net: nn.Sequential) -> None:
    update = capture(net, pictures(2), torch.tensor([0, 1]))
    with pytest.raises(
        UnsumError,
        match=r"'rgla' has no option 'step'; did you mean 'steps'.* Its options: objectives,",
    ):
        separate(net, update, "rgla", step=10)
    with pytest.raises(UnsumError, match="'fgla' takes no options; leave 'steps' out"):
        separate(net, update, "fgla", steps=10)


def test_options_are_read_from_the_signature() -> None:
    assert options_of(SEPARATORS["rgla"]) == [
        "objectives", "start", "start_logits", "steps", "rate", "constant_D", "weight_w",
        "weight_b", "weight_loss", "reference", "stop_below", "sample_every",
    ]  # fmt: skip
    assert options_of(SEPARATORS["exact"]) == []
    for entry in SEPARATORS:
        assert not {"labels", "batch_size", "device", "seed", "progress"} & set(
            options_of(entry.method)
        )


def test_progress_is_welcome_for_every_method(net: nn.Sequential) -> None:
    heard = Heard()
    leak = separate(net, capture(net, pictures(2), torch.tensor([0, 1])), "fgla", progress=heard)
    assert isinstance(leak, Leak)
    assert heard.steps == []


def test_what_was_granted_and_the_time_are_noted(net: nn.Sequential) -> None:
    leak = separate(net, capture(net, pictures(2), torch.tensor([0, 1])), "fgla", batch_size=2)
    assert leak.knowledge == Knowledge(batch_size=2)
    assert leak.seconds > 0


def test_a_misfit_in_blocks_is_the_misfit(
    monkeypatch: pytest.MonkeyPatch, net: nn.Sequential
) -> None:
    head = Head.of(net, capture(net, pictures(3), torch.tensor([0, 1, 2])))
    generator = torch.Generator().manual_seed(0)
    logits, features = (
        torch.randn(3, 40, generator=generator),
        torch.randn(3, 128, generator=generator),
    )
    targets = nn.functional.one_hot(torch.tensor([0, 1, 2]), 40)
    G = (logits.double().softmax(1) - targets) / 3
    expected = float(
        (G.T @ features.double() - head.grad_W.double()).norm() / head.grad_W.double().norm()
    )
    assert relative_misfit(head, logits, targets, features) == pytest.approx(expected, rel=1e-12)
    # 50 columns at a time, the last block smaller
    monkeypatch.setattr(sys.modules[Head.__module__], "BLOCK", 40 * 50)
    assert relative_misfit(head, logits, targets, features) == pytest.approx(expected, rel=1e-12)
