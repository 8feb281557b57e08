"""RGLA: optimize the logits until they explain the head's gradient, then solve for the features.

With targets Y known and D = (softmax(Ŷ) − Y)/B, the paper minimizes over Ŷ (B×C)

    L_w = ‖∇W Wᵀ − Dᵀ(Ŷ − b)‖²      ∇W Wᵀ = Gᵀ F Wᵀ, and F Wᵀ = Ŷ − b
    L_b = ‖∇b − Dᵀ1‖²
    L_loss = (CE(Ŷ, y) − l̂)²         l̂ = −mean_i ln(∇b_{y_i} + n_{y_i}/B), the loss the gradient gives away
    1e4 L_w + L_b + 100 L_loss        Adam, rate 1e-3, 20 000 steps, start from standard normal logits

and then takes F = pinv(Dᵀ) ∇W. L_loss keeps it away from twin solutions near the labels. D is differentiated.
The three terms and their gradient are in `objective`, l̂ in `loss`, Adam in `adam`, the starts in `starts`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.progress import SILENT, Progress
from unsum.separate.hard_labels import hard_labels, refuse_soft
from unsum.separate.method import SEPARATORS
from unsum.separate.misfit import relative_misfit
from unsum.separate.options import positive, whole, yes_or_no
from unsum.separate.rgla.adam import Record, minimize
from unsum.separate.rgla.objective import WEIGHTS, LogitObjective
from unsum.separate.rgla.starts import check_start, declare_start, starting_logits

RATE, STEPS = 1e-3, 20_000
EVERYTHING = tuple(WEIGHTS)


@SEPARATORS.register(
    "rgla", summary="logits by 20 000 steps of Adam (RGLA)", needs="bias gradient, hard labels, early training"
)
def rgla(
    head: Head,
    knowledge: Knowledge,
    *,
    seed: int,
    progress: Progress = SILENT,
    objectives: Collection[str] = EVERYTHING,
    start: str = "randn",
    start_logits: Tensor | None = None,
    steps: int = STEPS,
    rate: float = RATE,
    constant_D: bool = False,
    stop_below: float | None = None,
    sample_every: int = 100,
) -> Leak:
    """Logits by optimization, features by the Moore–Penrose inverse. Labels come from `bias-sign` unless granted.

    Args:
        progress: told (step, L_w, L_b, L_loss) whenever the losses are noted.
        objectives: which of "w", "b" and "loss" are minimized; the others are only noted.
        start: "randn", "rand", "zeros", "ones", "photos" or "fgla".
        start_logits: for "photos": (n, C), `model(photos)` for any natural photos of the attacker's.
        steps, rate: of Adam.
        constant_D: leave the derivative of D out, as the authors' released code does; "b" then has no effect. Measured, this ends
            in twins less often than the paper's own gradient.
        stop_below: end as soon as the weighted sum is below this; off by default, as published.
        sample_every: steps between two entries of `leak.history` ("step", "loss_w", "loss_b", "loss_loss").
    """
    check_head("rgla", head, knowledge)
    check_start(start, start_logits, head.classes)
    whole("steps", steps, 1)
    whole("sample_every", sample_every, 1)
    positive("rate", rate)
    yes_or_no("constant_D", constant_D)
    if stop_below is not None:
        positive("stop_below", stop_below)
    labels = hard_labels(head, knowledge)
    names = check_objectives(objectives)
    if constant_D and set(names) == {"b"}:
        raise UnsumError("With constant_D the objective 'b' has no gradient; add 'w' or 'loss' to the objectives.")
    objective = replace(LogitObjective.of(head, labels, names, working_type(head)), constant_D=constant_D)
    record = Record(objective, progress)
    begin = starting_logits(start, start_logits, head, knowledge, objective.Y, seed)
    logits = minimize(
        objective, begin, steps=steps, rate=rate, every=sample_every, stop_below=stop_below, record=record
    )
    leak = explain("rgla", head, objective, logits)
    return declare_start(replace(leak, history=record.history), knowledge, start, start_logits)


def check_head(method: str, head: Head, knowledge: Knowledge) -> None:
    if head.b is None or head.grad_b is None:
        raise UnsumError(f"The attack {method!r} needs the head's bias and its gradient; use 'exact', which does not.")
    refuse_soft(method, head, knowledge)


def check_objectives(objectives: Collection[str]) -> tuple[str, ...]:
    """The names as a tuple, if there is at least one and each exists."""
    names = (
        tuple(objectives) if isinstance(objectives, Collection) and not isinstance(objectives, str) else (objectives,)
    )
    if not names or not set(names) <= set(WEIGHTS):
        raise UnsumError(f"The option 'objectives' takes one or more of {', '.join(WEIGHTS)}, not {objectives!r}.")
    return names


def working_type(head: Head) -> torch.dtype:
    """The model's own precision, float32 at least."""
    return torch.promote_types(head.W.dtype, torch.float32)


def explain(method: str, head: Head, objective: LogitObjective, logits: Tensor) -> Leak:
    """From logits to a `Leak`: F = pinv(Dᵀ) ∇W, without a float64 copy of the gradient."""
    logits, Y = logits.double(), objective.Y.double()
    B, C = Y.shape
    D = (logits.softmax(1) - Y) / (B if head.reduction == "mean" else 1)
    features = head.mixed_rows(torch.linalg.pinv(D.T))
    notes = ["RGLA carries no certificate: its features are approximate and their error is not predicted."]
    if B > C + 1:
        notes.append(
            f"{B} samples of {C} classes leave {B * C} unknown logits to {C * (C + 1) + 1} equations: "
            f"under-determined, so do not trust the features; RGLA needs B ≤ C + 1 = {C + 1}."
        )
    return Leak(
        method=method,
        targets=Y,
        logits=logits,
        features=features.to(working_type(head)),
        residual=relative_misfit(head, logits, Y, features),
        predicted_error=float("nan"),
        exact=False,
        notes=notes,
    )
