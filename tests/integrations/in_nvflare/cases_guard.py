"""The guard among NVFlare's filters, as its client runs them: task data first, then the result."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from networks import network, photos, trained
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.filter import ContentBlockedException, FilterChainType, FilterContextKey
from nvflare.apis.fl_context import FLContextManager

from unsum import UnsumError
from unsum.integrations.nvflare import LeakageGuard

RATE = 0.1


class Loud(DXOFilter):
    """Drowns the update in noise, as NVFlare's own privacy filters may."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def process_dxo(self, dxo, shareable, fl_ctx):  # noqa: ARG002 (NVFlare's)
        generator = np.random.default_rng(0)
        noise = {
            name: generator.normal(0, 1, value.shape).astype("f4")
            for name, value in dxo.data.items()
        }
        dxo.data = {
            name: value + noise[name] if value.dtype.kind == "f" else value
            for name, value in dxo.data.items()
        }
        return dxo


def arrays(state) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in state.items()}


def leave(filters, kind=DataKind.WEIGHTS, *, tell=True) -> dict[str, np.ndarray]:
    """A round of one client: what the server sent passes the filters of task data, the result those
    of results."""
    manager = FLContextManager(identity_name="site-1", job_id="job")
    before, after = arrays(network().state_dict()), arrays(trained(network(), *photos(), rate=RATE))
    if tell:
        incoming = LeakageGuard(network())
        incoming.set_prop(FilterContextKey.CHAIN_TYPE, FilterChainType.TASK_DATA_CHAIN)
        with manager.new_context() as context:
            same = incoming.process(
                DXO(DataKind.WEIGHTS, data=dict(before)).to_shareable(), context
            )
        assert all((from_shareable(same).data[name] == before[name]).all() for name in before)
    if kind == DataKind.WEIGHT_DIFF:
        after = {name: after[name] - before[name] for name in after}
    result = DXO(kind, data=after).to_shareable()
    for one in filters:
        one.set_prop(FilterContextKey.CHAIN_TYPE, FilterChainType.TASK_RESULT_CHAIN)
        # a context of its own: only what sticks comes through
        with manager.new_context() as context:
            result = one.process(result, context)
    return from_shareable(result).data


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_an_update_that_gives_its_batch_away_is_blocked(kind) -> None:
    with pytest.raises(ContentBlockedException, match=r"leakage of 1\.00, above the threshold"):
        leave([LeakageGuard(network(), learning_rate=RATE)], kind)


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_noise_is_added_in_the_form_that_the_result_had(kind) -> None:
    guard = LeakageGuard(network(), action="noise", attack="exact", learning_rate=RATE)
    data = leave([guard], kind)
    weight = data["7.weight"] - (
        0 if kind == DataKind.WEIGHT_DIFF else network()[7].weight.detach().numpy()
    )
    moved = trained(network(), *photos(), rate=RATE)["7.weight"] - network()[7].weight.detach()
    size = float(moved.square().mean().sqrt())
    assert isinstance(data["7.weight"], np.ndarray)
    assert 0.01 * size < float((torch.as_tensor(weight) - moved).std()) < 30 * size


def test_the_last_filter_sees_what_leaves() -> None:
    leave([Loud(), LeakageGuard(network(), attack="exact", learning_rate=RATE)])
    with pytest.raises(ContentBlockedException):
        leave([LeakageGuard(network(), attack="exact", learning_rate=RATE), Loud()])


def test_without_the_weights_that_came_in_nothing_leaves() -> None:
    with pytest.raises(UnsumError, match="add it to the filters of task data"):
        leave([LeakageGuard(network())], tell=False)


def test_a_model_given_by_name_needs_its_classes() -> None:
    LeakageGuard("mlp", classes=100)
    with pytest.raises(UnsumError, match="how many classes 'mlp' has"):
        LeakageGuard("mlp")
