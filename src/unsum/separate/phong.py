"""Phong's ratio: one sample's features are any row of the head's gradient over its bias gradient.

For B = 1 the gradient is rank one: ∇W_i = g_i f and ∇b_i = g_i with g = p − y, so for every class i

    f = ∇W_i / ∇b_i,     and then     y = softmax(W f + b) − ∇b

gives the label, hard or soft. The published form takes one row; the row of the largest |∇b_i| is
the most precise. All rows together, f = Σ_i ∇b_i ∇W_i / Σ_i ∇b_i², are the least-squares answer,
which noise disturbs least. For B > 1 both are means of the features with weights that no one knows.
"""

from __future__ import annotations

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.method import SEPARATORS, relative_misfit, uncertified
from unsum.separate.options import choice

_ROUNDING = 1e-4  # a part of ∇W beyond rank one that float32 sums alone do not leave


@SEPARATORS.register(
    "phong",
    summary="one sample by the ratio of gradients (Phong 2017)",
    needs="bias gradient, a batch of one sample",
)
def phong(head: Head, knowledge: Knowledge, *, seed: int, rows: str = "largest") -> Leak:
    """One sample's features and label in closed form; uses no randomness.

    Args:
        rows: "largest" takes the row with the largest bias gradient, as published; "all" takes the
            least squares over them.
    """
    if head.b is None or head.grad_b is None:
        raise UnsumError(
            "The attack 'phong' needs the head's bias and its gradient; use 'exact', which does "
            "not."
        )
    if (knowledge.known_batch_size or 1) > 1:
        raise UnsumError(
            f"The attack 'phong' is for one sample, not for {knowledge.known_batch_size}; use "
            "'exact'."
        )
    choice("rows", rows, ("largest", "all"))
    grad_b = head.grad_b.double()
    if not bool(grad_b.any()):
        raise UnsumError(
            "The bias gradient is zero throughout, so 'phong' has nothing to divide by; use "
            "'exact'."
        )
    if rows == "all":
        features = head.mixed_rows((grad_b / grad_b.square().sum()).unsqueeze(0))
    else:
        row = int(grad_b.abs().argmax())
        features = (head.grad_W[row].double() / grad_b[row]).unsqueeze(0)
    logits = features @ head.W.double().T + head.b.double()
    found = logits.softmax(1) - grad_b
    granted = knowledge.targets(head.classes)
    targets = found if granted is None else granted.to(found)
    residual = relative_misfit(head, logits, found, features)
    notes = [
        "The ratio carries no certificate: it is exact for one sample and an unknown mean for more."
    ]
    if residual > _ROUNDING:
        notes.append(
            f"{residual:.1%} of the gradient is not explained by one sample: it comes from "
            "several, or was defended; use 'exact'."
        )
    return uncertified("phong", head, logits, targets, features, notes, residual=residual)
