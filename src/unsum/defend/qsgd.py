"""QSGD (Alistarh et al. 2017): random rounding to few levels that leaves the expected update as it
is.

With s levels, a tensor v is sent as its Euclidean norm, the signs and one whole number per entry:

    Q_s(v)_i = ‖v‖ · sign(v_i) · ξ_i,    ξ_i = (ℓ + 1)/s with probability s|v_i|/‖v‖ − ℓ, else ℓ/s,
                                         ℓ = ⌊s|v_i|/‖v‖⌋

so E Q_s(v) = v and the entries take the s + 1 magnitudes 0, ‖v‖/s, …, ‖v‖.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.defend.defense import DEFENSES, Axis, TensorDefense, whole_number


@DEFENSES.register(
    "qsgd", summary="round each tensor at random to this many levels of its norm, unbiased"
)
class QSGD(TensorDefense):
    """Q_s of every tensor, the whole tensor as one bucket; drawn from torch's global generator.

    Examples:
        >>> import torch, unsum
        >>> update = unsum.Update({"w": torch.tensor([3.0, -4.0, 0.5])})
        >>> sent = unsum.QSGD(1)(update).gradients["w"]
        >>> bool(
        ...     torch.isin(
        ...         sent.abs(), torch.stack([torch.tensor(0.0), update.gradients["w"].norm()])
        ...     ).all()
        ... )
        True
    """

    example = 4
    axis = Axis("levels", rising=False, whole=True)

    def __init__(self, levels: float) -> None:
        super().__init__(whole_number(levels, 1, "QSGD needs a number of levels"))

    def changed(self, gradient: Tensor) -> Tensor:
        norm = gradient.norm()
        if not float(norm) > 0:
            return gradient
        position = self.strength * gradient.abs() / norm
        level = position.floor()
        up = torch.rand_like(position) < position - level
        sent: Tensor = norm * gradient.sign() * (level + up) / self.strength
        return sent
