"""NVFlare: a filter of the server's that stores what it sends and what comes back, for `unsum audit
--flower-run`.

It stands twice in the server's configuration: among the filters of task data, which leave the
server, and as the **first** of the filters of task results, which come in, before others change
them. Nothing is changed by it.
"""

from __future__ import annotations

from pathlib import Path

import torch

from unsum.errors import UnsumError
from unsum.integrations.stored import store_back, store_sent

try:
    from nvflare.apis.dxo import DXO, DataKind, MetaKey
    from nvflare.apis.dxo_filter import DXOFilter
    from nvflare.apis.filter import FilterChainType, FilterContextKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.app_constant import AppConstants
except ImportError as missing:
    raise UnsumError(
        "This needs NVFlare, which is not installed: pip install nvflare."
    ) from missing

__all__ = ["StoreResults"]


class StoreResults(DXOFilter):
    """Stores weights that go out and results of the kinds WEIGHTS and WEIGHT_DIFF that come in,
    under `folder`.

    The rounds are NVFlare's own, counted from 1. The files hold the clients' updates: keep them as
    private as these.
    """

    def __init__(self, folder: str) -> None:
        kinds = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]
        super().__init__(supported_data_kinds=kinds, data_kinds_to_filter=kinds)
        self.folder = Path(folder).absolute()

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        number = 1 + int(
            shareable.get_header(AppConstants.CURRENT_ROUND)
            or fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
            or 0
        )
        peer = fl_ctx.get_peer_context()
        client = "unknown" if peer is None else peer.get_identity_name()
        values = {name: torch.as_tensor(value).detach().cpu() for name, value in dxo.data.items()}
        steps = dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND)
        told = {
            "steps": int(steps) if steps else None,
            "change": dxo.data_kind == DataKind.WEIGHT_DIFF,
        }
        try:
            if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
                store_sent(self.folder, number, values, {}, client)
            else:
                store_back(self.folder, number, values, client, None, **told)
        except OSError as error:  # a full disk never breaks a round
            self.log_warning(fl_ctx, f"unsum: an update was not stored. {error}")
        return None
