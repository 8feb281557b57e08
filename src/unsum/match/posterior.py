"""Pictures under noise: the Gauss–Newton posterior of the whole gradient.

With noise of σ on every entry of the gradient ĝ, and pictures x = m + Dᵀ(h z) whose components z in
a basis of cosines and colors are standard normal for photos (`unsum.photos`),

    −log P(z | ĝ) = ‖ĝ − G(x)‖²/2σ² + ‖z‖²/2 + …

is what is minimized, by steps (JᵀJ/σ² + (1 + μ) 1)⁻¹ (Jᵀ(ĝ − G)/σ² − z) with J = ∂G/∂z, and damping
μ that a step too far raises. Neither J nor JᵀJ is formed: J v is the derivative of the gradient
along v (forward over reverse), Jᵀu the gradient in x of the loss's derivative along u (reverse over
forward), and conjugate gradients do the rest. Where the network is linear about x, the minimum is
the mean of all pictures that explain the update. Far from it σ is as large as what is left
unexplained, so that first steps ask little of a model that is linear only nearby.

Every start is near the mean of photos. Gates that flip make many minima: the answer is the mean of
those that explain the update down to its noise, in which what they do not agree about cancels,
and the mean of photos where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp

from unsum.engine.conjugate import least_squares
from unsum.errors import UnsumError
from unsum.gradients import main_output, quiet
from unsum.match.engine import Matched
from unsum.match.method import MatcherNeeds, matcher
from unsum.match.problem import Problem
from unsum.models.strides import PHOTOS_MEAN
from unsum.photos import coefficients, photo_spread, pictures_of
from unsum.running.deadline import out_of_time

# [of the gradient's root mean square] noise that is counted on at least. Chosen by: float32
_ROUNDING = 1e-5
_START = 0.05  # [deviations] by which samples differ at first. Chosen by: arbitrary, equal labels
_TOLERANCE = 0.1  # [relative] of the linear system. Chosen by: arbitrary, steps are inexact anyway
# [of the prior's precision] μ at first, how it changes, and where it stops. Chosen by: arbitrary
_DAMPING, _FIRMER, _LOOSER, _STUCK = 1.0, 10.0, 4.0, 1e8
# [deviations] of the noise's size, as measured, by which more may be left where all is explained.
# Chosen by: arbitrary
_EXPLAINED = 3.0
_LITTLE = 0.5  # [nats] gained by a step, below which it is the last. Chosen by: arbitrary


@matcher(
    "posterior",
    summary="gradient matching under noise: photos' spectrum and Gauss–Newton steps (unsum)",
    needs=MatcherNeeds(rule="templates", scale=True),
)
def posterior(
    problem: Problem, *, steps: int = 30, products: int = 30, restarts: int = 4
) -> Matched:
    """`products` with J and Jᵀ at most for each of the `steps`."""
    targets = problem.targets
    if targets is None or problem.shape[0] not in (1, 3):
        raise UnsumError(
            f"{problem.method!r} draws pictures of one or three channels with known labels; use "
            "'ig'."
        )
    here, descents = _Linearized(problem, targets), list[_Descent]()
    with quiet(problem.model, problem.sent):
        for number in range(restarts):
            if descents and out_of_time("further starts of the posterior"):
                break
            try:
                descents.append(_descend(here, number, steps, products))
            except (
                RuntimeError
            ) as error:  # an operation without forward derivatives, or without two
                reason = " ".join(str(error).split())[:200].rstrip(".")
                raise UnsumError(
                    f"{problem.method!r} cannot take the model's derivatives ({reason}); use 'ig'."
                ) from error
        explaining = [one.z for one in descents if one.unexplained <= here.all_explained]
        none = torch.zeros_like(descents[0].z)
        z = torch.stack(explaining).mean(0) if explaining else none
        left = here.left(z)
    best = min(descents, key=lambda one: one.costs[-1])
    notes = [
        f"Noise of {here.sigma:.2g} was measured on the last layer's gradient, and counted on in "
        f"all layers; {len(explaining)} of {len(descents)} starts explain the update down to it."
    ]
    if not explaining:
        notes.append("The pictures are what any photo is expected to look like.")
    history = {
        "step": torch.arange(len(best.costs)),
        "loss": torch.tensor(best.costs),
    }
    return Matched(
        here.pictures(z).clamp(0, 1).to(problem.zero), targets, _cost(left, z, here.sigma),
        float(left.square().sum()), torch.tensor([one.costs[-1] for one in descents]),
        len(best.costs) - 1, history, notes,
    )  # fmt: skip


@dataclass(frozen=True)
class _Descent:
    """Where one start ended."""

    z: Tensor
    unexplained: float  # root mean square of what is left of the gradient
    costs: list[float]  # −log P at the start and after every step


def _descend(here: _Linearized, number: int, steps: int, products: int) -> _Descent:
    problem, damping = here.problem, _DAMPING
    generator = torch.Generator().manual_seed(1000 * problem.seed + number)
    start = torch.randn(
        problem.batch_size, *problem.shape, generator=generator, dtype=torch.float64
    )
    z = _START * start.to(problem.device)
    left = here.left(z)
    costs = [_cost(left, z, here.sigma)]
    for _ in range(steps):
        if damping > _STUCK or out_of_time("further steps of the posterior"):
            break
        sigma = max(here.sigma, _size(left))
        before = _cost(left, z, sigma)
        step = here.step(z, left, sigma, damping, products)
        other = here.left(z + step)
        after = _cost(other, z + step, sigma)
        if not after < before:
            damping *= _FIRMER
            continue
        z, left, damping = z + step, other, damping / _LOOSER
        costs.append(_cost(left, z, here.sigma))
        problem.progress.say(f"Posterior, start {number + 1}, step {len(costs) - 1}")
        if before - after < _LITTLE and sigma <= here.all_explained:
            break
    return _Descent(z, _size(left), costs)


def _size(left: Tensor) -> float:
    return float(left.double().square().mean().sqrt())


def _cost(left: Tensor, z: Tensor, sigma: float) -> float:
    """−log P, up to a constant."""
    return 0.5 * float(left.double().square().sum() / sigma**2 + z.square().sum())


@dataclass(frozen=True)
class _Linearized:
    """The gradient as a function of z, and its products with J."""

    problem: Problem
    targets: Tensor

    @cached_property
    def sent(self) -> Tensor:
        return torch.cat([gradient.flatten() for gradient in self.problem.sent.values()])

    @cached_property
    def sigma(self) -> float:
        """The noise's deviation: softmax rows sum to zero, so what columns of the head's gradient
        sum to is noise."""
        rows = self.problem.sent.get(self.problem.head_names[0])
        if rows is None:
            raise UnsumError(
                f"{self.problem.method!r} measures the noise at the head, whose gradient was not "
                "sent; use 'ig'."
            )
        noise = float(rows.double().sum(0).square().mean().sqrt()) / len(rows) ** 0.5
        return max(noise, _ROUNDING * _size(self.sent))

    @cached_property
    def all_explained(self) -> float:
        """What is left unexplained, at most, by pictures that explain all but the noise: both its
        own size and the one measured scatter."""
        columns = self.problem.sent[self.problem.head_names[0]].shape[1]
        scatter = (2 * columns) ** -0.5 + (2 * len(self.sent)) ** -0.5
        return (1 + _EXPLAINED * scatter) * self.sigma

    @cached_property
    def spread(self) -> Tensor:
        return photo_spread(self.problem.shape).to(self.problem.device)

    def pictures(self, z: Tensor) -> Tensor:
        color = torch.tensor(PHOTOS_MEAN, dtype=torch.float64, device=z.device)
        color = color if self.problem.shape[0] == 3 else color.mean(0, keepdim=True)
        return color[:, None, None] + self._out(z)

    def left(self, z: Tensor) -> Tensor:
        """(P,) ĝ − G."""
        return self.sent - self._gradient(self.pictures(z).to(self.sent)).detach()

    def step(self, z: Tensor, left: Tensor, sigma: float, damping: float, most: int) -> Tensor:
        """What the linearized posterior adds to z."""
        x = self.pictures(z).to(self.sent)

        def push(v: Tensor) -> Tensor:
            along = self._out(v).to(x)
            return (jvp(self._gradient, (x,), (along,))[1] / sigma).double()

        def pull(u: Tensor) -> Tensor:
            return self._in(self._pulled(x, u.to(x))) / sigma

        right = pull(left.double() / sigma) - z
        return least_squares(
            push, pull, right, _TOLERANCE, most, ridge=lambda v: (1 + damping) * v
        )[0]

    @cached_property
    def _parameters(self) -> dict[str, Tensor]:
        named = dict(self.problem.model.named_parameters())
        return {name: named[name].detach() for name in self.problem.sent}

    def _loss(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        logits = main_output(functional_call(self.problem.model, parameters, (x,)))
        return nn.functional.cross_entropy(logits, self.targets, reduction=self.problem.reduction)

    def _gradient(self, x: Tensor) -> Tensor:
        found = grad(self._loss)(self._parameters, x)
        return torch.cat([found[name].flatten() for name in self.problem.sent])

    def _pulled(self, x: Tensor, u: Tensor) -> Tensor:
        """∂/∂x of the loss's derivative along u in the parameters."""
        sizes = [parameter.numel() for parameter in self._parameters.values()]
        tangents = {
            name: part.view_as(parameter)
            for (name, parameter), part in zip(
                self._parameters.items(), u.split(sizes), strict=True
            )
        }

        def along(x: Tensor) -> Tensor:
            of: Callable[[dict[str, Tensor]], Tensor] = lambda p: self._loss(p, x)  # noqa: E731
            return jvp(of, (self._parameters,), (tangents,))[1]

        return grad(along)(x)

    def _out(self, z: Tensor) -> Tensor:
        return pictures_of(self.spread.cpu() * z.cpu()).to(z.device)

    def _in(self, x: Tensor) -> Tensor:
        return self.spread * coefficients(x.cpu()).to(self.spread)
