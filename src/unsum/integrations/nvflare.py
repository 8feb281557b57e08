"""NVFlare: a filter that looks at a client's result before it leaves the site.

Two of its kind stand in a client's configuration: one among the filters of task data, where it
notes the weights that the server sent, and one as the **last** of the filters of task results,
behind those that clip or add noise, where it sees what leaves. What it refuses never leaves:
NVFlare answers with an error where a filter blocks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unsum.attack.options import AUTO
from unsum.errors import UnsumError
from unsum.integrations.guard import Action, Guard, WhenUnsure
from unsum.local_training import LocalTraining
from unsum.models import load_model

try:
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.dxo_filter import DXOFilter
    from nvflare.apis.filter import ContentBlockedException, FilterChainType, FilterContextKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
except ImportError as missing:
    raise UnsumError(
        "This needs NVFlare, which is not installed: pip install nvflare."
    ) from missing

__all__ = ["LeakageGuard"]

# The property of NVFlare's context that carries the weights from one place to the other.
_RECEIVED = "__unsum_received__"


class LeakageGuard(DXOFilter):
    """Judges results of the kinds WEIGHTS and WEIGHT_DIFF; the arguments are those of
    `unsum.integrations.guard.Guard`.

    Args:
        model: the module that is trained, or its name as `unsum.models.load_model` takes it (a
            configuration file holds names).
        classes: of a model given by its name.
        learning_rate, steps: of the client's training, where known; they make the attack stronger.
    """

    def __init__(
        self,
        model: nn.Module | str,
        threshold: float = 0.2,
        action: Action = "refuse",
        *,
        classes: int | None = None,
        learning_rate: float | None = None,
        steps: int | None = None,
        attack: str = AUTO,
        when_unsure: WhenUnsure = "refuse",
        budget_seconds: float = 30.0,
        train: bool = True,
        seed: int = 0,
    ) -> None:
        kinds = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]
        super().__init__(supported_data_kinds=kinds, data_kinds_to_filter=kinds)
        if isinstance(model, str) and classes is None:
            raise UnsumError(f"Say how many classes {model!r} has with classes=.")
        module = load_model(model, classes=classes or 1).model if isinstance(model, str) else model
        self._guard = Guard(
            module,
            threshold,
            action,
            attack=attack,
            training=LocalTraining(learning_rate, steps),
            when_unsure=when_unsure,
            budget_seconds=budget_seconds,
            train=train,
            seed=seed,
        )

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:  # noqa: ARG002 (NVFlare's)
        if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            received = {
                name: torch.as_tensor(value).detach().clone() for name, value in dxo.data.items()
            }
            fl_ctx.set_prop(_RECEIVED, received, private=True, sticky=True)
            return None
        sent = fl_ctx.get_prop(_RECEIVED)
        if sent is None:
            raise UnsumError(
                "The guard saw no weights come in; add it to the filters of task data, too."
            )
        own = {name: sent[name] for name in dxo.data if name in sent}
        leaving = {name: torch.as_tensor(value).detach() for name, value in dxo.data.items()}
        if dxo.data_kind == DataKind.WEIGHT_DIFF:
            leaving = {
                name: own[name] + value if name in own else value for name, value in leaving.items()
            }
        judged = self._guard.judge(own, leaving)
        if judged.weights is None:
            raise ContentBlockedException(
                f"unsum's leakage guard kept the update back: {judged.reason}"
            )
        if not judged.noise:
            return None
        self.log_info(
            fl_ctx, f"unsum: noise of {judged.noise:.1e} was added to the update. {judged.reason}"
        )
        dxo.data = {name: _as_sent(own, name, value, dxo) for name, value in judged.weights.items()}
        return dxo


def _as_sent(sent: dict[str, Tensor], name: str, value: Tensor, dxo: DXO) -> Any:
    """In the form it had: a difference or weights, an array or a tensor."""
    changed = value - sent[name] if dxo.data_kind == DataKind.WEIGHT_DIFF else value
    return changed if isinstance(dxo.data[name], Tensor) else changed.numpy()
