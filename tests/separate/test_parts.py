"""Batches of trained models in which some samples left no more than a trace."""

from __future__ import annotations

import torch
from torch import nn

from support.head_cases import Case, case, trained
from unsum.certify.doubts.misfit import doubt_explanation
from unsum.certify.question import Question
from unsum.equation.observation import observe
from unsum.knowledge import Knowledge
from unsum.separate.exact.extraction import Extracted
from unsum.separate.exact.proposals import together
from unsum.separate.exact.search import Search


def with_a_sure_sample(gap: float) -> Case:
    """24 samples of a trained head, of which the first one's label is ahead of all others by so
    much."""
    truth = trained(24, 2, 2.0)
    linear = nn.Linear(256, 200)
    linear.load_state_dict({"weight": truth.head.W, "bias": truth.head.b})
    features, label = truth.features.clone(), int(truth.targets[0].argmax())
    others = torch.arange(200) != label
    while True:
        logits = truth.head.W @ features[0]
        if float(logits[label] - logits[others].max()) > gap:
            return case(features, linear, truth.targets)
        features[0] = torch.relu(features[0] + 0.1 * truth.head.W[label])


def solved_together(
    truth: Case, given: slice, first_times: float = 1.0
) -> tuple[float, bool, list[str]]:
    """Samples known to some 2 %, solved for together: the worst error, whether they explain the
    gradient, and the doubts.

    The error is that of the samples but the first, the sure one.
    """
    observation = observe(truth.head, None)
    assert observation.rank == 24
    A, features = observation.A.double(), truth.features[given].double()
    T = torch.linalg.lstsq(A.T, features.T).solution.T
    generator = torch.Generator().manual_seed(0)
    blurred = T * (1 + 0.02 * torch.randn(T.shape, generator=generator, dtype=T.dtype))
    blurred[0] *= first_times
    extracted = Extracted(blurred, truth.targets[given].argmax(1), 1 / 24, 0.0)
    candidate = Search.over(observation, None, None, 0).first_of(together(observation, extracted))
    assert candidate is not None
    found, true = candidate.at.T[-23:] @ A, features[-23:]
    errors = (found - true).norm(dim=1) / true.norm(dim=1)
    return (
        float(errors.max()),
        candidate.explains,
        doubt_explanation(Question(truth.head, observation, candidate, Knowledge())),
    )


def test_samples_are_sharpened_together_where_the_missing_one_is_faint() -> None:
    error, explains, doubts = solved_together(with_a_sure_sample(18.0), slice(1, None))
    assert error < 1e-3  # from 2 %
    assert explains
    assert "1 more may be in it that left hardly a trace" in doubts[0]


def test_samples_are_left_as_they_were_found_where_a_missing_one_is_not_faint() -> None:
    """Solved for together they would make up for it and become wrong."""
    error, explains, doubts = solved_together(with_a_sure_sample(0.0), slice(1, None))
    assert 1e-2 < error < 0.1  # what the blur was
    assert not explains
    assert "together they do not explain it" in doubts[0]


def test_a_sample_that_ran_away_is_left_out() -> None:
    """Far out in its label's direction p = e_y, to the last digit: it explains nothing and would
    pass for exact there."""
    error, explains, doubts = solved_together(
        with_a_sure_sample(18.0), slice(None), first_times=100.0
    )
    assert error < 1e-3
    assert explains
    assert doubts[0].startswith("23 samples are given")
