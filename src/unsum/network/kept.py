"""What was found out about a model by passes, kept while the model stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from unsum.network.layers import HOOKS
from unsum.running.sharing import version

Value = TypeVar("Value")
_KEPT: WeakKeyDictionary[nn.Module, dict[str, tuple[Hashable, Any]]] = WeakKeyDictionary()
# numbers of a tensor that may scale something, as a temperature does: their changes count
_FEW = 16


def while_unchanged(model: nn.Module, name: str, make: Callable[[], Value]) -> Value:
    """What `make()` gave for this model as it is: its layers, their hooks, settings and small
    tensors.

    The value must not hold `model`, or that would never be let go.
    """
    kept, now = _KEPT.setdefault(model, {}), _state(model)
    if name not in kept or kept[name][0] != now:
        found = make()
        kept[name] = _state(model), found  # small tensors count passes, too
    value: Value = kept[name][1]
    return value


def _state(model: nn.Module) -> Hashable:
    return tuple(_state_of(module) for module in model.modules())


def _state_of(module: nn.Module) -> Hashable:
    plain = (int, float, str, tuple, type(None))
    own = tuple(
        (name, value if isinstance(value, plain) else id(value))
        for name, value in vars(module).items()
        if name != "training" and (isinstance(value, plain) or callable(value))
    )
    hooks = tuple(id(hook) for name in HOOKS for hook in getattr(module, name, {}).values())
    tensors = [
        t for held in (module._parameters, module._buffers) for t in held.values() if t is not None
    ]
    # whose buffers change in every pass of a client
    counters = isinstance(module, nn.modules.batchnorm._NormBase)
    small = tuple(version(t) for t in tensors if t.numel() <= _FEW and not counters)
    return id(module), id(type(module)), own, hooks, tuple(id(t) for t in tensors), small
