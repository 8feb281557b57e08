"""What NVFlare's server stores of a round is audited afterwards like Flower's."""

from __future__ import annotations

import pytest
from networks import network, photos, trained
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import FilterChainType, FilterContextKey
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.app_common.app_constant import AppConstants

from unsum.integrations.nvflare_store import StoreResults
from unsum.integrations.stored import replies
from unsum.local_training import LocalTraining

RATE = 0.1


def passes(store: StoreResults, chain: str, dxo: DXO, client: str, number: int) -> dict:
    """A message through the server's filter, as its runner hands it on."""
    store.set_prop(FilterContextKey.CHAIN_TYPE, chain)
    message = dxo.to_shareable()
    message.set_header(AppConstants.CURRENT_ROUND, number)
    peer = FLContext()
    peer.put(key="__identity_name__", value=client, private=False, sticky=False)
    with FLContextManager(identity_name="server", job_id="job").new_context() as context:
        context.set_peer_context(peer)
        return from_shareable(store.process(message, context)).data


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_a_round_is_stored_as_it_passes_and_gives_the_labels(tmp_path, kind) -> None:
    store, model = StoreResults(str(tmp_path / "seen")), network()
    before = {name: value.numpy() for name, value in model.state_dict().items()}
    for number in (0, 1):
        for place, client in enumerate(("site-1", "site-2")):
            after = {
                name: value.numpy()
                for name, value in trained(model, *photos(4 * place), rate=RATE).items()
            }
            result = (
                after
                if kind == DataKind.WEIGHTS
                else {name: after[name] - before[name] for name in after}
            )
            passes(
                store,
                FilterChainType.TASK_DATA_CHAIN,
                DXO(DataKind.WEIGHTS, data=dict(before)),
                client,
                number,
            )
            told = DXO(kind, data=dict(result), meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 1})
            out = passes(store, FilterChainType.TASK_RESULT_CHAIN, told, client, number)
            assert all((out[name] == result[name]).all() for name in result)  # nothing is changed
    found = list(replies(tmp_path / "seen"))
    assert [(one.round, one.client) for one in found] == [
        (1, "site-1"),
        (1, "site-2"),
        (2, "site-1"),
        (2, "site-2"),
    ]
    for place, one in enumerate(found[:2]):
        audited = one.audited(
            network(seed=5), LocalTraining(RATE), "exact", train=True, seed=0, time_limit=20
        ).finding
        assert audited.outcome == "audited", audited.reason
        assert audited.batch_size == 4
        labels = [label for label, count in audited.label_counts.items() for _ in range(count)]
        assert labels == sorted(photos(4 * place)[1].tolist())
