from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from support.material import pictures, small_net
from support.progress import Heard
from unsum import Knowledge, Noise, UnsumError, Update, capture, score, separate
from unsum.head import Head
from unsum.running.progress import SILENT
from unsum.separate.method import SEPARATORS
from unsum.separate.rgla.method import Record, explain, minimize, rgla, starting_logits
from unsum.separate.rgla.objective import WEIGHTS, LogitObjective, estimated_loss, stacked
from unsum.separate.rgla.reference import minimize_plainly

EVERYTHING = ("w", "b", "loss")


def linear_case(labels: Tensor, classes: int = 30) -> tuple[nn.Linear, Tensor, Update]:
    """Features of a linear model are its inputs: the truth needs no hook."""
    torch.manual_seed(0)
    model, features = nn.Linear(64, classes), torch.randn(len(labels), 64).relu()
    return model, features, capture(model, features, labels)


def objective_for(
    labels: Tensor, classes: int = 30, objectives: tuple[str, ...] = EVERYTHING
) -> LogitObjective:
    model, _features, update = linear_case(labels, classes)
    return LogitObjective.of(Head.of(model, update), labels, objectives, torch.float64)


def published(objective: LogitObjective, M: Tensor, logits: Tensor, labels: Tensor) -> list[Tensor]:
    """L_w, L_b and L_loss, written as in the paper."""
    D = (logits.softmax(1) - objective.Y) / len(labels)
    return [
        (M - D.T @ (logits - objective.b)).square().sum(),
        (objective.grad_b - D.sum(0)).square().sum(),
        (nn.functional.cross_entropy(logits, labels) - objective.loss).square(),
    ]


