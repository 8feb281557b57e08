"""The second bound of an update without noise: bits.

An update of P numbers with b bits each holds at most P b bits about all B samples together, so at
most P b / B about one on average. Rate–distortion theory turns bits into the least mean squared
error: for a Gaussian with variances h_k², reverse water-filling spends Σ_k max(0, ½ log₂ h_k²/θ)
and leaves Σ_k min(h_k², θ). A photo is not Gaussian, so this holds for an attacker whose prior has
that spectrum and no more structure, and it holds on average over samples only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor

from unsum.client.step import AnyDefense, ordered
from unsum.defend import QSGD, BFloat16, Float16, Prune, PruneGlobal, Quantize, Sign
from unsum.defend.added import sees_batch

_STEPS = 200  # halvings of log θ


def leakage_of_bits(spread: Tensor, bits: float) -> float:
    """The largest share of Σ h² that `bits` bits can explain.

    >>> import torch
    >>> round(leakage_of_bits(torch.ones(4), 4.0), 6)  # 1 bit each: ½ log₂ 4
    0.75
    """
    variances = spread.double().flatten().square()
    variances = variances[variances > 0]
    if bits <= 0 or not len(variances):
        return 0.0
    low, high = (
        math.log(float(variances.max())) - 2 * math.log(2) * (bits + 1),
        math.log(float(variances.max())),
    )
    for _ in range(_STEPS):
        middle = (low + high) / 2
        rate = float((variances.log() - middle).clamp_min(0).sum()) / (2 * math.log(2))
        low, high = (middle, high) if rate > bits else (low, middle)
    return 1 - float(variances.clamp_max(math.exp(high)).sum() / variances.sum())


def bits_sent(
    tensors: dict[str, int], defenses: Iterable[AnyDefense], *, each: float = 32.0
) -> float:
    """An upper bound on the bits of an update with so many entries, of `each` bits, a tensor."""
    entries = sum(tensors.values())
    bits = whole = each * entries
    for part in ordered(defenses):
        if sees_batch(part):
            bits = whole
        elif isinstance(part, Float16 | BFloat16):
            bits = min(bits, 16.0 * entries)
        elif isinstance(part, Sign):
            bits = min(bits, entries * math.log2(3) + each * len(tensors) * part.scaled)
        elif isinstance(part, Quantize):
            bits = min(bits, part.strength * entries + 2 * each * len(tensors))
        elif isinstance(part, QSGD):
            bits = min(bits, entries * math.log2(2 * part.strength + 1) + each * len(tensors))
        elif isinstance(part, Prune):
            bits = min(bits, sum(_kept(n, n - part.dropped(n), each) for n in tensors.values()))
        elif isinstance(part, PruneGlobal):
            bits = min(bits, _kept(entries, entries - part.dropped(entries), each))
    return bits


def _kept(entries: int, kept: int, each: float) -> float:
    """Which entries are kept, log₂ of the number of choices, and `each` bits for each of them."""
    choices = math.lgamma(entries + 1) - math.lgamma(kept + 1) - math.lgamma(entries - kept + 1)
    return choices / math.log(2) + each * kept
