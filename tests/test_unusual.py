"""What users bring that no attack is made for gets one sentence, or an answer."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum import UnsumError
from unsum.attack.case import Case
from unsum.attack.options import AttackOptions
from unsum.attack.rows import _positions
from unsum.audit.gate import check_proof
from unsum.errors import needed
from unsum.invert.layout import feature_layout
from unsum.models.client_batches import ClientFeatures
from unsum.models.language import looks_ahead, vocabulary_of
from unsum.running.progress import SILENT


def _network(norm: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 16), nn.Identity() if norm is None else norm, nn.ReLU(), nn.Linear(16, 5)
    )


class Language(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mix, self.head = (
            nn.Embedding(vocabulary, 16),
            nn.Linear(16, 16),
            nn.Linear(16, vocabulary),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(tokens).cumsum(1))))


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_of_another_precision_than_its_inputs(precision: torch.dtype) -> None:
    x, y = torch.rand(2, 12), torch.tensor([1, 2])
    said = str(precision).removeprefix("torch.")
    with pytest.raises(
        UnsumError,
        match=f"computes in {said} and its inputs are float32; bring both to one precision",
    ):
        unsum.capture(_network().to(precision), x, y)
    assert (
        unsum.capture(_network().to(precision), x.to(precision), y).gradients["0.bias"].dtype
        == precision
    )


def test_batch_norm_of_one_sample() -> None:
    model, one = _network(nn.BatchNorm1d(16)), (torch.rand(1, 12), torch.tensor([1]))
    for play in (unsum.capture, unsum.audit):
        with pytest.raises(UnsumError, match="BatchNorm in train mode needs more than one value"):
            play(model, one) if play is unsum.audit else play(model, *one)
    with pytest.raises(UnsumError, match="BatchNorm in train mode"):
        unsum.audit(model, (torch.rand(2, 12), torch.tensor([1, 2])), local_steps=2)
    assert unsum.capture(model, *one, train=False).gradients


@pytest.mark.parametrize("seed", [2**63, 2**70, -(2**64)])
def test_a_seed_that_no_generator_takes(seed: int) -> None:
    model, data = _network(), (torch.rand(2, 12), torch.tensor([1, 2]))
    update = unsum.capture(model, *data)
    for ask in (
        lambda: unsum.audit(model, data, seed=seed),
        lambda: unsum.attack(model, update, seed=seed),
        lambda: unsum.separate(model, update, seed=seed),
    ):
        with pytest.raises(UnsumError, match="The seed must be a whole number that 64 bits hold"):
            ask()


def test_a_vocabulary_of_two() -> None:
    model = Language(2)
    assert vocabulary_of(model) == 2
    assert not looks_ahead(model)
    tokens = torch.tensor([[0, 1, 1, 0]])
    audit = unsum.audit(model, tokens, time_limit=10)
    assert audit.verdict.level


def test_who_is_no_language_model_has_no_vocabulary() -> None:
    with pytest.raises(UnsumError, match="Sequential is no language model"):
        vocabulary_of(_network())


def test_where_the_text_was_refused_positions_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended in an AssertionError, as peft's models had it."""
    model = Language(9)
    tokens = torch.tensor([[1, 2, 3]])
    logits = model(tokens)[:, :-1].flatten(0, 1)
    loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    update = unsum.Update(dict(zip(dict(model.named_parameters()), gradients, strict=True)))
    case = Case(model, update, AttackOptions(device=None), SILENT)
    assert case.best is None
    found = _positions(case)
    assert found is None or found.exact
    with pytest.raises(UnsumError, match="No attack before this one"):
        _ = case.answer

    monkeypatch.setattr(importlib.import_module("unsum.attack.case"), "separate", _refusing_text)
    leak = unsum.attack(model, update, time_limit=10)
    assert [one.method for one in leak.tried][:2] == ["text", "exact"]


def _refusing_text(
    model: nn.Module, update: unsum.Update, method: str, **how: object
) -> unsum.Leak:
    if method == "text":
        raise UnsumError("No text is read here.")
    return unsum.separate(model, update, method, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("cell", ["nan", "inf", "-inf"])
def test_columns_with_cells_that_are_no_numbers(tmp_path: Path, cell: str) -> None:
    lines = [f"{i},{cell if i % 3 == 0 else i * 0.5},{cell},{i % 2}" for i in range(40)]
    (tmp_path / "some.csv").write_text("\n".join(["a,b,c,y", *lines]))
    for columns in (None, "b=number", "b=number,c=number"):
        audit = unsum.audit(
            "default", tmp_path / "some.csv", target="y", columns=columns, time_limit=5, batch=2
        )
        assert audit.verdict.level


def test_a_column_whose_squares_overflow(tmp_path: Path) -> None:
    lines = [f"{i},{i}e300,{i % 2}" for i in range(40)]
    (tmp_path / "some.csv").write_text("\n".join(["a,b,y", *lines]))
    with pytest.raises(
        UnsumError, match=r"'b' of 'some\.csv' holds numbers whose squares no float holds"
    ):
        unsum.audit("default", tmp_path / "some.csv", target="y")


def test_a_layer_that_the_model_never_asks() -> None:
    """It ended in an AssertionError, when an inverse was to be trained for it."""

    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.spare, self.head = (
                nn.Conv2d(3, 4, 3, 2),
                nn.Conv2d(3, 4, 3),
                nn.Linear(4 * 49, 5),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(x).relu().flatten(1))

    torch.manual_seed(0)
    assert feature_layout(Spare(), 16, "conv").shape
    with pytest.raises(
        UnsumError,
        match="does not ask this layer for anything; name one that its forward pass goes",
    ):
        feature_layout(Spare(), 16, "spare")
    with pytest.raises(UnsumError, match="does not ask this layer for anything"):
        ClientFeatures(Spare(), "spare")(torch.rand(2, 3, 16, 16), None)


def test_what_is_missing_is_a_sentence() -> None:
    assert needed(0, "The number") == 0  # which is there
    with pytest.raises(
        UnsumError, match="The bias gradient is missing, and this cannot be done without"
    ):
        needed(None, "The bias gradient")


def test_labels_of_a_text_that_no_column_uses() -> None:
    """Its least squares ended in torch's error of a singular matrix."""
    model, tokens = Language(9), torch.tensor([[1, 2, 3]])
    loss = nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    update = unsum.Update(dict(zip(dict(model.named_parameters()), gradients, strict=True)))
    leak = unsum.attack(model, update, "crowded", labels=torch.tensor([1, 0]), time_limit=5)
    assert not leak.exact


@pytest.mark.parametrize("level", [0.0, -0.1, 1.0, 7.0])
def test_a_level_that_no_ceiling_is_below(level: float) -> None:
    with pytest.raises(UnsumError, match="--prove-below takes a leakage from above 0 to below 1"):
        check_proof(level)
    check_proof(0.2)
