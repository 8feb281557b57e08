"""Phong's ratio at the first layer: one sample's input is any row of that layer's weight gradient
over its bias gradient.

For B = 1 the first Linear has ∇W_i = δ_i x and ∇b_i = δ_i, so x = ∇W_i / ∇b_i for every unit i with
δ_i ≠ 0; the unit of the largest |∇b_i| is the most precise. Nothing above the first layer is
needed, nor the labels. For B > 1 it is a mean with unknown weights.

**Was it one sample?** A mean explains ∇W as well wherever all samples have proportional δ: with two
classes, say, and the same ReLUs on. So the claim needs more than a gradient of rank one: the batch
size, or a model that would have shown two samples. It is asked (`_Model.doubt`): x must send the δ
that was received, and two samples x ± d must send others.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsum.certify.claim import FALSE_ERROR, grant_each
from unsum.engine.replay import rounding
from unsum.engine.twins import FAR, Passed, SentLayers
from unsum.errors import UnsumError
from unsum.gradients import same_buffers
from unsum.head import collect_features, find_head
from unsum.leak import Leak
from unsum.network.chain import Shape, first_linear
from unsum.network.products import residual_norm
from unsum.network.shapes import picture_shape
from unsum.peel.method import PEELERS, Peeled, PeeledLayer
from unsum.peel.replay import DRAWS
from unsum.update import Update

_REPLAYED = 1e-3  # relative difference of δ that the model's own float32 may leave


@PEELERS.register(
    "phong-input",
    summary="one sample's input by the ratio of the first layer's gradients (Phong 2017)",
    needs="a first Linear with bias, a batch of one sample",
)
def phong_input(
    model: nn.Module, update: Update, leak: Leak | None, *, shape: Shape | None, seed: int
) -> Peeled:
    """The ratio, exact if the whole gradient turns out to be of rank one, and one sample's."""
    step, flattens = first_linear(model, update)
    if step.grad_b is None or not bool(step.grad_b.any()) or not bool(step.grad_W.any()):
        raise UnsumError(
            f"'phong-input' needs gradients of the first layer {step.name!r} and its bias; use "
            "'layers'."
        )
    grad_b = step.grad_b.double()
    row = int(grad_b.abs().argmax())
    x = (step.grad_W[row].double() / grad_b[row])[None]
    size = float(step.grad_W.double().norm())
    residual = residual_norm(step.grad_W, grad_b[None], x) / size
    rank_one = residual < rounding(step.grad_W.dtype)
    error = residual if rank_one else torch.inf
    picture, guessed = picture_shape(step, flattens, shape)
    inputs = x.view(1, *picture)
    if rank_one:
        said = leak.knowledge.known_batch_size if leak is not None else update.batch_size
        left = max(residual, 0.5 * torch.finfo(step.grad_W.dtype).eps) * size
        doubts = (
            _Model(model, update, step.module, grad_b, inputs).doubt(left, seed)
            if said is None
            else []
        )
        if said not in (None, 1):
            doubts = [
                f"The batch holds {said} samples, and the ratio is a mixture of them; use 'layers'."
            ]
    else:
        doubts = [f"{residual:.1%} of the gradient is not explained by one sample; use 'layers'."]
    layer = PeeledLayer(step.name, error, residual, x.numel(), step.grad_W.numel())
    errors = torch.full((1,), error, dtype=torch.float64, device=x.device)
    exact = grant_each(errors, above=rank_one, doubts=doubts)
    return Peeled("phong-input", inputs, errors, exact, True, [layer], [*doubts, *guessed])


class _Model:
    """The whole model, one input at a time, from the first layer's output to its logits."""

    def __init__(
        self, model: nn.Module, update: Update, first: nn.Module, received: Tensor, x: Tensor
    ) -> None:
        self.model, self.first, self.received = model, first, received
        self.x = x.to(next(model.parameters()))
        name = ".".join(filter(None, [find_head(model)[0], "weight"]))
        self.head_gradient = update.gradients.get(name)

    def doubt(self, left: float, seed: int) -> list[str]:
        """The doubt that several samples sent this; `left` is what x leaves of ∇W."""
        several = (
            "A batch of several samples may have sent this, and the ratio be a mixture of them"
        )
        if self.head_gradient is None:
            return [
                f"{several}: the update lacks the head's gradient; say the batch size if it is one."
            ]
        try:
            with same_buffers(self.model):
                if not self._replays():
                    return [f"{several}: the model does not send this gradient for it."]
                if not self._shows_two(left, seed):
                    return [
                        f"{several}: two would look like one here; say the batch size if it is one."
                    ]
        except (RuntimeError, ValueError):
            # the model takes no such input, or no single one (BatchNorm in training)
            return [f"{several}: the model does not take it alone."]
        return []

    def _replays(self) -> bool:
        """Whether x sends the first layer the δ that it received. G is the head's: ∇W_head = Gᵀ
        f."""
        f = collect_features(self.model, self.x).double()[0]
        assert self.head_gradient is not None
        self.G = self.head_gradient.double() @ f / f.square().sum().clamp_min(1e-300)
        self.delta, logits = self._sent(self.x, self.G)
        self.P = logits.softmax(0)
        label = int(self.G.argmin())
        self.scale = -self.G[label] / (1 - self.P[label]).clamp_min(1e-12)
        apart = float((self.delta - self.received).norm() / self.received.norm())
        return apart < max(_REPLAYED, rounding(self.head_gradient.dtype))

    def _shows_two(self, left: float, seed: int) -> bool:
        """Whether x ± d would leave a second direction in ∇W, far above what is left, for every d
        that is tried."""

        def play(moved: Tensor) -> dict[str, Passed]:
            return {"": self._passed(moved, self._moved(moved.to(self.x)))}

        x = self.x.double()
        sent = SentLayers(x, {"": self._passed(x, self.delta)}, {"": left}, play)
        return bool((sent.twins(FALSE_ERROR, DRAWS, seed) > FAR).all())

    def _passed(self, x: Tensor, delta: Tensor) -> Passed:
        """What the first layer reads, with the constant of its bias, and its δ."""
        read = torch.cat([x.flatten(1), x.new_ones(1, 1)], 1)
        return Passed(read[:, None], delta[None, None])

    def _moved(self, x: Tensor) -> Tensor:
        """δ for another input with the same target: the softmax moves, and the slopes."""
        with torch.no_grad():
            P = self.model(x)[0].double().softmax(0)
        return self._sent(x, self.G + self.scale * (P - self.P))[0]

    def _sent(self, x: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
        """δ of the first layer and the logits, for the derivative G by the logits."""
        kept: list[Tensor] = []
        keep = self.first.register_forward_hook(
            lambda _module, _inputs, output: kept.append(output)
        )
        with keep, torch.enable_grad():
            logits = self.model(x)
            (delta,) = torch.autograd.grad(logits, kept[0], G.to(logits)[None])
        return delta[0].double(), logits[0].detach().double()
