from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unsum.network.layers import departure


class Halved(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / 2)


class Documented(nn.Linear):
    """A subclass that computes what its parent does."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias


class Rescaled(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 1.01 * super().forward(x)


class ChannelsLast(nn.LayerNorm):
    """As ConvNeXt has it: it norms another axis than its parent."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class TrainedAnew(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return (2 if self.training else 1) * super().forward(x)


class HalvedInTrainMode(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / 2 if self.training else x)


class Clipped(nn.Linear):
    """Plain for all inputs up to a hundred."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp(-100, 100))


class DeadZone(nn.Linear):
    """Plain but for inputs below a hundredth."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * (x.abs() > 1e-2))


class ClippedLeaky(nn.LeakyReLU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(max=7)


class Conv1D(nn.Module):
    """Named as Hugging Face's."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4))
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * (x @ self.weight) + self.bias


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(5, 3),
        nn.Conv2d(2, 3, 3, stride=2, groups=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        Documented(5, 3),
        Conv1D(1.0),
        nn.Flatten(),
    ],
)
def test_a_layer_that_computes_what_its_class_promises_is_taken(layer: nn.Module) -> None:
    assert departure(layer) is None


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (Halved(5, 3), "Linear"),
        (Rescaled(2, 3, 3), "Conv2d"),
        (ChannelsLast(4), "LayerNorm"),
        (TrainedAnew(3), "BatchNorm2d"),
        (Conv1D(0.5), "Transposed"),
        (HalvedInTrainMode(5, 3).eval(), "Linear"),
        (Clipped(5, 3), "Linear"),
        (DeadZone(5, 3), "Linear"),
        (ClippedLeaky(), "LeakyReLU"),
    ],
)
def test_a_layer_that_computes_something_else_is_named(layer: nn.Module, kind: str) -> None:
    said = departure(layer)
    assert said == f"is a {type(layer).__name__}, which does not compute what an nn.{kind} computes"


def test_hooks_that_change_what_a_layer_reads_writes_or_sends_are_seen() -> None:
    reads, writes, sends, gives = (nn.Linear(5, 3) for _ in range(4))
    reads.register_forward_pre_hook(lambda _, inputs: (inputs[0] / 2,))
    writes.register_forward_hook(lambda _, _inputs, output: 2 * output)
    sends.weight.register_hook(lambda gradient: gradient / 2)
    gives.register_full_backward_hook(lambda _, gradients, _above: (gradients[0] / 2,))
    for layer in (reads, writes, sends, gives):
        assert "Linear with hooks" in (departure(layer) or "")


def test_hooks_that_only_look_are_allowed() -> None:
    layer, seen = nn.Linear(5, 3), []
    layer.register_forward_hook(lambda _, inputs, _output: seen.append(inputs[0].shape))
    assert departure(layer) is None


def test_a_hook_on_a_layer_that_lets_values_pass_is_a_departure() -> None:
    layer = nn.Identity()
    layer.register_forward_hook(lambda _, _inputs, output: 2 * output)
    assert departure(layer) == "is a Identity with hooks, which may change what passes"


@pytest.mark.parametrize(
    "wrap", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm]
)
def test_a_weight_that_is_computed_anew_is_a_departure(wrap: object) -> None:
    layer = wrap(nn.Linear(5, 3))  # type: ignore[operator]
    assert "computes its weight anew" in (departure(layer) or "")


def test_an_overridden_forward_of_one_layer_is_seen() -> None:
    layer = nn.Linear(5, 3)
    layer.forward = lambda x: x[:, :3]  # type: ignore[method-assign]
    assert "does not compute" in (departure(layer) or "")


def test_a_layer_is_left_as_it_was() -> None:
    norm = TrainedAnew(3).eval()
    norm.weight.requires_grad_(False)
    before = torch.get_rng_state()
    departure(norm)
    assert torch.equal(norm.running_mean, torch.zeros(3))
    assert (norm.training, norm.weight.requires_grad) == (False, False)
    assert torch.equal(torch.get_rng_state(), before)
