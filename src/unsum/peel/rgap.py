"""R-GAP, the recursive gradient attack on privacy: one sample, two classes, one logit, no bias.

With label y = ±1, logit w·x and u = y w·x the logistic loss log(1 + e^{−u}) has the derivative k =
−y / (1 + e^u) with respect to the logit, and the head's gradient is g = k x. Its product with the
weights holds one unknown,

    ⟨g, w⟩ = k w·x = −u / (1 + e^u),

which is solved for u. It falls for u < 1.278… and rises after, so that a rightly classified sample
(u > 0) has a twin. Then k, and layer by layer:

    fully connected   x = mean over units of g_i / k_i
    convolution       x = lstsq of three constraints: ∇W (from k), the known outputs W ∗ x, and
                      zeros in the padding
    further down      k ← (Wᵀ k) ∘ a′

The paper takes y as known; here it may be given, and otherwise both labels and both twins are
tried. Which one is right is told by the gradient that the recovered input would have sent.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.certify.claim import grant_each
from unsum.errors import UnsumError
from unsum.leak import Leak
from unsum.network.activations import bisect
from unsum.network.chain import Chain, Shape, Step, find_chain
from unsum.network.shapes import input_shapes, picture_shape
from unsum.peel.conv import ConvSystem
from unsum.peel.method import PEELERS, Peeled, PeeledLayer
from unsum.update import Update

TURN = 1.2784645427610738  # where −u/(1+e^u) is least


@PEELERS.register(
    "rgap",
    summary="one sample through a two-class network, layer by layer (R-GAP)",
    needs="one logit without bias, logistic loss, a batch of one sample, gradients of all layers",
)
def rgap(
    model: nn.Module,
    update: Update,
    leak: Leak | None,
    *,
    shape: Shape | None,
    seed: int,
    label: int | None = None,
) -> Peeled:
    """The recursion, for `label` 0 or 1 if it is known; uses no randomness.

    No certificate is published for it, so its `errors` are not determined; a note says what the
    answer leaves unexplained.
    """
    if label not in (None, 0, 1):
        raise UnsumError(f"The option 'label' must be 0 or 1, not {label!r}.")
    chain = find_chain(model, update)
    _check(chain)
    shapes = input_shapes(chain, model, shape)
    signs = [1.0, -1.0] if label is None else [2.0 * label - 1]
    head = chain.steps[-1]
    roots = solve_u(float((head.grad_W.double() * head.W.double()).sum()))
    answers = [(_recurse(chain, shapes, y, u), y) for u in roots for y in signs]
    scored = [(_misfit(chain, x, y), x, residuals) for (x, residuals), y in answers]
    misfit, x, residuals = min(scored, key=lambda answer: answer[0])
    notes = [
        f"R-GAP carries no certificate; its answer explains all but {misfit:.1e} of the update."
    ]
    if not chain.steps[0].is_conv:
        picture, guessed = picture_shape(chain.steps[0], chain.flattens, shape)
        x, notes = x.view(1, *picture), [*notes, *guessed]
    layers = [
        PeeledLayer(step.name, math.inf, residual)
        for step, residual in zip(chain.steps[-2::-1], residuals, strict=True)
    ]
    errors = torch.full((1,), math.inf, dtype=torch.float64, device=x.device)
    return Peeled("rgap", x, errors, grant_each(errors, above=False), True, layers, notes)


def _check(chain: Chain) -> None:
    head = chain.steps[-1]
    if head.W.shape[0] != 1:
        raise UnsumError(
            f"R-GAP is for one logit (two classes), and this model has {head.W.shape[0]}; use "
            "'layers'."
        )
    if any(step.b is not None for step in chain.steps):
        raise UnsumError("R-GAP is for models without bias; use 'layers'.")
    if chain.stop is not None:
        raise UnsumError(f"R-GAP needs every layer down to the input, and {chain.stop}.")
    for step in chain.steps[:-1]:
        if step.activation.family == "folded":
            raise UnsumError(f"R-GAP cannot undo {step.activation.name} after {step.name!r}.")


def solve_u(product: float) -> list[float]:
    """All u with −u/(1+e^u) = product, by bisection on either side of the turn; the turn itself
    where there is none.

    >>> [round(u, 4) for u in solve_u(1 / (1 + 2.718281828459045**-1.0))]
    [-1.0]
    """

    def value(u: Tensor) -> Tensor:
        return -u / (1 + u.exp())

    target, left, turn, right = torch.tensor(
        [product, -max(1.0, 2 * product + 1), TURN, 700.0], dtype=torch.float64
    )
    if product <= value(turn):
        return [TURN]
    roots = [float(bisect(value, target, left, turn, rising=False))]
    if product < 0:
        roots.append(float(bisect(value, target, turn, right, rising=True)))
    return roots


def _recurse(chain: Chain, shapes: list[Shape], y: float, u: float) -> tuple[Tensor, list[float]]:
    """The input (1, …) and the residual of every layer below the head."""
    steps, residuals = chain.steps, []
    k = torch.full((1, 1), -y / (1 + math.exp(u)), dtype=torch.float64, device=steps[-1].W.device)
    x = _unit_mean(steps[-1], k)
    for i in range(len(steps) - 2, -1, -1):
        step = steps[i]
        passed = steps[i + 1].passed_down(k, shapes[i + 1])
        if not step.is_conv:
            z = step.activation.branches(x.flatten(1))[0]
            k = passed.flatten(1) * step.activation.slope(z)
            x = _unit_mean(step, k)
            explained = k.T @ x
            residuals.append(float((explained - step.grad_W).norm() / step.grad_W.norm()))
            continue
        outputs = (1, *step.output_shape(shapes[i]))
        z = step.activation.branches(x.view(outputs))[0]
        k = passed.view(outputs) * step.activation.slope(z)
        known = (z > 0).to(z) if step.activation.family == "relu" else torch.ones_like(z)
        system = ConvSystem.of(step, k, z, known, torch.Size((1, *shapes[i])))
        x, residual = system.solve(system.right_side(z))
        residuals.append(residual)
    return x, residuals


def _unit_mean(step: Step, k: Tensor) -> Tensor:
    """x (1, n): the mean of g_i / k_i over the units that say anything."""
    units = k[0] != 0
    return (step.grad_W.double()[units] / k[0][units][:, None]).mean(0, keepdim=True)


def _misfit(chain: Chain, x: Tensor, y: float) -> float:
    """How much of the update the gradient for (x, y) leaves unexplained, relative."""
    if not bool(torch.isfinite(x).all()):
        return math.inf
    weights = [step.W.double().requires_grad_() for step in chain.steps]
    with torch.enable_grad():
        h = x
        for step, W in zip(chain.steps, weights, strict=True):
            h = step.activation.function(
                replace(step, W=W).linear(h if step.is_conv else h.flatten(1))
            )
        gradients = torch.autograd.grad(nn.functional.softplus(-y * h).sum(), weights)
    differences = [
        (g - step.grad_W).square().sum() for g, step in zip(gradients, chain.steps, strict=True)
    ]
    sizes = [step.grad_W.double().square().sum() for step in chain.steps]
    return float((torch.stack(differences).sum() / torch.stack(sizes).sum()).sqrt())
