"""A matched filter: the rows of ∇W along the feature that samples have in common.

With m the mean feature of inputs that anybody can send through the model, g_c = ∇W_c · m = mean_i (p_ic − [c = y_i]) f_i · m.
Any two samples have features much alike in many a network, f_i · m > 0, so every sample lowers the sum of its own class, as under
`row-sum`, which is the filter m = 1. This one needs no features ≥ 0 and adds up what points the same way, while noise of
deviation σ on every entry adds no more than σ ‖m‖.

The inputs are smooth random pictures: a few colored patches, enlarged. Rows that stand out are named as `row-sum` names them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.labels.method import Clues, RuleNeeds, label_rule
from unsum.labels.probe import Probe
from unsum.labels.row_sum import standing_out

_INPUTS = 16  # [1] sent through the model at once. Chosen by: arbitrary budget, the mean feature changes little beyond
_PATCHES = 8  # [1] along each side of a picture. Chosen by: measurement, as good as public photos on the embedded model


@label_rule(
    "template",
    summary="classes whose rows lie far below the others' along the mean feature of random pictures (unsum)",
    needs=RuleNeeds(),
)
def template(evidence: Clues) -> Tensor:
    """(n,) every class that stands out; (B,) with duplicates where the batch size is granted."""
    probe = Probe.of(evidence)
    shape = tuple(getattr(evidence.model, "input_shape", None) or probe.input_shape())
    try:
        mean = probe.send(_inputs(shape, evidence.seed))[0].double().mean(0)
    except (RuntimeError, ValueError, IndexError, TypeError):  # the model takes codes, or other inputs
        raise UnsumError(
            "The model takes no pictures and no numbers, so 'template' has no features; use 'exact'."
        ) from None
    if not bool(mean.any()) or not bool(mean.isfinite().all()):
        raise UnsumError("The features of random inputs vanish, so 'template' has no direction; use 'exact'.")
    rows = evidence.head.grad_W
    return standing_out(evidence, (rows @ (mean / mean.norm()).to(rows)).double(), 1.0, "template")


def _inputs(shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if len(shape) != 3:
        return torch.randn(_INPUTS, *shape, generator=generator)  # as standardized tables are
    patches = torch.rand(_INPUTS, shape[0], _PATCHES, _PATCHES, generator=generator)
    smooth: Tensor = torch.nn.functional.interpolate(patches, size=shape[1:], mode="bicubic")
    return smooth.clamp(0, 1)
