"""RGLA: optimize the logits until they explain the head's gradient, then solve for the features.

With targets Y known and D = (softmax(Ŷ) − Y)/B, the paper minimizes over Ŷ (B×C)

    L_w = ‖∇W Wᵀ − Dᵀ(Ŷ − b)‖²      ∇W Wᵀ = Gᵀ F Wᵀ, and F Wᵀ = Ŷ − b
    L_b = ‖∇b − Dᵀ1‖²
    L_loss = (CE(Ŷ, y) − l̂)²         l̂ = −mean_i ln(∇b_{y_i} + n_{y_i}/B), the loss the gradient
                                      gives away
    1e4 L_w + L_b + 100 L_loss        Adam, rate 1e-3, 20 000 steps, start from standard normal
                                      logits

and then takes F = pinv(Dᵀ) ∇W. L_loss keeps it away from twin solutions near the labels.

**D is held constant in the backward pass**, as the authors' code does and Table 3 shows: its rows
with and without L_b agree to every digit, and without D's derivative L_b has no gradient.
`constant_D=False` differentiates it, as the formulas read. Two samples of one label then drift
apart against each other, since their sum alone is seen at first order; their rows of D turn to
other samples' labels, D loses its rank, and pinv(Dᵀ) spreads the error over the whole batch.

The three terms with l̂ and their gradient are in `objective`, in plain autograd in `reference`. The
six starts of the paper are

    randn, rand, zeros, ones      of those distributions and constants
    photos                        the model's logits for natural photos of the attacker's own,
                                  passed as `start_logits`
    reconstruction                the model's logits for FGLA's pictures of the same update, passed
                                  as `start_logits`
    fgla                          not in the paper: the logits of FGLA's features, without the way
                                  through pictures
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from unsum.equation.threads import few_threads
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.labels.bias_sign import are_soft, hard_labels
from unsum.leak import Leak
from unsum.running.cuda_graph import recorded
from unsum.running.deadline import out_of_time
from unsum.running.progress import SILENT, Progress
from unsum.separate.fgla import fgla
from unsum.separate.method import SEPARATORS, uncertified, working_type
from unsum.separate.options import choice, positive, whole, yes_or_no
from unsum.separate.rgla.objective import WEIGHTS, LogitObjective
from unsum.separate.rgla.reference import minimize_plainly

RATE, STEPS = 1e-3, 20_000  # as published
EVERYTHING = tuple(WEIGHTS)
STARTS = ("randn", "rand", "zeros", "ones", "photos", "reconstruction", "fgla")
GIVEN = {
    "photos": "model(photos), what the model answers to your own photos",
    "reconstruction": "model(pictures), what it answers to the pictures of FGLA's features",
}
RANDOM = ("randn", "rand")
_ALIKE = ("zeros", "ones")  # the same for every sample


@SEPARATORS.register(
    "rgla",
    summary="logits by 20 000 steps of Adam (RGLA)",
    needs="bias gradient, hard labels, early training",
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
    constant_D: bool = True,
    weight_w: float = WEIGHTS["w"],
    weight_b: float = WEIGHTS["b"],
    weight_loss: float = WEIGHTS["loss"],
    reference: bool = False,
    stop_below: float | None = None,
    sample_every: int = 100,
) -> Leak:
    """Logits by optimization, features by the Moore–Penrose inverse. Labels come from `bias-sign`
    unless granted.

    Args:
        progress: told (step, L_w, L_b, L_loss) whenever the losses are noted.
        objectives: which of "w", "b" and "loss" are minimized; the others are only noted.
        start: "randn", "rand", "zeros", "ones", "photos", "reconstruction" or "fgla".
        start_logits: for "photos": (n, C), `model(photos)` for any natural photos of the
            attacker's; for "reconstruction": `model(pictures)` for the pictures of FGLA's features.
        steps, rate: of Adam.
        constant_D: leave the derivative of D out, as the authors' released code does and the
            published figures show; "b" then has no effect.
        weight_w, weight_b, weight_loss: α1, α2 and α3.
        reference: take the plain form of `rgla.reference`: slower, the same answer, no history.
        stop_below: end as soon as the weighted sum is below this; off by default, as published.
        sample_every: steps between two entries of `leak.history` ("step", "loss_w", "loss_b",
            "loss_loss").
    """
    names = checked("rgla", head, knowledge, objectives, start, start_logits, steps)
    whole("sample_every", sample_every, 1)
    given = {"rate": rate, "weight_w": weight_w, "weight_b": weight_b, "weight_loss": weight_loss}
    for name, value in given.items():
        positive(name, value)
    yes_or_no("constant_D", constant_D)
    yes_or_no("reference", reference)
    if stop_below is not None:
        positive("stop_below", stop_below)
    if constant_D and set(names) == {"b"}:
        raise UnsumError(
            "With constant_D the objective 'b' has no gradient; add 'w' or 'loss' to the "
            "objectives."
        )
    weights, labels = (
        {"w": weight_w, "b": weight_b, "loss": weight_loss},
        hard_labels(head, knowledge),
    )
    objective = LogitObjective.of(head, labels, names, working_type(head), weights)
    objective = replace(objective, constant_D=constant_D)
    record = Record(objective, progress)
    begin = starting_logits(start, start_logits, head, knowledge, objective.Y, seed)
    if reference:
        mean = head if head.reduction == "mean" else _of_the_mean(head, len(labels))
        how: dict[str, Any] = {"weights": objective.weights, "constant_D": constant_D}
        leak = explain(
            "rgla",
            head,
            objective,
            minimize_plainly(mean, labels, begin, steps=steps, rate=rate, **how),
        )
        return declare_start(leak, knowledge, start, start_logits)
    logits = minimize(
        objective,
        begin,
        steps=steps,
        rate=rate,
        every=sample_every,
        stop_below=stop_below,
        record=record,
    )
    leak = explain("rgla", head, objective, logits)
    return declare_start(replace(leak, history=record.history), knowledge, start, start_logits)


def _of_the_mean(head: Head, B: int) -> Head:
    """The head with the gradient of the mean loss, where the sum's was sent."""
    return replace(head, grad_W=head.grad_W / B, grad_b=head.of_bias[1] / B, reduction="mean")


