"""Labels under noise: a matched filter for every class, and the posterior of how often each occurs.

A sample of class c lowers row c of the head's gradient by its features over B, and all rows rise by
what softmax gives them:

    ∇W_c = s/B Σ_i (p_ic − [y_i = c]) f_i + noise        ∇b_c = s/B Σ_i (p_ic − [y_i = c]) + noise

With features that scatter around a mean μ that public inputs show (`feature_prior`), three figures
of a row hold what it says of n_c, the number of samples of its class, and each is Gaussian given
n_c. The second one is left out where features are never negative: how much energy one sample has is
then less certain than what it adds:

    along the mean   t_c = ⟨∇W_c, μ⟩/‖μ‖²       mean u m(n), variance σ²/‖μ‖² + u² (q n + δ²)
    beside it        e_c = ‖∇W_c‖² − t_c² ‖μ‖²   mean (H − 1) v(n), v(n) = σ² + u² τ n/B²
    the bias         ∇b_c                         mean s m(n), variance σ² + s² δ²

with m(n) = (1 − n/B) p̄_c − n (1 − p)/B, what softmax gives the class less what its own samples
take. p̄_c is the mean probability of class c for public inputs, p that of a sample's own class, q n
the samples' own spread, δ that of p̄, τ the energy of a feature beside the mean. How large the
client's features are, times what clipping left of the gradient, is unknown: u takes every value on
a grid, with s = 1 or s = u, and evidence weighs them. So it does with B where nobody grants it. The
counts that have the most right labels on average are named: the B largest of all P(n_c ≥ k).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.equation.noise import measure_noise
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.labels.counts import at_least, count_posterior
from unsum.labels.feature_prior import FeaturePrior, feature_prior
from unsum.labels.method import Clues, RuleNeeds, label_rule
from unsum.running.sharing import once

# [1] sizes of the client's features times the scale of its gradient, over those of public inputs;
# steps of √2.
_SIZES = 2.0 ** (torch.arange(-16, 7, dtype=torch.float64) / 2)
_STEP = 0.2  # [share] that a size between two of the grid is off at most
# [samples] looked for where nobody says how many there are. Chosen by: arbitrary budget
_LARGEST = 64
# [samples] whose counts are weighed. Chosen by: arbitrary budget (a second for 100 classes)
MOST = 256
# [ratio] between sizes that are looked at, up to 8 and beyond. Chosen by: arbitrary budget
_SPARED = (1.0, 1.25)
# [nats] of evidence by which more samples must explain the update better than fewer do. Chosen by:
# Kass and Raftery 1995, who call a Bayes factor below 3 hardly worth a mention.
_FEWER = math.log(3)
_SPREAD = (
    # [share] that sizes of samples along μ differ. Chosen by: measurement (embedded photos, default
    # model: 0.17)
    0.25
)
# [nats] deviation of u before the update is seen. Chosen by: measurement (embedded photos: 0.5)
_USUAL = 0.5
# [nats] that a gradient of another scale than 1 is less likely. Chosen by: arbitrary, clipping is
# rare
_CLIPPED = 2.0
_ENERGY = (
    # [share] that a sample's energy beside the mean is off. Chosen by: measurement (embedded
    # photos: 0.2 to 0.5)
    0.5
)


@dataclass(frozen=True)
class CountEvidence:
    """`chance` (C, K): of every class, the chance that the batch holds it 1…K times or more. `size`
    has the most evidence."""

    chance: Tensor
    size: int
    scale: float  # s, of the gradient, on average over the hypotheses

    @property
    def labels(self) -> Tensor:
        """(B,) ascending: those of which most are right on average."""
        return self.chosen[0]

    @property
    def chosen(self) -> tuple[Tensor, Tensor]:
        """The labels (B,), and the chance that each is right."""
        top = self.chance.flatten().topk(min(self.size, self.chance.numel()))
        classes, order = (top.indices // self.chance.shape[1]).sort(stable=True)
        return classes, top.values[order]


@label_rule(
    "templates",
    summary="counts of every class by matched filters and their likelihood, through noise (unsum)",
    needs=RuleNeeds(),
)
def templates(evidence: Clues) -> Tensor:
    """(B,) labels, or as many as have the most evidence where the batch size is not granted."""
    prior = feature_prior(evidence.head, evidence.model, evidence.knowledge.public, evidence.seed)
    if prior is None:
        raise UnsumError(
            "'templates' cannot tell what features of this model look like; give public inputs "
            "with public=, or use 'row-sum'."
        )
    size, most = evidence.knowledge.known_batch_size, evidence.update.num_examples
    return count_evidence(evidence.head, prior, noise_of(evidence.head), size, most).labels


def noise_of(head: Head) -> float:
    """The standard deviation of an entry's noise, as the update itself shows it."""
    return float(measure_noise(head).level.square().mean().sqrt())


def count_evidence(
    head: Head, prior: FeaturePrior, sigma: float, size: int | None, most: int | None = None
) -> CountEvidence:
    """What the head's gradient says of every class's count, with noise of `sigma` on every entry,
    in a batch of `size` or, where that is not known, of `most` samples at most."""
    objects = (head.grad_W, prior)
    key = sigma, size, most
    return once("count evidence", objects, lambda: _weighed(head, prior, *key), *key)