def test_the_gradient_identity_holds_at_the_true_logits() -> None:
    """Proposition 1: ∇W Wᵀ = Dᵀ(Ŷ − b), ∇W and ∇b by autograd."""
    model, labels = nn.Linear(64, 10).double(), torch.tensor([3, 3, 8, 1])
    features = torch.randn(4, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    logits = model(features)
    grad_W, grad_b = torch.autograd.grad(
        nn.functional.cross_entropy(logits, labels), [model.weight, model.bias]
    )
    D = (logits.softmax(1) - nn.functional.one_hot(labels, 10)) / 4
    torch.testing.assert_close(
        grad_W @ model.weight.T, D.T @ (logits - model.bias), rtol=1e-12, atol=1e-14
    )
    torch.testing.assert_close(grad_b, D.sum(0), rtol=1e-12, atol=1e-14)


def test_the_estimated_loss_is_the_loss_at_initialization() -> None:
    """Proposition 2 is exact for one sample and close for a batch of an untrained model."""
    for labels, tolerance in [(torch.tensor([4]), 1e-4), (torch.tensor([4, 4, 9, 20]), 0.05)]:
        model, features, update = linear_case(labels)
        true = float(nn.functional.cross_entropy(model(features), labels).detach())
        assert math.isclose(
            float(estimated_loss(update.gradients["bias"], labels)), true, rel_tol=tolerance
        )


def test_the_estimated_loss_is_exact_for_uniform_probabilities() -> None:
    """Zero weights and bias: p = 1/C for every sample, whatever the labels, so l̂ = ln C."""
    labels = torch.tensor([1, 1, 1, 4, 6])
    grad_b = (
        torch.full((7,), 1 / 7, dtype=torch.float64)
        - torch.bincount(labels, minlength=7).double() / 5
    )
    assert math.isclose(float(estimated_loss(grad_b, labels)), math.log(7), rel_tol=1e-12)


def test_the_estimated_loss_leaves_out_what_noise_made_impossible() -> None:
    labels = torch.tensor([0, 1])
    assert math.isclose(
        float(estimated_loss(torch.tensor([-0.6, -0.25, 0.85]), labels)), math.log(4), rel_tol=1e-6
    )
    assert math.isclose(
        float(estimated_loss(torch.tensor([-0.6, -0.7, 1.3]), labels)), math.log(3), rel_tol=1e-6
    )


@pytest.mark.parametrize("classes", [12, 60])  # 12: all of M; 60: its low-rank form
@pytest.mark.parametrize("objectives", [("w",), ("b",), ("loss",), ("w", "loss"), EVERYTHING])
def test_losses_and_gradient_are_those_of_the_paper(
    objectives: tuple[str, ...], classes: int
) -> None:
    labels = torch.tensor([2, 5, 5, 11])
    model, _features, update = linear_case(labels, classes)
    objective = objective_for(labels, classes, objectives)
    assert (objective.Q is None) == (classes == 12)
    M = update.gradients["weight"].double() @ model.weight.detach().double().T
    logits = torch.randn(
        4, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).requires_grad_()
    terms = published(objective, M, logits, labels)
    torch.testing.assert_close(
        objective.losses(logits.detach()), torch.stack(terms).detach(), rtol=1e-5, atol=0
    )
    total = sum(
        WEIGHTS[name] * term
        for name, term in zip(EVERYTHING, terms, strict=True)
        if name in objectives
    )
    assert isinstance(total, Tensor)
    (expected,) = torch.autograd.grad(total, logits)
    torch.testing.assert_close(
        objective.gradient(logits.detach()),
        expected,
        rtol=1e-5,
        atol=1e-6 * float(expected.abs().max()),
    )


@pytest.mark.parametrize("classes", [12, 60])
def test_a_constant_D_is_left_out_of_the_gradient_and_takes_L_b_with_it(classes: int) -> None:
    labels = torch.tensor([2, 5, 5, 11])
    objective = dataclasses.replace(objective_for(labels, classes), constant_D=True)
    M = objective.K if objective.Q is None else objective.Q @ objective.K
    logits = torch.randn(
        4, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).requires_grad_()
    D = ((logits.softmax(1) - objective.Y) / 4).detach()
    loss_w = (M - D.T @ (logits - objective.b)).square().sum()
    loss_loss = (nn.functional.cross_entropy(logits, labels) - objective.loss).square()
    (expected,) = torch.autograd.grad(WEIGHTS["w"] * loss_w + WEIGHTS["loss"] * loss_loss, logits)
    torch.testing.assert_close(objective.gradient(logits.detach()), expected, rtol=1e-8, atol=1e-8)


def test_the_curvature_is_the_jacobian_squared() -> None:
    labels = torch.tensor([2, 5, 5])
    objective = objective_for(labels, 12)
    logits = torch.randn(3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def residuals(values: Tensor) -> Tensor:
        D = (values.softmax(1) - objective.Y) / 3
        w = (objective.K - D.T @ (values - objective.b)).flatten()
        entropy = nn.functional.cross_entropy(values, labels) - objective.loss
        return torch.cat([100 * w, objective.grad_b - D.sum(0), 10 * entropy[None]])

    J = torch.autograd.functional.jacobian(residuals, logits)
    assert isinstance(J, Tensor)
    J = J.flatten(1)
    direction = torch.randn(3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = (J.T @ (J @ direction.flatten())).view(3, 12)
    torch.testing.assert_close(
        objective.curvature(logits)(direction), expected, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("start", ["randn", "rand"])
def test_a_random_start_is_the_seed_s_own(start: str) -> None:
    labels = torch.tensor([2, 5, 5])
    model, _features, update = linear_case(labels)
    head, like = Head.of(model, update), torch.zeros(3, 30)
    draw = torch.randn if start == "randn" else torch.rand
    for seed in (0, 7):
        found = starting_logits(start, None, head, Knowledge(labels=labels), like, seed)
        assert torch.equal(found, draw(3, 30, generator=torch.Generator().manual_seed(seed)))
    one, other = (
        separate(model, update, "rgla", labels=labels, steps=1, start=start, seed=seed)
        for seed in (0, 7)
    )
    assert not torch.equal(one.logits, other.logits)
    assert torch.equal(
        one.logits, separate(model, update, "rgla", labels=labels, steps=1, start=start).logits
    )


def test_a_noisy_gradient_is_not_forced_into_a_low_rank() -> None:
    model, _features, update = linear_case(torch.tensor([2, 5, 11]), 60)
    noisy = Noise(0.01)(update)
    assert (
        LogitObjective.of(
            Head.of(model, update), torch.tensor([2, 5, 11]), EVERYTHING, torch.float32
        ).Q
        is not None
    )
    full = LogitObjective.of(
        Head.of(model, noisy), torch.tensor([2, 5, 11]), EVERYTHING, torch.float32
    )
    assert full.Q is None
    torch.testing.assert_close(full.K, noisy.gradients["weight"] @ model.weight.detach().T)


@pytest.mark.parametrize("constant_D", [True, False])
def test_steps_are_those_of_the_reference(constant_D: bool) -> None:
    labels = torch.tensor([2, 5, 5])
    objective = dataclasses.replace(objective_for(labels, 12), constant_D=constant_D)
    start = torch.randn(3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = minimize(
        objective,
        start,
        steps=25,
        rate=1e-2,
        every=10,
        stop_below=None,
        record=Record(objective, SILENT),
    )
    model, _features, update = linear_case(labels, 12)
    head = Head.of(model, update)
    plain = minimize_plainly(head, labels, start, steps=25, rate=1e-2, constant_D=constant_D)
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{}, {"constant_D": False}, {"objectives": ("w", "loss"), "weight_loss": 3.0}]
)
def test_the_reference_is_an_option_and_answers_alike(options: dict[str, object]) -> None:
    labels = torch.tensor([2, 5, 5])
    model, _features, update = linear_case(labels)
    summed = Update({name: 3 * g for name, g in update.gradients.items()}, reduction="sum")
    for sent in (update, summed):
        fast, plain = (
            separate(
                model, sent, "rgla", labels=labels, steps=50, rate=1e-2, reference=r, **options
            )
            for r in (False, True)
        )
        torch.testing.assert_close(fast.logits, plain.logits, rtol=1e-3, atol=1e-3)
    assert plain.history == {}


def test_weights_are_those_given() -> None:
    labels = torch.tensor([2, 5, 11])
    model, _features, update = linear_case(labels)
    usual, other = (
        separate(model, update, "rgla", labels=labels, steps=300, rate=1e-2, weight_loss=w)
        for w in (100.0, 1e5)
    )
    assert other.history["loss_loss"][-1] < usual.history["loss_loss"][-1]
    assert other.history["loss_w"][-1] > usual.history["loss_w"][-1]


@pytest.mark.parametrize("classes", [12, 60])  # 12: all of M; 60: its low-rank form
@pytest.mark.parametrize("constant_D", [True, False])
def test_many_batches_at_once_are_each_what_they_are_alone(classes: int, constant_D: bool) -> None:
    batches = [torch.tensor([2, 5, 5]), torch.tensor([1, 7, 3])]
    alone = [
        dataclasses.replace(objective_for(labels, classes), constant_D=constant_D)
        for labels in batches
    ]
    together = stacked(alone)
    start = torch.randn(
        2, 3, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    how = {"steps": 30, "rate": 1e-2, "every": 10, "stop_below": None}
    record = Record(together, SILENT)
    found = minimize(together, start, record=record, **how)  # type: ignore[arg-type]
    for i, objective in enumerate(alone):
        own = Record(objective, SILENT)
        torch.testing.assert_close(
            found[i],
            minimize(objective, start[i], record=own, **how),
            rtol=1e-9,
            atol=1e-9,  # type: ignore[arg-type]
        )
        torch.testing.assert_close(
            record.history["loss_w"][:, i], own.history["loss_w"], rtol=1e-8, atol=0
        )


@pytest.mark.long
def test_labels_drawn_at_random_cost_no_sample_of_its_own_label_by_default() -> None:
    """With D differentiated, samples that share a label drift apart until D has lost a rank, and
    take others with them."""
    C, B, N = 40, 10, 4
    cases = []
    for seed in range(N):
        torch.manual_seed(seed)
        model, features, labels = (
            nn.Linear(128, C),
            torch.randn(B, 128).relu(),
            torch.randint(0, C, (B,)),
        )
        cases.append((Head.of(model, capture(model, features, labels)), features, labels))
    objectives = [
        LogitObjective.of(head, labels, EVERYTHING, torch.float32) for head, _, labels in cases
    ]
    start = torch.randn(N, B, C, generator=torch.Generator().manual_seed(0))
    assert rgla.__kwdefaults__["constant_D"] is True
    found, least = {}, {}
    for constant_D in (True, False):
        objective = dataclasses.replace(stacked(objectives), constant_D=constant_D)
        how = {"steps": 3000, "rate": 5e-3, "every": 3000, "stop_below": None}
        logits = minimize(objective, start, record=Record(objective, SILENT), **how)  # type: ignore[arg-type]
        found[constant_D] = 0
        for (head, features, labels), answer in zip(cases, logits, strict=True):
            leak = explain(
                "rgla", head, LogitObjective.of(head, labels, EVERYTHING, torch.float32), answer
            )
            single = torch.bincount(labels, minlength=C)[labels] == 1
            error = (leak.features - features).norm(dim=1) / features.norm(dim=1)
            found[constant_D] += int((error[single] < 0.1).sum())
        least[constant_D] = torch.linalg.svdvals(objective.difference(logits.softmax(-1)))[
            :, -1
        ].min()
    own_label = sum(int((torch.bincount(y, minlength=C)[y] == 1).sum()) for _, _, y in cases)
    assert found[True] == own_label
    assert found[False] <= own_label - 5
    assert least[False] < 0.5 * least[True]


def test_distinct_labels_converge_to_the_truth() -> None:
    labels = torch.tensor([2, 5, 11])
    model, features, update = linear_case(labels)
    early = separate(model, update, "rgla", labels=labels, steps=500)
    late = separate(model, update, "rgla", labels=labels, steps=6000)
    assert score(late, features=features)["feature_error"] < 1e-3
    assert late.residual < 0.1 * early.residual
    torch.testing.assert_close(late.logits.float(), model(features).detach(), rtol=0, atol=0.3)
    assert not late.exact


@pytest.mark.parametrize("method", ["rgla", "rgla-newton"])
def test_one_sample_of_two_classes_follows_in_closed_form(method: str) -> None:
    """B = 1: ∇b = p − y gives p, and the features are ∇W_0/∇b_0."""
    torch.manual_seed(1)
    model, features = nn.Linear(16, 2), torch.rand(1, 16)
    update = capture(model, features, torch.tensor([1]))
    options = {"steps": 4000, "rate": 1e-2} if method == "rgla" else {}
    leak = separate(model, update, method, labels=torch.tensor([1]), **options)
    grad_W, grad_b = update.gradients["weight"], update.gradients["bias"]
    torch.testing.assert_close(leak.features[0], grad_W[0] / grad_b[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(leak.features, features, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(leak.logits[0].softmax(0)[0].float(), grad_b[0], rtol=1e-3, atol=0)


def test_a_summed_loss_gives_the_same_answer() -> None:
    labels = torch.tensor([2, 5, 11])
    model, _features, update = linear_case(labels)
    summed = Update({name: 3 * g for name, g in update.gradients.items()}, reduction="sum")
    one, other = (separate(model, u, "rgla", labels=labels, steps=200) for u in (update, summed))
    torch.testing.assert_close(one.logits, other.logits, rtol=0, atol=1e-3)
    assert math.isclose(one.residual, other.residual, rel_tol=1e-2)


def test_newton_solves_what_adam_does_not() -> None:
    """Samples of one label: the equations hold the answer, and Adam does not get there."""
    labels = torch.full((4,), 7)
    model, features, update = linear_case(labels, 60)
    adam = separate(model, update, "rgla", labels=labels, steps=3000)
    newton = separate(model, update, "rgla-newton", labels=labels)
    assert score(adam, features=features)["worst_feature_error"] > 0.1
    assert score(newton, features=features)["worst_feature_error"] < 1e-4
    assert newton.history["step"][-1] < 200
    assert newton.history["loss_w"][-1] < 1e-9 * newton.history["loss_w"][0]
    assert (newton.method, newton.exact) == ("rgla-newton", False)


def test_newton_without_polish_ends_where_adam_ends() -> None:
    """The minimum of all three terms: beside the truth, by as much as l̂ is beside the loss."""
    labels = torch.tensor([2, 5, 11])
    model, features, update = linear_case(labels)
    adam = separate(model, update, "rgla", labels=labels, steps=4000, rate=5e-3)
    kept, polished = (
        separate(model, update, "rgla-newton", labels=labels, polish=p) for p in (False, True)
    )
    torch.testing.assert_close(kept.logits, adam.logits, rtol=0, atol=1e-2)
    errors = [score(leak, features=features)["feature_error"] for leak in (kept, polished)]
    assert errors[1] < 1e-5 < errors[0]


def starts(heard: Heard) -> int:
    return sum(step == 0 for step, *_ in heard.steps)


def test_newton_tries_again_only_while_the_gradient_is_unexplained() -> None:
    labels = torch.tensor([2, 5, 11])
    model, _features, update = linear_case(labels)
    heard = Heard()
    done = separate(model, update, "rgla-newton", labels=labels, progress=heard)
    assert starts(heard) == 1
    assert not any("twin" in note for note in done.notes)
    heard = Heard()
    options = {
        "labels": labels,
        "steps": 1,
        "objectives": ("w", "b"),
        "progress": heard,
    }
    cut = separate(model, update, "rgla-newton", tries=3, **options)
    assert starts(heard) == 3
    assert any("None of 3 start(s)" in note and "twin" in note for note in cut.notes)
    ends = [
        separate(model, update, "rgla-newton", tries=1, seed=s, **options).history["loss_w"][-1]
        for s in range(3)
    ]
    assert cut.history["loss_w"][-1] == min(ends)
    heard.steps.clear()
    kept = separate(
        model, update, "rgla-newton", polish=False, **options | {"objectives": EVERYTHING}
    )
    assert starts(heard) == 1
    assert not any("twin" in note for note in kept.notes)


def test_dropped_objectives_are_not_minimized_but_noted() -> None:
    labels = torch.tensor([2, 5, 11])
    model, _features, update = linear_case(labels)
    whole, part = (
        separate(model, update, "rgla", labels=labels, steps=2000, objectives=o)
        for o in (EVERYTHING, ("loss",))
    )
    assert part.history["loss_loss"][-1] < 1e-6
    assert (
        part.history["loss_w"][-1]
        > 0.9 * part.history["loss_w"][0]
        > 5 * whole.history["loss_w"][-1]
    )
    assert not torch.allclose(whole.logits, part.logits, atol=1e-2)


def test_history_is_sampled_and_progress_is_called_with_it() -> None:
    labels = torch.tensor([2, 5, 11])
    model, _features, update = linear_case(labels)
    heard = Heard()
    leak = separate(
        model, update, "rgla", labels=labels, steps=250, sample_every=100, progress=heard
    )
    assert leak.history["step"].tolist() == [0, 100, 200, 250]
    assert {name: values.shape for name, values in leak.history.items() if name != "step"} == {
        "loss_w": (4,), "loss_b": (4,), "loss_loss": (4,)
    }  # fmt: skip
    torch.testing.assert_close(
        torch.tensor(heard.steps), torch.stack([v.float() for v in leak.history.values()], 1)
    )
    final = LogitObjective.of(Head.of(model, update), labels, EVERYTHING, torch.float32).losses(
        leak.logits.float()
    )
    torch.testing.assert_close(torch.tensor(heard.steps[-1][1:]), final, rtol=1e-3, atol=1e-8)
    assert separate(model, update, "fgla", labels=labels).history == {}


def test_it_stops_early_only_when_asked() -> None:
    labels = torch.tensor([2, 5, 11])
    model, _features, update = linear_case(labels)
    options = {"labels": labels, "steps": 3000, "rate": 1e-2}
    assert separate(model, update, "rgla", **options).history["step"][-1] == 3000
    early = separate(model, update, "rgla", stop_below=100.0, **options)
    assert early.history["step"][-1] < 3000
    last = [float(early.history[f"loss_{name}"][-1]) * WEIGHTS[name] for name in EVERYTHING]
    assert sum(last) < 100


def test_starts_are_what_they_are_called() -> None:
    labels = torch.tensor([2, 5, 11])
    model, _features, update = linear_case(labels)

    def begin(start: str, **options: object) -> Tensor:
        return separate(
            model, update, "rgla", labels=labels, steps=1, rate=1e-9, start=start, **options
        ).logits.float()

    generator = torch.Generator().manual_seed(0)
    torch.testing.assert_close(begin("randn"), torch.randn(3, 30, generator=generator))
    assert 0 <= begin("rand").min() < 0.1 < 0.9 < begin("rand").max() <= 1
    torch.testing.assert_close(begin("zeros"), torch.zeros(3, 30))
    torch.testing.assert_close(begin("ones"), torch.ones(3, 30))
    torch.testing.assert_close(
        begin("fgla"), separate(model, update, "fgla", labels=labels).logits.float()
    )
    photos = model(torch.rand(2, 64))
    for given in ("photos", "reconstruction"):
        torch.testing.assert_close(begin(given, start_logits=photos), photos.detach()[[0, 1, 0]])


@pytest.mark.parametrize("method", ["rgla", "rgla-newton"])
def test_photos_are_declared_as_knowledge(method: str) -> None:
    labels = torch.tensor([2, 5, 11])
    model, _features, update = linear_case(labels)
    leak = separate(
        model,
        update,
        method,
        labels=labels,
        steps=1,
        start="photos",
        start_logits=torch.zeros(4, 30),
    )
    assert any(
        "logits for 4 of the attacker's own" in sentence for sentence in leak.knowledge.granted()
    )
    plain = separate(model, update, method, labels=labels, steps=1)
    assert not any("hotos" in sentence for sentence in plain.knowledge.granted())


def test_equal_starts_keep_samples_of_one_label_equal_and_say_so() -> None:
    labels = torch.tensor([2, 2, 11])
    model, _features, update = linear_case(labels)
    leak = separate(model, update, "rgla", labels=labels, steps=200, start="zeros")
    torch.testing.assert_close(leak.logits[0], leak.logits[1])
    assert any("use start='randn'" in note for note in leak.notes)
    assert not any(
        "alike" in note for note in separate(model, update, "rgla", labels=labels, steps=1).notes
    )


def test_more_samples_than_equations_are_named() -> None:
    """B ≤ C + 1: with 4 classes 5 samples still have as many equations as unknowns and more, 6 do
    not."""
    for B, warned in [(5, False), (6, True)]:
        labels = torch.arange(B) % 4
        model, _features, update = linear_case(labels, classes=4)
        leak = separate(model, update, "rgla", labels=labels, steps=50)
        assert leak.batch_size == B
        assert bool(leak.features.isfinite().all())
        assert any("under-determined" in note for note in leak.notes) == warned


def test_labels_are_found_when_they_are_not_granted() -> None:
    model, _features, update = linear_case(torch.tensor([2, 5, 11]))
    leak = rgla(Head.of(model, update), Knowledge(), seed=0, steps=10)
    assert leak.labels.tolist() == [2, 5, 11]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"objectives": ()}, "'objectives' takes one or more of w, b, loss"),
        ({"objectives": None}, "'objectives' takes one or more of w, b, loss, not None"),
        ({"objectives": ("w", "c")}, "'objectives' takes one or more of w, b, loss"),
        (
            {"start": "normal"},
            (
                "'start' must be one of randn, rand, zeros, ones, photos, reconstruction, fgla, "
                "not 'normal'"
            ),
        ),
        ({"start": "photos"}, r"needs start_logits=model\(photos\)"),
        ({"start": "reconstruction"}, r"'reconstruction' needs start_logits=model\(pictures\)"),
        ({"weight_w": 0}, "'weight_w' must be a positive number"),
        ({"reference": "yes"}, "'reference' must be True or False"),
        ({"start_logits": torch.zeros(3, 30)}, "start_logits belong to start='photos'"),
        ({"start": "photos", "start_logits": torch.zeros(3, 29)}, r"must be \(n, 30\)"),
        ({"steps": 0}, "'steps' must be a whole number of at least 1, not 0"),
        ({"steps": 2.5}, "'steps' must be a whole number"),
        ({"rate": -1}, "'rate' must be a positive number"),
        ({"rate": "fast"}, "'rate' must be a positive number"),
        ({"constant_D": 1}, "'constant_D' must be True or False, not 1"),
        ({"objectives": ("b",)}, "'b' has no gradient"),
        ({"stop_below": 0.0}, "'stop_below' must be a positive number"),
        ({"sample_every": 0}, "'sample_every' must be a whole number"),
    ],
)
def test_wrong_values_are_refused(options: dict[str, object], sentence: str) -> None:
    labels = torch.tensor([2, 5, 11])
    model, _features, update = linear_case(labels)
    with pytest.raises(UnsumError, match=sentence):
        separate(model, update, "rgla", labels=labels, **options)


@pytest.mark.parametrize("method", ["rgla", "rgla-newton"])
def test_it_is_known_by_name_and_refuses_what_it_cannot_do(method: str) -> None:
    assert method in [entry.name for entry in SEPARATORS]
    net = small_net(bias=False)
    with pytest.raises(UnsumError, match="needs the head's bias"):
        separate(net, capture(net, pictures(2), torch.tensor([0, 1])), method)
    model, _features, update = linear_case(torch.tensor([2, 5]))
    with pytest.raises(UnsumError, match="needs hard labels and was given soft ones"):
        separate(model, update, method, labels=torch.full((2, 30), 1 / 30))
    with pytest.raises(UnsumError, match="label 30 is outside"):
        separate(model, update, method, labels=torch.tensor([2, 30]))
    hard_rows = nn.functional.one_hot(torch.tensor([2, 5]), 30)
    assert separate(model, update, method, labels=hard_rows, steps=1).labels.tolist() == [2, 5]
