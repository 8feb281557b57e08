"""How often each class occurs in a batch of B: the posterior of all counts at once, with no hard
cut.

Let the classes' observations be independent given their counts n_c, with likelihood L_c(n). Labels
that are drawn independently and evenly from C classes have counts with the multinomial prior, so

    P(n | observations) ∝ B!/C^B ∏_c L_c(n_c)/n_c!        where Σ_c n_c = B

The factor of a polynomial ∏_c Σ_k L_c(k)/k! x^k in front of x^B is the evidence of B, and products
of all polynomials but one give the marginal of that class: one pass forwards, one backwards, exact.
B! and C^B count how many ways of labeling there are, which makes fewer samples the better
explanation of equal pulls.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# [1] likelihood of a count over that of its class's likeliest, from which it is looked at
_NEGLIGIBLE = 1e-15


def count_posterior(log_likelihood: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The log evidence (S,) of `size` samples, and the marginals (S, C, K + 1) of every count,
    under S hypotheses.

    Args:
        log_likelihood: (S, C, K + 1) of the counts 0…K of every class.
        size: B.

    Two classes, one sample, and an observation that is three times likelier under the second:

    >>> likelihood = torch.tensor([[[1.0, 1.0], [1.0, 3.0]]])
    >>> evidence, marginals = count_posterior(likelihood.log(), 1)
    >>> round(float(evidence.exp()), 6), [round(float(row[1]), 6) for row in marginals[0]]
    (2.0, [0.25, 0.75])
    """
    S, C, _ = log_likelihood.shape
    K = min(log_likelihood.shape[2] - 1, size)
    k = torch.arange(K + 1, dtype=torch.float64, device=log_likelihood.device)
    logs = log_likelihood[:, :, : K + 1].double() - torch.lgamma(k + 1)
    highest = logs.amax(2, keepdim=True)
    weights = (logs - highest).exp()
    likely = (weights > _NEGLIGIBLE).any(0).any(0).nonzero()
    K = int(likely.max()) if len(likely) else 0
    weights = weights[:, :, : K + 1]
    before, scale = _products(weights, size)
    after = _products(weights.flip(1), size)[0].flip(1)
    end = before[:, -1, size]
    constant = math.lgamma(size + 1) - size * math.log(C)
    evidence = end.log() + scale + highest.sum((1, 2)) + constant
    # Of x^B in the product, class c has x^k, the classes before it x^t, those after it the rest.
    joint = torch.stack(
        [
            (before[:, :-1, : size - n + 1] * after[:, 1:, : size - n + 1].flip(2)).sum(2)
            for n in range(K + 1)
        ],
        2,
    )
    joint = joint * weights
    total = joint.sum(2, keepdim=True)
    marginals = joint.new_zeros(S, C, log_likelihood.shape[2])
    # A size that no counts explain has no evidence, and nothing to average.
    marginals[:, :, : K + 1] = torch.where(total > 0, joint / total.clamp_min(1e-300), 0.0)
    return evidence, marginals


def _products(weights: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """(S, C + 1, B + 1) the products of the first 0…C polynomials up to x^B, each in a scale of its
    own; the last one's log."""
    S, C, width = weights.shape
    products = weights.new_zeros(S, C + 1, size + 1)
    products[:, 0, 0] = 1.0
    log_scale = weights.new_zeros(S)
    for c in range(C):
        known, new = products[:, c], products[:, c + 1]
        for k in range(width):
            new[:, k:] += known[:, : size + 1 - k] * weights[:, c, k, None]
        largest = new.amax(1, keepdim=True).clamp_min(1e-300)
        new /= largest
        log_scale = log_scale + largest[:, 0].log()
    return products, log_scale


def at_least(marginals: Tensor) -> Tensor:
    """(…, K) the chance that a class occurs 1…K times or more, from marginals (…, K + 1)."""
    return marginals.flip(-1).cumsum(-1).flip(-1)[..., 1:]
