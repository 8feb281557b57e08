"""What platforms ship, at the values that they ship with: the part of each filter that an update
passes before the server sees it.

Written after the platforms' documentation and checked against their own code (tests/integrations).
Filters of Flower and NVFlare act on the change of the weights; where a client sends its gradient,
they act on that.

Central differential privacy adds its noise on the server, to the mean over clients. The server
itself receives every client's clipped update without noise, and this is what an audit looks at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from unsum.defend.added import AddedNoise
from unsum.defend.clip import Clip
from unsum.defend.defense import DEFENSES, Defense, Switch, require
from unsum.defend.dp import DPSGD
from unsum.defend.noise import Noise
from unsum.update import Update


@DEFENSES.register(
    "flower:fixed-clipping",
    summary="Flower's central DP with fixed clipping, as a server sees a client: clipped",
)
class FlowerFixedClipping(Switch):
    """`fixedclipping_mod`: the change of the weights, scaled down to norm 10 as in Flower's example
    of central DP.

    Examples:
        >>> import torch
        >>> update = Update({"w": torch.tensor([30.0, 40.0])})
        >>> FlowerFixedClipping()(update).gradients["w"]
        tensor([6., 8.])
    """

    def __init__(self, *, clipping_norm: float = 10.0) -> None:
        super().__init__()
        self.clipping_norm = require(
            0 < clipping_norm < math.inf, "Clipping needs a positive norm", clipping_norm
        )

    def __call__(self, update: Update) -> Update:
        return Clip(self.clipping_norm)(update)

    def noise_free(self, samples: int) -> tuple[tuple[Defense, ...], AddedNoise | None]:  # noqa: ARG002
        return (Clip(self.clipping_norm),), None


@DEFENSES.register(
    "flower:adaptive-clipping",
    summary="Flower's central DP with adaptive clipping, first round: clipped to norm 0.1",
)
class FlowerAdaptiveClipping(FlowerFixedClipping):
    """`adaptiveclipping_mod` in its first round: the norm starts at 0.1 and follows the clients'
    median (Andrew et al. 2021)."""

    def __init__(self, *, clipping_norm: float = 0.1) -> None:
        super().__init__(clipping_norm=clipping_norm)


@DEFENSES.register(
    "flower:local-dp",
    summary="Flower's LocalDpMod at ε = 1, δ = 1e-5: clipped to norm 1, then noise",
)
class FlowerLocalDP(Switch):
    """Clipping, then N(0, (s √(2 ln(1.25/δ)) / ε)²) on every entry. Flower asks for all four
    numbers; these are textbook ones."""

    def __init__(
        self,
        *,
        clipping_norm: float = 1.0,
        sensitivity: float = 1.0,
        epsilon: float = 1.0,
        delta: float = 1e-5,
    ) -> None:
        super().__init__()
        self.clipping_norm = require(
            0 < clipping_norm < math.inf, "Clipping needs a positive norm", clipping_norm
        )
        self.sensitivity = require(
            0 <= sensitivity < math.inf, "Local DP needs a sensitivity of at least 0", sensitivity
        )
        self.epsilon = require(0 < epsilon < math.inf, "Local DP needs an ε above 0", epsilon)
        self.delta = require(0 < delta < 1, "Local DP needs a δ between 0 and 1", delta)

    @property
    def deviation(self) -> float:
        return self.sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon

    def __call__(self, update: Update) -> Update:
        return Noise(self.deviation)(Clip(self.clipping_norm)(update))

    def noise_free(self, samples: int) -> tuple[tuple[Defense, ...], AddedNoise | None]:
        return (Clip(self.clipping_norm),), Noise(self.deviation).noise_free(samples)[1]


@DEFENSES.register(
    "nvflare:percentile",
    summary=(
        "NVFlare's PercentilePrivacy: the smallest 10 % of entries zero, the others cut to ±0.01"
    ),
)
class NvflarePercentile(Switch):
    """Entries below the percentile of all absolute values are not sent (Shokri and Shmatikov 2015);
    those above `gamma` are cut.

    Examples:
        >>> import torch
        >>> update = Update({"w": torch.tensor([0.5, -0.003, 0.002, 0.0001])})
        >>> NvflarePercentile()(update).gradients["w"]
        tensor([ 0.0100, -0.0030,  0.0020,  0.0000])
    """

    def __init__(self, *, percentile: float = 10.0, gamma: float = 0.01) -> None:
        super().__init__()
        self.percentile = require(
            0 <= percentile <= 100, "A percentile lies between 0 and 100", percentile
        )
        self.gamma = require(
            0 < gamma < math.inf, "PercentilePrivacy needs a positive gamma", gamma
        )

    def __call__(self, update: Update) -> Update:
        sizes = (
            torch.cat([g.detach().flatten().abs() for g in update.gradients.values()]).cpu().numpy()
        )
        # torch.quantile takes 16 million entries at most
        cutoff = float(np.percentile(sizes, self.percentile))

        def changed(_name: str, gradient: Tensor) -> Tensor:
            if gradient.ndim == 0:
                return gradient
            return torch.where(gradient.abs() < cutoff, 0.0, gradient).clamp(
                -self.gamma, self.gamma
            )

        return update.map(changed)


@DEFENSES.register(
    "nvflare:svt", summary="NVFlare's SVTPrivacy: a noisy tenth of the entries, each cut to ±1e-5"
)
class NvflareSVT(Switch):
    """The sparse vector technique (Lyu et al. 2017): entries that pass a noisy threshold are
    candidates; a tenth is drawn from them with replacement and sent with noise, cut to ±`gamma`;
    all others are zero."""

    def __init__(
        self,
        *,
        fraction: float = 0.1,
        epsilon: float = 0.1,
        noise_var: float = 0.1,
        gamma: float = 1e-5,
        tau: float = 1e-6,
    ) -> None:
        super().__init__()
        self.fraction = require(
            0 < fraction <= 1, "SVT needs a fraction above 0 and up to 1", fraction
        )
        self.epsilon = require(0 < epsilon < math.inf, "SVT needs an epsilon above 0", epsilon)
        self.noise_var = require(0 < noise_var < math.inf, "SVT needs a noise above 0", noise_var)
        self.gamma = require(0 < gamma < math.inf, "SVT needs a positive gamma", gamma)
        self.tau = tau

    def __call__(self, update: Update) -> Update:
        names = sorted(update.gradients)
        flat = torch.cat([update.gradients[name].flatten() for name in names]).double()
        sent = math.ceil(self.fraction * len(flat))
        chosen = self._candidates(flat, sent)
        chosen = chosen[torch.randint(len(chosen), (sent,), device=flat.device)]
        noise = _laplace((sent,), 2 * self.gamma / self.noise_var, flat)
        kept = torch.zeros_like(flat)
        kept[chosen] = (flat[chosen] + noise).clamp(-self.gamma, self.gamma)
        parts = kept.split([update.gradients[name].numel() for name in names])
        found = dict(zip(names, parts, strict=True))
        return update.map(lambda name, g: g if g.ndim == 0 else found[name].view_as(g).to(g))

    def _candidates(self, flat: Tensor, sent: int) -> Tensor:
        """Places whose size passes the threshold, both noisy; all are asked again until enough have
        passed. Of ε, the threshold has one part and c entries have (2c)^⅔, as in NVFlare 2.9."""
        threshold_epsilon = self.epsilon / (1 + (2 * sent) ** (2 / 3))
        threshold = self.tau + float(_laplace((), self.gamma / threshold_epsilon, flat))
        spread = 2 * self.gamma * sent / (self.epsilon - threshold_epsilon)
        sizes, passed = (
            flat.abs().clamp(max=self.gamma),
            torch.zeros(len(flat), dtype=torch.bool, device=flat.device),
        )
        while int(passed.sum()) < sent:
            passed |= sizes + _laplace(sizes.shape, spread, flat) >= threshold
        return passed.nonzero()[:, 0]


@DEFENSES.register(
    "nvflare:exclude-vars",
    summary="NVFlare's ExcludeVars, which leaves nothing out unless it is told what",
)
class NvflareExcludeVars(Switch):
    """Tensors whose names match (a regular expression, or one of a list) are not sent; at the
    default all are.

    Examples:
        >>> import torch
        >>> update = Update({"fc.weight": torch.ones(1), "conv.weight": torch.ones(1)})
        >>> list(NvflareExcludeVars(exclude_vars="fc")(update).gradients)
        ['conv.weight']
    """

    def __init__(self, *, exclude_vars: str | Iterable[str] | None = None) -> None:
        super().__init__()
        self.exclude_vars = (
            exclude_vars
            if exclude_vars is None or isinstance(exclude_vars, str)
            else list(exclude_vars)
        )

    def __call__(self, update: Update) -> Update:
        told = self.exclude_vars
        if not told:
            return update
        out = {
            n
            for n in update.gradients
            if (re.search(told, n) if isinstance(told, str) else n in told)
        }
        return replace(
            update, gradients={name: g for name, g in update.gradients.items() if name not in out}
        )


@DEFENSES.register(
    "opacus:readme",
    summary="DP-SGD as in Opacus' README: noise multiplier 1.1, every sample clipped to norm 1",
    needs="Opacus (the extra dp), and no BatchNorm in train mode",
)
class OpacusReadme(DPSGD):
    """`make_private(noise_multiplier=1.1, max_grad_norm=1.0)`."""

    def __init__(self) -> None:
        super().__init__(1.1, clip=1.0)


def _laplace(shape: tuple[int, ...] | torch.Size, scale: float, like: Tensor) -> Tensor:
    one, other = (like.new_empty(shape).exponential_() for _ in range(2))
    return scale * (one - other)
