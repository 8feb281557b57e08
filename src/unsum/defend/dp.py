"""DP-SGD (Abadi et al. 2016) through Opacus: every sample's gradient is clipped, then noise is
added to their sum.

    g = (Σ_i g_i · min(1, c/‖g_i‖) + N(0, σ² c²)) / B

with g_i the gradient of sample i over all parameters together, c the clipping norm and σ the noise
multiplier. Opacus clips, adds the noise and keeps the accounts; the per-sample gradients come from
torch.func, because Opacus' own hooks pass over layers in eval mode. What the accountant promises
presumes that each sample enters by itself: a mixup before it breaks that.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unsum.client.step import ClientStep, Gradients, Stage, in_mode, loss_rows, mean_loss
from unsum.defend.added import AddedNoise
from unsum.defend.defense import DEFENSES, Axis, ClientDefense, Defense, require
from unsum.defend.noise import at_least_float32
from unsum.errors import UnsumError, check_name, optional
from unsum.gradients import main_output

_ACCOUNTANTS = ("prv", "rdp", "gdp")


@DEFENSES.register(
    "dp",
    summary="DP-SGD: clip every sample's gradient to norm 1, add noise of this multiplier",
    needs="Opacus (the extra dp), and no BatchNorm in train mode",
)
class DPSGD(ClientDefense):
    """One differentially private step; noise of standard deviation `noise · clip / B` on every
    entry.

    `privacy_spent` says what ε a training of such steps costs.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(8, 6)
        >>> inputs, labels = torch.randn(3, 8), torch.tensor([4, 4, 1])
        >>> update = unsum.capture(model, inputs, labels, defenses=unsum.DPSGD(0.0, clip=0.1))
        >>> bool(  # a mean of gradients of norm 0.1
        ...     torch.stack([g.norm() for g in update.gradients.values()]).norm() <= 0.1
        ... )
        True
    """

    stage = Stage.GRADIENT
    example = 1.0
    axis = Axis("noise multiplier")

    def __init__(self, noise: float, *, clip: float = 1.0) -> None:
        super().__init__(
            require(0 <= noise < math.inf, "DP-SGD needs a noise multiplier of at least 0", noise)
        )
        what = "DP-SGD needs a positive norm to clip each sample's gradient to"
        self.clip = require(0 < clip < math.inf, what, clip)

    def before(self, step: ClientStep) -> ClientStep:
        _opacus()
        return replace(step, gradient=self._private_gradient)

    def _private_gradient(self, step: ClientStep) -> Gradients:
        with in_mode(step.model, step.train):
            _refuse_batch_norm(step.model)
            samples = per_sample_gradients(step)
        kinds = {name: g.dtype for name, g in samples.items()}
        samples = {name: at_least_float32(g) for name, g in samples.items()}  # noise is added
        parameters = {name: nn.Parameter(torch.zeros_like(g[0])) for name, g in samples.items()}
        for name, parameter in parameters.items():
            parameter.grad_sample = samples[name]  # type: ignore[attr-defined]
        optimizer = _opacus().optimizers.DPOptimizer(
            torch.optim.SGD(parameters.values()),
            noise_multiplier=self.strength,
            max_grad_norm=self.clip,
            expected_batch_size=len(step.images),
        )
        optimizer.pre_step()  # clip, sum, noise, mean: everything but moving the weights
        found = {name: p.grad.detach() for name, p in parameters.items() if p.grad is not None}
        return {name: g.to(kinds[name]) for name, g in found.items()}

    def noise_free(self, samples: int) -> tuple[tuple[Defense, ...], AddedNoise | None]:
        """The mean of clipped gradients; its noise is σ c / B, in every step anew."""
        scale = self.strength * self.clip / samples
        return (DPSGD(0.0, clip=self.clip),), AddedNoise(
            "gaussian", scale, every_step=True
        ) if scale else None

    def __repr__(self) -> str:
        return f"DPSGD({self.strength:g}, clip={self.clip:g})"


def privacy_spent(
    noise: float, *, steps: int, sampling_rate: float, delta: float, accountant: str = "prv"
) -> float:
    """The ε for which `steps` steps of DP-SGD are (ε, delta)-differentially private, by Opacus'
    accountant.

    That is P[M(D) ∈ S] ≤ e^ε P[M(D′) ∈ S] + delta for data D and D′ that differ in one sample, and
    every set S of updates.

    Args:
        noise: the noise multiplier σ.
        sampling_rate: the chance of a sample to be in one step's batch, B / (number of the client's
            samples).
        delta: usually below 1 / (number of the client's samples).
        accountant: `prv` (the tightest, Opacus' default), `rdp` (Rényi) or `gdp` (Gaussian,
            approximate).

    Examples:
        >>> import unsum
        >>> round(
        ...     unsum.privacy_spent(
        ...         1.0, steps=100, sampling_rate=0.01, delta=1e-5, accountant="rdp"
        ...     ),
        ...     2,
        ... )
        1.21
    """
    if not (noise > 0 and math.isfinite(noise)):
        raise UnsumError(
            "Without noise there is no privacy to account for; give a positive multiplier, not "
            f"{noise}."
        )
    if not (0 < sampling_rate <= 1 and 0 < delta < 1 and steps >= 1):
        raise UnsumError(
            "Privacy is accounted for at least one step, a sampling rate above 0 and up to 1, and "
            f"a delta between 0 and 1; found {steps}, {sampling_rate} and {delta}."
        )
    check_name("privacy accountant", accountant, _ACCOUNTANTS)
    accounts = _opacus().accountants.create_accountant(accountant)
    accounts.history = [(noise, sampling_rate, steps)]
    # where its best order is the smallest it tries, the bound is loose and still one
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order")
        return float(accounts.get_epsilon(delta))


def per_sample_gradients(step: ClientStep) -> Gradients:
    """(B, …) for every trainable parameter: the gradient of each sample's own loss, in the model's
    present mode."""
    trainable = {name: p.detach() for name, p in step.model.named_parameters() if p.requires_grad}
    rows = loss_rows(step.loss, step.targets, step.classes).to(step.images.device)

    def loss(parameters: Mapping[str, Tensor], image: Tensor, row: Tensor) -> Tensor:
        logits = main_output(
            torch.func.functional_call(step.model, dict(parameters), (image[None],))
        )
        return mean_loss(step.loss, logits, row[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")
    gradients: Gradients = each(trainable, step.images, rows)
    return gradients


def replace_batch_norm(model: nn.Module) -> nn.Module:
    """A copy of `model` that DP-SGD can train: every BatchNorm replaced by a GroupNorm (Opacus'
    `ModuleValidator.fix`).

    The replaced layers start fresh; the server must send out, and the attack must be given, this
    model.
    """
    fixed: nn.Module = _opacus().validators.ModuleValidator.fix(model)
    return fixed


def _refuse_batch_norm(model: nn.Module) -> None:
    """BatchNorm that uses the batch's own statistics mixes the samples: there is no per-sample
    gradient to clip."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            module.training or module.running_mean is None
        ):
            raise UnsumError(
                f"DP-SGD cannot train {name!r}, a {type(module).__name__} that mixes the samples "
                "of a batch; replace it with model = unsum.defend.replace_batch_norm(model), or "
                "use eval mode (train=False, --eval-mode)."
            )


def _opacus() -> Any:
    """Imported when it is first needed: it is an extra, and slow to import."""
    return optional("opacus", "dp", "DP-SGD needs Opacus")