def checked(
    method: str,
    head: Head,
    knowledge: Knowledge,
    objectives: Collection[str],
    start: str,
    start_logits: Tensor | None,
    steps: int,
) -> tuple[str, ...]:
    """The objectives' names, if there is at least one and each exists; refuses what none of RGLA's
    solvers can do."""
    if head.b is None or head.grad_b is None:
        raise UnsumError(
            f"The attack {method!r} needs the head's bias and its gradient; use 'exact', which "
            "does not."
        )
    if are_soft(head, knowledge):
        raise UnsumError(
            f"The attack {method!r} needs hard labels and was given soft ones; use 'exact', which "
            "takes both."
        )
    choice("start", start, STARTS)
    if start in GIVEN and start_logits is None:
        raise UnsumError(f"The start {start!r} needs start_logits={GIVEN[start]}.")
    if start not in GIVEN and start_logits is not None:
        raise UnsumError(
            f"start_logits belong to start='photos' or 'reconstruction', not to start={start!r}; "
            "leave one of the two out."
        )
    C, given = head.classes, start_logits
    if given is not None and (given.ndim != 2 or given.shape[1] != C or len(given) == 0):
        raise UnsumError(
            f"start_logits must be (n, {C}), a row per photo, not {tuple(given.shape)}."
        )
    whole("steps", steps, 1)
    names = (
        tuple(objectives)
        if isinstance(objectives, Collection) and not isinstance(objectives, str)
        else (objectives,)
    )
    if not names or not set(names) <= set(WEIGHTS):
        raise UnsumError(
            f"The option 'objectives' takes one or more of {', '.join(WEIGHTS)}, not "
            f"{objectives!r}."
        )
    return names


def explain(method: str, head: Head, objective: LogitObjective, logits: Tensor) -> Leak:
    """From logits to a `Leak`: F = pinv(Dᵀ) ∇W, without a float64 copy of the gradient."""
    logits, Y = logits.double(), objective.Y.double()
    B, C = Y.shape
    D = (logits.softmax(1) - Y) / (B if head.reduction == "mean" else 1)
    features = head.mixed_rows(torch.linalg.pinv(D.T))
    notes = [
        (
            "RGLA carries no certificate: its features are approximate and their error is not "
            "predicted."
        )
    ]
    if B > C + 1:
        notes.append(
            f"{B} samples of {C} classes leave {B * C} unknown logits to {C * (C + 1) + 1} "
            "equations: under-determined, so do not trust the features; RGLA needs B ≤ C + 1 = "
            f"{C + 1}."
        )
    return uncertified(method, head, logits, Y, features, notes)


