"""signSGD (Bernstein et al. 2018): one bit per entry.

Plain, as published, every entry is its sign, and nothing is left of the update's size.
`scaled=True` multiplies each tensor's signs by its mean magnitude ‖g‖₁/n, as signSGD with error
feedback does (Karimireddy et al. 2019).
"""

from __future__ import annotations

from torch import Tensor

from unsum.defend.defense import DEFENSES, Switch, TensorDefense


@DEFENSES.register("sign", summary="send the sign of every entry and nothing else")
class Sign(Switch, TensorDefense):
    """sign(g): −1, 0 or 1; with `scaled`, times the tensor's mean magnitude.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.5])})
        >>> unsum.Sign()(update).gradients["w"]
        tensor([ 1., -1.,  1.])
    """

    def __init__(self, *, scaled: bool = False) -> None:
        super().__init__()
        self.scaled = scaled

    def changed(self, gradient: Tensor) -> Tensor:
        return gradient.sign() * gradient.abs().mean() if self.scaled else gradient.sign()

    def __repr__(self) -> str:
        return "Sign(scaled=True)" if self.scaled else "Sign()"
