"""Many gradients at once: the same answers as one by one, and no answer where the solver of one has a doubt."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum.certify.doubts.merged import CHANCE, Rest, hidden_lengths, hidden_spread
from unsum.certify.doubts.mixing import hidden_mixing
from unsum.certify.doubts.nuisance import _added_error, _weights
from unsum.certify.further import temperature
from unsum.certify.question import Question
from unsum.equation.equation import Equation, Linearized
from unsum.equation.observation import observe
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.separate.at_once import evidence, exact_at_once
from unsum.separate.at_once.gradients import observe_at_once
from unsum.separate.at_once.solving import ManyEquations, Points
from unsum.separate.exact.search import Search

LABELS = ([7] * 5, [1, 2, 3, 4, 5], [9, 9, 9, 30, 31], [0, 0, 8, 8, 8])


@pytest.fixture(scope="module")
def model() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(48, 40)


def batch(number: int, spread: float = 0.5) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    shared = torch.randn(48, generator=generator)
    return (shared + spread * torch.randn(5, 48, generator=generator)).relu()


def sent(model: nn.Linear, number: int, labels: list[int], spread: float = 0.5) -> unsum.Update:
    return unsum.capture(model, batch(number, spread), torch.tensor(labels))


def answers(model: nn.Linear, updates: list[unsum.Update]) -> list[unsum.Leak | None]:
    grad_W, grad_b = (torch.stack([update.gradients[name] for update in updates]) for name in ("weight", "bias"))
    return exact_at_once(Head.of(model, updates[0]), grad_W, grad_b, [u.batch_size for u in updates], 0)


def test_the_same_as_one_by_one(model: nn.Linear) -> None:
    updates = [sent(model, n, labels) for n, labels in enumerate(LABELS)]
    for number, (update, found) in enumerate(zip(updates, answers(model, updates), strict=True)):
        alone = unsum.separate(model, update)
        assert found is not None
        assert found.exact
        assert alone.exact
        assert found.labels.tolist() == sorted(LABELS[number])
        assert found.predicted_error == pytest.approx(alone.predicted_error, rel=1e-3)
        truth = batch(number)
        assert unsum.score(found, features=truth)["worst_feature_error"] < 1e-5
        assert torch.allclose(found.logits.float().sum(0), (truth @ model.weight.T + model.bias).sum(0), atol=1e-3)
        assert found.residual < 1e-6


def test_no_answer_where_one_alone_is_not_certain(model: nn.Linear) -> None:
    plain = sent(model, 0, LABELS[2])
    torch.manual_seed(0)
    others = {
        "noise": unsum.Noise(1e-3)(plain),
        "scaled": plain.map(lambda _name, g: 3.0 * g),
        "nothing": plain.map(lambda _name, g: 0.0 * g),
        "another size": replace(plain, batch_size=6),
        "rounded": plain.map(lambda _name, g: g.bfloat16().float()),
        "nearly equal": sent(model, 1, LABELS[0], spread=3e-3),
        "of open weights": sent(model, 1, LABELS[0], spread=3e-2),
        "smoothed": unsum.capture(
            model, batch(3), unsum.smooth_labels(torch.nn.functional.one_hot(torch.tensor(LABELS[1]), 40), 0.2, 40)
        ),
    }
    found = answers(model, [plain, *others.values(), plain])
    assert [name for name, leak in zip(["plain", *others, "again"], found, strict=True) if leak] == ["plain", "again"]
    assert found[0] is not None  # whoever stands beside others is not changed by them
    assert found[-1] is not None
    assert found[0].predicted_error == pytest.approx(found[-1].predicted_error)


@pytest.fixture(scope="module")
def asked(model: nn.Linear) -> tuple[Question, Points, evidence._Followed]:
    """The same answer for both, so that every figure can be compared."""
    update = sent(model, 0, LABELS[2])
    head = Head.of(model, update)
    observation = observe(head, None)
    candidate = Search.over(observation, None, None, 0).best()
    assert candidate is not None
    equation: Equation = candidate.equation
    assert equation.Y is not None
    many = ManyEquations(
        equation.K[None], equation.b, equation.U[None], equation.weight[None], torch.tensor([equation.beta], dtype=torch.float64),
        equation.Y[None],
    )  # fmt: skip
    here = Points(many, candidate.at.T[None])
    size = candidate.at.T.norm(dim=1)
    follow = evidence._Followed(here, size.pow(-2).repeat_interleave(len(size))[None])
    return Question(head, observation, candidate, Knowledge()), here, follow


def test_the_equation_is_the_same(asked: tuple[Question, Points, evidence._Followed]) -> None:
    question, here, _ = asked
    torch.manual_seed(2)
    T = here.T[0] + 0.1 * torch.randn_like(here.T[0])
    alone = Linearized(question.candidate.equation, replace(question.candidate.at, T=T))
    many = Points(here.equations, T[None])
    n = T.numel()
    assert torch.allclose(many.residual[0], alone.residual, rtol=1e-10, atol=1e-6)
    assert torch.allclose(many.normal_matrix()[0], alone.normal_matrix[:n, :n], rtol=1e-9)
    assert torch.allclose(many.gradient()[0], alone.gradient[:n], rtol=1e-9)


def test_every_doubt_has_the_same_figure(asked: tuple[Question, Points, evidence._Followed]) -> None:
    question, here, follow = asked
    head, at = question.head, question.candidate.at
    floor = torch.ones(1, dtype=torch.float64)
    assert question.misfit == 1.0
    seen = observe_at_once(head, head.grad_W[None], head.grad_b[None], [None])[0]
    T = here.T @ (question.observation.A @ seen.A[0].T)  # the same features in the other's basis
    there = Points(replace(here.equations, K=seen.K), T)
    spread = hidden_spread(head, question.observation, at.T, question.candidate.Y, float(at.alpha))
    rest = Rest(head, question.observation)
    norm, largest = seen.rest[0].tolist()
    assert norm == pytest.approx(rest.norm, rel=1e-6)
    assert 0.999 * (rest.largest - CHANCE) < largest < 1.1 * (rest.largest - CHANCE)
    assert 0.2 * spread < float(evidence._hidden_spread(head, seen, there)) < 1.001 * spread  # by its norm alone
    assert float(evidence._hidden_lengths(here, follow, floor)) < hidden_lengths(question) < 1e-2  # that is a bound
    mixing = hidden_mixing(question)
    assert mixing is not None
    assert float(evidence._hidden_mixing(here, follow, floor)) == pytest.approx(mixing[0], rel=1e-3)
    tempered = question.here.sent(temperature(question.here))[None]
    for many, alone in ((evidence._weights, _weights(question)), (evidence._temperature, tempered)):
        left = float(evidence._left_open(here, follow, floor, many(here)))
        assert left == pytest.approx(_added_error(question, alone), rel=1e-3)