@dataclass
class Record:
    """The losses at some steps: `history` for the `Leak`, and whoever wants to watch."""

    objective: LogitObjective
    progress: Progress
    steps: list[int] = field(default_factory=list)
    # left on the device: reading them would make it wait
    losses: list[Tensor] = field(default_factory=list)

    def add(self, step: int, logits: Tensor) -> Tensor:
        """Note the losses after `step` steps; returns them weighted and summed."""
        losses = self.objective.losses(logits)
        self.steps.append(step)
        self.losses.append(losses)
        if self.progress is not SILENT:
            self.progress.step(step, *losses.flatten().tolist())
        return self.objective.total(losses)

    @property
    def history(self) -> dict[str, Tensor]:
        """`step`, `loss_w`, `loss_b` and `loss_loss`, each (S, …): the losses without their
        weights."""
        w, b, loss = torch.stack(self.losses).cpu().unbind(-1)
        return {"step": torch.tensor(self.steps), "loss_w": w, "loss_b": b, "loss_loss": loss}


def minimize(
    objective: LogitObjective,
    start: Tensor,
    *,
    steps: int,
    rate: float,
    every: int,
    stop_below: float | None,
    record: Record,
) -> Tensor:
    """(…, B, C) where Adam ends; losses are noted at the start, every so many steps and at the end,
    which `stop_below` may be."""
    logits = start.clone().requires_grad_()
    logits.grad = torch.zeros_like(logits)
    watched, gradient = logits.detach(), logits.grad  # the same memory, outside of autograd
    # Fused: one kernel per step. Capturable: its step counter lives on the device, as a recording
    # needs it.
    optimizer = torch.optim.Adam([logits], rate, fused=True, capturable=logits.is_cuda)

    def advance() -> None:
        gradient.copy_(objective.gradient(watched))
        optimizer.step()

    record.add(0, watched)
    with torch.no_grad(), few_threads(logits.numel()):
        run, done = recorded(advance, logits.device)
        while done < steps and not out_of_time("further steps of Adam"):
            goal = min(steps, done - done % every + every)
            for _ in range(done, goal):
                run()
            done = goal
            total = record.add(done, watched)
            if stop_below is not None and float(total.max()) < stop_below:
                break
    return watched


def starting_logits(
    start: str,
    start_logits: Tensor | None,
    head: Head,
    knowledge: Knowledge,
    like: Tensor,
    seed: int,
) -> Tensor:
    """(B, C) of the type and device of `like`. Photos' rows are dealt out in turn when there are
    fewer than samples."""
    if start_logits is not None:
        turns = torch.arange(len(like)) % len(start_logits)
        return start_logits.detach()[turns.to(start_logits.device)].to(like)
    if start == "fgla":
        return fgla(head, knowledge, seed=seed).logits.to(like)
    generator = torch.Generator().manual_seed(seed)
    if start in RANDOM:
        draw = torch.randn if start == "randn" else torch.rand
        return draw(like.shape, generator=generator).to(like)
    return torch.full_like(like, 0.0 if start == "zeros" else 1.0)


def declare_start(
    leak: Leak, knowledge: Knowledge, start: str, start_logits: Tensor | None
) -> Leak:
    """The same leak, saying that photos were used, and what a start that treats all samples alike
    cannot tell apart."""
    notes = list(leak.notes)
    if start in _ALIKE and len(leak.labels.unique()) < leak.batch_size:
        notes.append(
            f"From start={start!r} samples of one label are alike and remain so: every step is the "
            "same for each of them; use start='randn' to tell them apart."
        )
    photos = knowledge.auxiliary_photos
    if start_logits is not None:
        own = "of the attacker's own" if start == "photos" else "of FGLA's pictures"
        photos = f"the model's logits for {len(start_logits)} {own}, as RGLA's start"
    return replace(leak, notes=notes, knowledge=replace(knowledge, auxiliary_photos=photos))
