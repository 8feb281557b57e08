from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unsum import UnsumError, capture, peel
from unsum.head import trace
from unsum.network.chain import find_chain
from unsum.network.flow import changes_its_input


def _mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 20))


class InTrainMode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(12, 64), nn.Linear(64, 20)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.body(x))
        return self.head(z / 2 if self.training else z)


def test_a_data_flow_that_passes_confirm_is_taken() -> None:
    model = _mlp()
    assert [node.op for node in trace(model).nodes].count("call_module") == 3
    assert trace(InTrainMode().eval()) is not None


def test_a_branch_that_only_train_mode_takes_is_seen() -> None:
    with pytest.raises(UnsumError, match="something else than tracing shows"):
        trace(InTrainMode().train())


def test_a_hook_on_the_input_ends_the_chain_above_it() -> None:
    model = _mlp()
    model.register_forward_pre_hook(lambda _, inputs: (inputs[0] / 2,))
    assert changes_its_input(model)
    update = capture(model, torch.randn(3, 12), torch.tensor([4, 4, 1]))
    assert (
        find_chain(model, update).stop == "a hook changes the input before the first layer reads it"
    )


@pytest.mark.parametrize("place", [0, 1])
def test_a_hooked_layer_is_not_peeled(place: int) -> None:
    """Halved by a hook, the inputs that peeling gave were twice as large, and each was called
    exact.
    """
    model = _mlp()
    model[place].register_forward_pre_hook(lambda _, inputs: (inputs[0] / 2,))
    inputs = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    update = capture(model, inputs, torch.tensor([4, 4, 1]))
    assert not peel(model, update).complete
    chain = find_chain(model, update)
    assert len(chain.steps) == 1
    assert chain.stop is not None