def _weighed(
    head: Head, prior: FeaturePrior, sigma: float, size: int | None, most: int | None
) -> CountEvidence:
    if size is not None and size > MOST:
        raise UnsumError(f"'templates' counts up to {MOST} samples, not {size}; use 'llg'.")
    figures = _Figures.of(head, prior, sigma)
    u, s = figures.hypotheses()
    before = -0.5 * (u.log() / _USUAL).square() - _CLIPPED * (s != 1)

    def of(B: int) -> tuple[float, Tensor, Tensor, int]:
        evidence, marginals = count_posterior(figures.log_likelihood(B), B)
        evidence = evidence + before
        return float(evidence.logsumexp(0)), evidence, marginals, B

    first, *larger = [size] if size is not None else _sizes(head.classes, most)
    best = of(first)
    for B in larger:
        other = of(B)
        if other[0] > best[0] + _FEWER:
            best = other
    total, evidence, marginals, B = best
    weights = (
        (evidence - total).exp()
        if math.isfinite(total)
        else torch.full_like(evidence, 1 / len(evidence))
    )
    chance = at_least((weights[:, None, None] * marginals).sum(0))
    return CountEvidence(chance, B, float(weights @ s))


def _sizes(classes: int, declared: int | None) -> list[int]:
    """Every number of samples up to eight, and then fewer and fewer of them; none above the
    declared one."""
    sizes, most = [1], min(_LARGEST, max(classes - 1, 1), declared or _LARGEST)
    while sizes[-1] < most:
        sizes.append(max(sizes[-1] + 1, round(sizes[-1] * _SPARED[sizes[-1] >= 8])))
    return [size for size in sizes if size <= most]


@dataclass(frozen=True)
class _Figures:
    """What is looked at in the C rows, in float64."""

    along: Tensor | None  # (C,) t; None where the prior has no direction
    beside: Tensor | None  # (C,) e; None where features are never negative, whose mean says more
    bias: Tensor | None  # (C,)
    sigma: float
    width: int  # H
    mean_square: float  # ‖μ‖²
    energy: float  # τ
    p: Tensor  # (C,) p̄
    doubt: Tensor  # (C,) its standard deviation
    own: float  # p of a sample's own class, where it is a class that the model predicts
    summed: bool  # a sum over the batch, not a mean

    @classmethod
    def of(cls, head: Head, prior: FeaturePrior, sigma: float) -> _Figures:
        H, square = head.W.shape[1], float(prior.mean.square().sum())
        along = head.projected(prior.mean[None])[:, 0] / square if square > 0 else None
        energies = None
        if not prior.non_negative or along is None:
            energies = head.row_norms(head.grad_W).square()
            energies = energies if along is None else energies - along.square() * square
        P = prior.probabilities(head)
        p = P.mean(0)
        doubt = P.std(0).nan_to_num(0.0).maximum(_EVEN_P * p)
        return cls(
            along, energies, None if head.grad_b is None else head.grad_b.double(), sigma, H,
            square, prior.energy, p, doubt, float(P.amax(1).mean()), head.reduction == "sum",
        )  # fmt: skip

    def hypotheses(self) -> tuple[Tensor, Tensor]:
        """u and s (S,): features of another size in a gradient of scale 1, or a gradient of another
        scale."""
        u = _SIZES.to(self.p.device)
        if self.bias is None:
            return u, torch.ones_like(u)
        return torch.cat([u, u]), torch.cat([torch.ones_like(u), u])

    def log_likelihood(self, B: int) -> Tensor:
        """(S, C, B + 1) of the counts 0…B."""
        u, s = (value[:, None, None] for value in self.hypotheses())
        n = torch.arange(B + 1, dtype=torch.float64, device=self.p.device)
        p, share = self.p[:, None], n / B
        pull = (1 - share) * p - share * (1 - self.own)  # m(n)
        doubt = (self.doubt[:, None] ** 2) / B + share * self.own * (1 - self.own) / B
        if self.summed:
            pull, doubt, share = B * pull, B**2 * doubt, n
        each = share if self.summed else share / B  # Σ over n samples of 1/B²
        logs = u.new_zeros(())
        if self.along is not None:
            # What a sample's size and the grid's steps leave open, of the pull and of all rows'
            # common part.
            variance = self.sigma**2 / self.mean_square + u**2 * (
                _SPREAD**2 * each + _STEP**2 * pull**2 + doubt + p**2 * _SPREAD**2
            )
            logs = logs + _normal(self.along[:, None] - u * pull, variance)
        if self.beside is not None:
            extra = u**2 * self.energy * (each * (1 - self.own) ** 2 + doubt + p**2 / B)
            freedom = max(self.width - 1, 1)
            variance = 2 * freedom * (self.sigma**2 + extra) ** 2 + (_ENERGY * freedom * extra) ** 2
            logs = logs + _normal(
                self.beside[:, None] - freedom * (self.sigma**2 + extra), variance
            )
        if self.bias is not None:
            off = torch.where(s == 1, 0.0, _STEP) * pull
            logs = logs + _normal(
                self.bias[:, None] - s * pull, self.sigma**2 + s**2 * doubt + (s * off) ** 2
            )
        return logs


# [share] of a probability, that it differs between samples at least. Chosen by: arbitrary budget
_EVEN_P = 0.3


def _normal(off: Tensor, variance: Tensor) -> Tensor:
    """The log density of a Gaussian, up to a constant."""
    variance = variance.clamp_min(1e-30)
    return -0.5 * (off.square() / variance + variance.log())
