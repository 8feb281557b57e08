"""Losses of candidate batches and their derivatives: one forward pass, one backward, and one
backward through both.

Restarts go through the model together (`vmap`) or one after the other; the numbers are the same. On
a GPU a pass is recorded once and replayed: a network's three passes over a few pictures are
thousands of kernels, and starting them takes longer than they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from unsum.errors import needed
from unsum.gradients import main_output, quiet
from unsum.match.objective import Target
from unsum.match.optimizers import LBFGS
from unsum.match.problem import Plan, Problem
from unsum.match.regularizers import Scene, registered_mean
from unsum.running.cuda_graph import recorded

_FEW_PIXELS = 2048  # of all pictures together, up to which restarts side by side pay on a CPU
_BATCH_NORMS = nn.modules.batchnorm._BatchNorm


class Evaluator:
    """The unknowns of all restarts, and their losses. Use it inside `ready()`, which leaves the
    model as it was."""

    def __init__(self, problem: Problem, plan: Plan, leaves: list[Tensor]) -> None:
        self.problem, self.plan = problem, plan
        self.restarts = len(leaves[0])
        # on a CPU, larger grouped convolutions are slower
        pays = _few_pixels(problem) or problem.device.type != "cpu"
        runs = (
            not isinstance(plan.optimizer, LBFGS) and problem.protocol is None
        )  # a loss of the user's may do anything
        self.together = plan.together and self.restarts > 1 and pays and runs
        self.notes: list[str] = []
        self.leaves = [leaf.detach().requires_grad_(self.together) for leaf in leaves]
        self.views = [
            [leaf.detach()[r].requires_grad_() for leaf in self.leaves]
            for r in range(self.restarts)
        ]
        self.names = [
            n for n in problem.sent if plan.gradients == "all" or n not in problem.head_names
        ]
        parameters = dict(problem.model.named_parameters())
        self._parameters: dict[str, Tensor] = {name: parameters[name] for name in self.names}
        self._target = self._against(self.restarts if self.together else 1)
        self._look = _Lookout(problem, plan)
        self._group = any(regularizer.sees_group for regularizer in plan.regularizers)
        self._consensus = problem.zero.new_zeros(
            (problem.batch_size, *problem.shape) if self._group else ()
        )
        # by restart; None: all together
        self._passes: dict[int | None, tuple[Callable[[], None], list[Tensor]]] = {}

    @contextmanager
    def ready(self) -> Iterator[None]:
        with (
            quiet(self.problem.model, self.names),
            self._look.hooked(),
            _kernels(self.problem),
            torch.enable_grad(),
        ):
            if not self.together:
                yield
                return
            with plain_norms(self.problem.model):
                self._try_together()
                yield

    def _try_together(self) -> None:
        """Not every layer can be run by `vmap` (data-dependent control flow, in-place buffers):
        then one after the other."""
        try:
            self._together()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            reason = " ".join(str(error).split())[:120]
            self.notes.append(
                "Restarts went through the model one after the other, because vmap cannot run it: "
                f"{reason}"
            )
            self.together = False
            self._target = self._against(1)
            for leaf in self.leaves:
                leaf.requires_grad_(False)

    def _against(self, restarts: int) -> Target:
        return self.plan.objective.against(
            [self.problem.sent[name] for name in self.names], restarts
        )

    def all(self) -> tuple[Tensor, Tensor]:
        """(R,) what is minimized and (R,) the distance of the gradients; `leaves` get their
        derivatives."""
        self._agree()
        if self.together:
            return self._passed(None)
        losses = [self._passed(restart) for restart in range(self.restarts)]
        for place, leaf in enumerate(self.leaves):
            parts = [views[place].grad for views in self.views]
            leaf.grad = parts[0][None] if len(parts) == 1 else torch.stack(parts)  # type: ignore[index,arg-type]
        totals, matches = zip(*losses, strict=True)
        return torch.cat(totals), torch.cat(matches)

    def one(self, restart: int) -> tuple[Tensor, Tensor]:
        """The losses of one restart, of shape (); its views get their derivatives."""
        self._agree()
        total, match = self._passed(restart)
        return total[0], match[0]

    def _passed(self, restart: int | None) -> tuple[Tensor, Tensor]:
        """The losses of one pass over a restart, or over all of them together; derivatives go to
        the leaves' own `grad`."""
        if restart not in self._passes:
            found: list[Tensor] = []

            def work() -> None:
                found[:] = self._together() if restart is None else self._one(self.views[restart])

            self._passes[restart] = (recorded(work, self.problem.device)[0], found)
        run, found = self._passes[restart]
        run()
        total, match = found
        return total.clone(), match.clone()  # a replay writes to the same place

    def _agree(self) -> None:
        if self._group:
            with torch.no_grad():
                pictures = [
                    self.plan.unknown.pictures(self.parts(views)[0]) for views in self.views
                ]
                self._consensus.copy_(registered_mean(torch.stack(pictures)))

    def parts(self, leaves: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tensor]:
        """The unknown's own leaves, and (B, C) targets: the last leaf's softmax where labels are
        unknown too."""
        if self.plan.soft_labels:
            protocol = self.problem.protocol
            return leaves[:-1], leaves[-1].softmax(-1) if protocol is None else protocol.targets(
                leaves[-1]
            )
        return leaves, needed(self.problem.targets, "The labels of the batch")

    def _one(self, views: list[Tensor]) -> tuple[Tensor, Tensor]:
        leaves, targets = self.parts(views)
        images = self.plan.unknown.pictures(leaves)
        found: Sequence[Tensor]
        if self.problem.protocol is not None:
            parameters = list(self._parameters.values())
            found = self.problem.protocol.gradients(self.problem.model, images, targets, parameters)
            return self._pull([g[None] for g in found], Scene(images[None], self._consensus), views)
        logits = self._look(self.problem.model, images)
        G = self.problem.loss_gradient(logits, targets)
        found = torch.autograd.grad(logits, list(self._parameters.values()), G, create_graph=True)
        seen = [None if value is None else value[None] for value in self._look.seen()]
        scene = Scene(images[None], self._consensus, *seen)
        return self._pull([g[None] for g in found], scene, views)

    def _together(self) -> tuple[Tensor, Tensor]:
        def one(*leaves: Tensor) -> tuple[list[Tensor], Tensor, tuple[Tensor | None, ...]]:
            own, targets = self.parts(leaves)
            images = self.plan.unknown.pictures(own)

            def logits(parameters: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
                found = self._look(
                    lambda x: functional_call(self.problem.model, parameters, (x,)), images
                )
                return found, tuple(
                    found.new_zeros(()) if value is None else value for value in self._look.seen()
                )

            rows, backward, seen = vjp(logits, self._parameters, has_aux=True)  # type: ignore[misc]
            (found,) = backward(self.problem.loss_gradient(rows, targets))
            return [found[name] for name in self.names], images, seen

        found, images, seen = vmap(one)(*self.leaves)
        return self._pull(found, Scene(images, self._consensus, *seen), self.leaves)

    def _pull(
        self, found: Sequence[Tensor], scene: Scene, leaves: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Derivatives of all losses in one backward pass: the distance of gradients enters by its
        own derivative."""
        matches, pulls = self._target(found)
        outputs, weights = [*found], [*pulls]
        totals = matches
        if self.plan.regularizers:
            extra = torch.stack([term.weight * term(scene) for term in self.plan.regularizers]).sum(
                0
            )
            outputs, weights = [*outputs, extra], [*weights, torch.ones_like(extra)]
            totals = matches + extra.detach()
        paired = [
            (output, weight)
            for output, weight in zip(outputs, weights, strict=True)
            if output.requires_grad
        ]
        gradients = torch.autograd.grad([o for o, _ in paired], leaves, [w for _, w in paired])
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient
        return totals, matches


def _few_pixels(problem: Problem) -> bool:
    return problem.batch_size * problem.shape[1] * problem.shape[2] <= _FEW_PIXELS


@contextmanager
def plain_norms(model: nn.Module) -> Iterator[None]:
    """Train-mode BatchNorm written out: the second derivative of torch's own is a little wrong
    under `vmap` (7e-5, relative)."""
    norms = [
        module for module in model.modules() if isinstance(module, _BATCH_NORMS) and module.training
    ]
    for norm in norms:
        norm.forward = partial(_plain_norm, norm)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _plain_norm(norm: _BATCH_NORMS, x: Tensor) -> Tensor:
    dims, ones = [d for d in range(x.ndim) if d != 1], [1] * (x.ndim - 2)
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    scaled: Tensor = (x - mean) * (variance + norm.eps).rsqrt()
    return (
        scaled
        if norm.weight is None
        else scaled * norm.weight.view(-1, *ones) + norm.bias.view(-1, *ones)
    )


@contextmanager
def _kernels(problem: Problem) -> Iterator[None]:
    """Plain convolutions for a few small pictures on a CPU: there oneDNN's reordering costs more
    than it saves (1.6 times).

    Channels-last and torch.compile were measured, too, and left out: the first changed nothing on a
    CPU, the second made it 1.4 times as fast after a minute or more of compiling.
    """
    mkldnn: Any = torch.backends.mkldnn
    before = mkldnn.enabled
    mkldnn.enabled = before and not (problem.device.type == "cpu" and _few_pixels(problem))
    try:
        yield
    finally:
        mkldnn.enabled = before


class _Lookout:
    """The model's pass, with a look at what reaches its head and its BatchNorm layers where a
    regularizer asks for that."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self._problem, self._plan = problem, plan
        self._features: Tensor | None = None
        self._gaps: list[Tensor] = []

    def __call__(self, forward: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        self._features, self._gaps = None, []
        device = self._problem.device.type
        with (
            torch.autocast(device, torch.bfloat16)
            if self._plan.half and device == "cuda"
            else nullcontext()
        ):
            return main_output(forward(images))

    def seen(self) -> tuple[Tensor | None, Tensor | None]:
        return self._features, torch.stack(self._gaps).sum() if self._gaps else None

    @contextmanager
    def hooked(self) -> Iterator[None]:
        with ExitStack() as hooks:
            if self._problem.head is not None and any(
                term.sees_features for term in self._plan.regularizers
            ):
                hooks.enter_context(
                    self._problem.head.register_forward_pre_hook(self._take_features)
                )
            if any(term.sees_norms for term in self._plan.regularizers):
                for norm in self._problem.model.modules():
                    if isinstance(norm, _BATCH_NORMS) and norm.running_mean is not None:
                        hooks.enter_context(norm.register_forward_pre_hook(self._take_gap))
            yield
        self._features, self._gaps = None, []

    def _take_features(self, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features = inputs[0].flatten(1)

    def _take_gap(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """‖mean − running mean‖ + ‖var − running var‖ of what enters one BatchNorm layer."""
        dims = [d for d in range(inputs[0].ndim) if d != 1]
        variance, mean = torch.var_mean(inputs[0], dims, correction=0)
        kept = [
            needed(module.get_buffer(name), "What BatchNorm keeps")
            for name in ("running_mean", "running_var")
        ]
        self._gaps.append((mean - kept[0]).norm() + (variance - kept[1]).norm())
