"""What a pass through the model shows about its head reaches the claim."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum import UnsumError


class Asserting(nn.Module):
    """A network with a data-dependent assertion, which tracing does not come through; the head was
    registered first.
    """

    def __init__(self, after: Callable[[Tensor], Tensor] = lambda z: z) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head, self.body = nn.Linear(32, 10), nn.Linear(16, 32)
        self.after = after

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x))

    def forward(self, x: Tensor) -> Tensor:
        assert bool(x.isfinite().all()), "not a number"
        return self.after(self.head(self.features(x)))


class Halved(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / 2)


class TwoInputs(Asserting):
    """Takes nothing that is tried."""

    def forward(self, x: Tensor, _more: Tensor | None = None) -> Tensor:
        if float(x.sum()) < 1e4:
            raise ValueError
        return super().forward(x)


def _client(model: nn.Module, shift: float = 0.0) -> tuple[Tensor, unsum.Update]:
    x = shift + torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    return x, unsum.capture(model, x, torch.tensor([4, 4, 1]))


@pytest.mark.parametrize(
    "wrap", [lambda m: m, nn.DataParallel, torch.compile], ids=["plain", "parallel", "compiled"]
)
def test_an_untraceable_model_is_attacked_and_its_certificate_holds(
    wrap: Callable[[nn.Module], nn.Module],
) -> None:
    """The last layer by registration is another one: nothing could be separated."""
    own = Asserting()
    x, update = _client(own)
    model = wrap(own)
    prefix = next(iter(dict(model.named_parameters()))).partition("head")[0]
    named = unsum.Update({f"{prefix}{name}": tensor for name, tensor in update.gradients.items()})
    leak = unsum.separate(model, named)
    assert leak.exact
    assert unsum.score(leak, features=own.features(x).detach())["worst_feature_error"] < 1e-3


@pytest.mark.parametrize("after", [lambda z: 10 * z, lambda z: z / 4], ids=["10", "a quarter"])
def test_scaled_logits_behind_an_assertion_are_refused(after: Callable[[Tensor], Tensor]) -> None:
    """Features were off by 900 and by 75 % with a predicted error of 1e-7."""
    model = Asserting(after)
    for method in ("exact", "adaptive", "fgla"):
        with pytest.raises(UnsumError, match=r"output of none of its nn\.Linear layers"):
            unsum.separate(model, _client(model)[1], method)


def test_a_layer_that_halves_its_input_is_refused() -> None:
    """Features were off by 50 %."""
    model = Asserting()
    model.head = Halved(32, 10)
    with pytest.raises(
        UnsumError, match=r"'head' is a Halved, which does not compute what an nn\.Linear"
    ):
        unsum.separate(model, _client(model)[1])


class HalvedInTrainMode(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / 2 if self.training else x)


class Clipped(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp(max=6))


@pytest.mark.parametrize(("kind", "size"), [(HalvedInTrainMode, 1.0), (Clipped, 40.0)])
def test_a_head_that_is_plain_in_eval_mode_or_for_small_inputs_is_refused(
    kind: type[nn.Linear], size: float
) -> None:
    """The client trained in train mode, on larger inputs: features were off by half and by a
    third."""
    model = Asserting()
    model.head = kind(32, 10)
    x = size * torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    update = unsum.capture(model, x, torch.tensor([4, 4, 1]), train=True)
    with torch.no_grad():
        read = model.features(x)
    assert size == 1 or float(read.max()) > 6
    with pytest.raises(
        UnsumError, match=rf"'head' is a {kind.__name__}, which does not compute what an nn\.Linear"
    ):
        unsum.separate(model.eval(), update)


def test_nothing_is_claimed_where_no_pass_can_be_made() -> None:
    model = TwoInputs()
    del model.head  # registered last, so that the guess is right
    model.head = nn.Linear(32, 10)
    _, update = _client(model, shift=1e4)
    leak = unsum.separate(model, update)
    assert not leak.exact
    assert "No input was found that TwoInputs takes" in leak.notes[0]


def test_normalized_logits_are_certain_under_softmax_alone() -> None:
    model = Asserting(lambda z: z.log_softmax(1))
    x = torch.rand(3, 16)
    assert unsum.separate(model, unsum.capture(model, x, torch.tensor([4, 4, 1]))).exact
    rows = torch.rand(3, 10).softmax(1)
    leak = unsum.separate(model, unsum.capture(model, x, rows, loss="mse"), loss="mse")
    assert not leak.exact
    assert any("normalizes its logits" in note for note in leak.notes)


def test_a_weight_that_the_body_uses_too_is_no_certain_head() -> None:
    class Tied(Asserting):
        def features(self, x: Tensor) -> Tensor:
            read = super().features(x)
            return read + read[:, :10] @ self.head.weight

    leak = unsum.separate(model := Tied(), _client(model)[1])
    assert not leak.exact
    assert any("used elsewhere in the model" in note for note in leak.notes)


@pytest.mark.long
def test_many_updates_at_once_ask_as_well() -> None:
    class InTrainMode(Asserting):
        def forward(self, x: Tensor) -> Tensor:
            z = super().forward(x)
            return 2 * z if self.training else z

    for model, certain in ((InTrainMode(), False), (Asserting(), True)):
        x, y = torch.rand(3, 16), torch.tensor([4, 4, 1])
        updates = [unsum.capture(model, x, y) for _ in range(2)]
        leaks = unsum.attack_many(model, updates, processes=1)
        assert [leak.exact for leak in leaks] == [certain] * 2
        assert unsum.separate_rounds([(model, update) for update in updates]).exact is certain
