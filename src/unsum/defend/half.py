"""Transport in sixteen bits: the update is cast down to be sent, and back on arrival."""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.defend.defense import DEFENSES, Switch, TensorDefense


class _Transport(Switch, TensorDefense):
    dtype: torch.dtype

    def changed(self, gradient: Tensor) -> Tensor:
        return gradient.to(self.dtype).to(gradient.dtype)


@DEFENSES.register(
    "float16", summary="send in half precision: 11 significant bits, nothing below 3e-8"
)
class Float16(_Transport):
    """Relative error at most 2⁻¹¹ between 6e-5 and 65 504; smaller entries lose digits, larger ones
    become infinite.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 1e-9])})
        >>> unsum.Float16()(update).gradients["w"]
        tensor([ 3., -4.,  0.])
    """

    dtype = torch.float16


@DEFENSES.register("bfloat16", summary="send in bfloat16: 8 significant bits, the range of float32")
class BFloat16(_Transport):
    """Relative error at most 2⁻⁸ over the whole range of float32.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.1])})
        >>> unsum.BFloat16()(update).gradients["w"]
        tensor([ 3.0000, -4.0000,  0.1001])
    """

    dtype = torch.bfloat16
