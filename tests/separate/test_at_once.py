"""Many gradients at once: the same answers as one by one, and no answer where the solver of one has
a doubt."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum.certify.doubts.merged import CHANCE, Rest, hidden_spread, spread_of_lengths
from unsum.certify.doubts.mixing import hidden_mixing, mixed_at_most
from unsum.certify.doubts.nuisance import _added_error, _weights
from unsum.certify.further import all_others, further_unknowns
from unsum.certify.information import sample_information
from unsum.certify.question import Question
from unsum.equation.equation import Equation, Linearized, Unknowns
from unsum.equation.observation import observe
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.separate.at_once import evidence, exact_at_once
from unsum.separate.at_once.gradients import Observations, observe_at_once
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
    grad_W, grad_b = (
        torch.stack([update.gradients[name] for update in updates]) for name in ("weight", "bias")
    )
    return exact_at_once(
        Head.of(model, updates[0]), grad_W, grad_b, [u.batch_size for u in updates], 0
    )


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
        assert torch.allclose(
            found.logits.float().sum(0), (truth @ model.weight.T + model.bias).sum(0), atol=1e-3
        )
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
            model,
            batch(3),
            unsum.smooth_labels(torch.nn.functional.one_hot(torch.tensor(LABELS[1]), 40), 0.2, 40),
        ),
    }
    found = answers(model, [plain, *others.values(), plain])
    assert [
        name for name, leak in zip(["plain", *others, "again"], found, strict=True) if leak
    ] == ["plain", "again"]
    assert found[0] is not None  # whoever stands beside others is not changed by them
    assert found[-1] is not None
    assert found[0].predicted_error == pytest.approx(found[-1].predicted_error)


@pytest.fixture(scope="module")
def asked(model: nn.Linear) -> tuple[Question, Observations, Linearized]:
    """The same answer for both, in the basis of each, so that every figure can be compared."""
    head = Head.of(model, sent(model, 0, LABELS[2]))
    observation = observe(head, None)
    candidate = Search.over(observation, None, None, 0).best()
    assert candidate is not None
    equation = candidate.equation
    assert equation.Y is not None
    assert head.grad_b is not None
    seen = observe_at_once(head, head.grad_W[None], head.grad_b[None], [None])[0]
    turn = observation.A @ seen.A[0].T
    U = torch.cat([seen.U, (seen.beta[:, None] * seen.grad_b)[..., None]], dim=2)
    many = Equation(seen.K, equation.b, U, equation.weight[None], seen.beta, equation.Y[None])
    here = Linearized(many, Unknowns.of((candidate.at.T @ turn)[None], float(candidate.at.alpha)))
    return Question(head, observation, candidate, Knowledge()), seen, here


def test_many_equations_are_each_of_them(asked: tuple[Question, Observations, Linearized]) -> None:
    """Two gradients of one head at a point each: residual, normal matrix and products are those of
    each alone."""
    question, _, here = asked
    torch.manual_seed(2)
    one, other = (
        here.equation,
        replace(here.equation, U=1.1 * here.equation.U, K=0.9 * here.equation.K),
    )
    both = replace(
        one,
        K=torch.cat([one.K, other.K]),
        U=torch.cat([one.U, other.U]),
        weight=one.weight.repeat(2, 1),
        beta=torch.cat([one.beta, one.beta]),
        Y=torch.cat([one.Y, one.Y]),
        alpha_free=True,
    )
    T = here.at.T + 0.1 * torch.randn(2, *here.at.T.shape[1:], dtype=torch.float64)
    together = Linearized(both, Unknowns.of(T, 0.3))
    V, steps = (
        torch.randn(2, 4, *one.U.shape[1:]).double(),
        torch.randn(2, 4, T[0].numel() + 2).double(),
    )
    for n, equation in enumerate((one, other)):
        alone = replace(
            equation,
            K=equation.K[0],
            U=equation.U[0],
            weight=equation.weight[0],
            beta=float(one.beta),
            Y=one.Y[0],
        )
        single = Linearized(replace(alone, alpha_free=True), Unknowns.of(T[n], 0.3))
        assert torch.allclose(together.residual[n], single.residual, rtol=1e-9, atol=1e-6)
        assert torch.allclose(together.normal_matrix[n], single.normal_matrix, rtol=1e-9, atol=1e-6)
        assert torch.allclose(
            together.normal_diagonal[n], single.normal_matrix.diagonal(), rtol=1e-9, atol=1e-6
        )
        assert torch.allclose(together.gradient[n], single.gradient, rtol=1e-9, atol=1e-6)
        assert torch.allclose(together.pull(V)[n], single.pull(V[n]), rtol=1e-9, atol=1e-6)
        assert torch.allclose(together.push(steps)[n], single.push(steps[n]), rtol=1e-9, atol=1e-6)
    assert float(question.candidate.at.alpha) == pytest.approx(0.2)


def test_every_doubt_has_the_same_figure(asked: tuple[Question, Observations, Linearized]) -> None:
    question, seen, here = asked
    head, at = question.head, question.candidate.at
    assert question.misfit == 1.0
    spread = hidden_spread(head, question.observation, at.T, question.candidate.Y, float(at.alpha))
    rest = Rest(head, question.observation)
    norm, largest = seen.rest[0].tolist()
    assert norm == pytest.approx(rest.norm, rel=1e-6)
    assert 0.999 * (rest.largest - CHANCE) < largest < 1.1 * (rest.largest - CHANCE)
    # by its norm alone
    assert 0.2 * spread < float(evidence._hidden_spread(head, seen, here)) < 1.001 * spread
    bounds = sample_information(here, further_unknowns(here, all_others(here)))
    assert torch.allclose(bounds.variance[0], question.information.variance, rtol=1e-3)
    assert torch.allclose(bounds.beside[0], question.information.beside, rtol=1e-3, atol=1e3)
    for i in range(len(at.T)):
        assert float(spread_of_lengths(bounds.beside[:, 0], torch.ones(1).double())[0, i]) < 1e-2
    mixing = hidden_mixing(question)
    assert mixing is not None
    labels = question.candidate.Y.argmax(1)[None]
    assert float(mixed_at_most(bounds, here, labels, torch.ones(1).double())) == pytest.approx(
        mixing[0], rel=1e-3
    )
    errors, sure = evidence.weigh(head, seen, here)
    assert bool(sure[0])
    assert torch.allclose(errors[0], question.candidate.certificate.errors, rtol=1e-3)


def test_what_unequal_weights_leave_is_bounded(model: nn.Linear) -> None:
    """One weight of 1.0001: the answer leaves more than noise of the gradient, and its features are
    off by what follows it."""
    torch.manual_seed(0)
    x, y = torch.randn(2, model.in_features), torch.tensor([3, 5])
    each = nn.functional.cross_entropy(model(x), y, reduction="none")
    gradients = torch.autograd.grad(
        (each * torch.tensor([1.0001, 1.0])).mean(), list(model.parameters())
    )
    head = Head.of(model, unsum.Update(dict(zip(["weight", "bias"], gradients, strict=True))))
    candidate = Search.over(observe(head, None), None, None, 0).best()
    assert candidate is not None
    question = Question(head, observe(head, None), candidate, Knowledge())
    alone = _added_error(question, _weights(question))
    assert 0 < alone < question.errors_at_most()
