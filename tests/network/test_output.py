from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from unsum import UnsumError
from unsum.head import find_head
from unsum.network.output import check_output, writer_of_output


class Wrapped(nn.Module):
    """A network with something after its last layer, which tracing may not come through."""

    def __init__(
        self, after: Callable[[Tensor], Tensor] = lambda z: z, *, traceable: bool = False
    ) -> None:
        super().__init__()
        # in this order: registration misleads
        self.head, self.body = nn.Linear(8, 5), nn.Linear(12, 8)
        self.after, self.traceable = after, traceable

    def forward(self, x: Tensor) -> Tensor:
        if not self.traceable:
            assert float(x.sum()) == float(x.sum()), "not a number"
        return self.after(self.head(torch.relu(self.body(x))))


class Residual(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x[:, :5]


class InTrainMode(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        return 2 * z if self.training else z


class Twice(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        self.head(self.body(x))
        return super().forward(x)


class Tied(nn.Module):
    """The head's weight reads the input, too."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(x @ self.head.weight))


class Unusual(nn.Module):
    """Takes nothing that is tried."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if float(x.sum()) > 0:
            x = -x
        return self.head(x + y)


def _soft_cap(z: Tensor) -> Tensor:
    return 30 * torch.tanh(z / 30)


@pytest.mark.parametrize("traceable", [True, False])
@pytest.mark.parametrize(
    "after",
    [
        lambda z: 10 * z,
        lambda z: z / 4,
        lambda z: z.mul(1.001),
        _soft_cap,
        lambda z: z.clamp(-5, 5),
        lambda z: z.clamp(-500, 500),
        lambda z: z.softmax(1),
    ],
    ids=["10", "a quarter", "1.001", "soft cap", "clamp", "far clamp", "softmax"],
)
def test_logits_that_are_no_layers_output_are_refused(
    after: Callable[[Tensor], Tensor], traceable: bool
) -> None:
    with pytest.raises(UnsumError, match="has no linear head"):
        find_head(Wrapped(after, traceable=traceable))


def test_a_head_of_zeros_hides_no_factor() -> None:
    model = Wrapped(lambda z: 10 * z)
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    assert "scales, adds to or bends" in check_output(model, "head", model.head).departs


@pytest.mark.parametrize(
    "model", [Residual(), Residual(traceable=True), Wrapped(lambda z: z.mul_(4))]
)
def test_a_residual_or_a_change_in_place_is_refused(model: nn.Module) -> None:
    with pytest.raises(UnsumError, match="has no linear head"):
        find_head(model)


def test_a_hook_on_the_whole_model_is_seen() -> None:
    model = Wrapped(traceable=True)
    assert find_head(model)[0] == "head"
    model.register_forward_hook(lambda _, _inputs, output: output / 4)
    with pytest.raises(
        UnsumError,
        match="'head' comes last, but the model's output is not what its last layer writes",
    ):
        find_head(model)


def test_a_change_of_the_models_settings_is_seen() -> None:
    class Tempered(Wrapped):
        temperature = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / self.temperature

    model = Tempered()
    assert find_head(model)[0] == "head"
    model.temperature = 2.0
    with pytest.raises(UnsumError, match="has no linear head"):
        find_head(model)


def test_an_untraceable_model_is_run_and_its_head_found() -> None:
    model = Wrapped()
    assert find_head(model)[0] == writer_of_output(model, nn.Linear) == "head"
    assert check_output(model, "head", model.head).doubts == []


def test_log_softmax_is_seen_as_a_shift() -> None:
    model = Wrapped(lambda z: z.log_softmax(1))
    check = check_output(model, "head", model.head)
    assert (check.departs, check.shifted) == ("", True)
    assert not check_output(Wrapped(), "head", model.head).shifted


def test_train_mode_is_looked_at_as_well() -> None:
    model = InTrainMode().eval()
    check = check_output(model, "head", model.head)
    assert check.departs == ""
    assert "In train mode" in check.doubts[0]


def test_a_head_that_is_called_twice_is_refused() -> None:
    model = Twice()
    assert (
        check_output(model, "head", model.head).departs
        == "the last layer is called 2 times in one pass"
    )


def test_a_weight_with_a_second_part_in_the_output_is_seen() -> None:
    model = Tied()
    assert check_output(model, "head", model.head).shared
    own = Wrapped()
    assert not check_output(own, "head", own.head).shared


def test_where_no_input_is_found_there_is_a_doubt() -> None:
    model = Unusual()
    check = check_output(model, "head", model.head)
    assert check.departs == ""
    assert "No input was found that Unusual takes" in check.doubts[0]
    assert find_head(model)[0] == "head"


@pytest.mark.parametrize(
    ("wrap", "name"),
    [(nn.DataParallel, "module.head"), (torch.compile, "_orig_mod.head")],
    ids=["parallel", "compiled"],
)
def test_wrapped_models_keep_their_head(wrap: Callable[[nn.Module], nn.Module], name: str) -> None:
    assert find_head(wrap(Wrapped()))[0] == name


def test_a_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    model[1].eval()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    drawn = torch.get_rng_state()
    find_head(model)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert [module.training for module in model] == [True, False, True, True]
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
