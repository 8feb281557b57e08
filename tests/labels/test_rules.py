"""Every label rule, on cases that follow in closed form and on an untrained network; and what they
refuse."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
import warnings

import pytest
import torch
import torchvision
from torch import Tensor, nn

import unsum
from support.material import pictures, small_net
from unsum import UnsumError, Update, capture
from unsum.defend import Prune
from unsum.knowledge import Knowledge
from unsum.labels import LABEL_RULES, Clues
from unsum.labels.ilrg import solve_shares, whole_counts
from unsum.labels.llg import count_down
from unsum.labels.probe import Probe
from unsum.running.deadline import time_limit
from unsum.running.sharing import sharing

# rules that see how often a class occurs
COUNTING = ["adaptive", "exact", "ilrg", "llg", "llg*", "llg+"]
NAMES = [entry.name for entry in LABEL_RULES]


def auxiliary(classes: int, per_class: int = 2) -> tuple[Tensor, Tensor]:
    return pictures(classes * per_class, seed=99), torch.arange(classes).repeat(per_class)


def test_the_solvers_rules_are_known_before_anything_else_was_imported() -> None:
    code = """
import torch, unsum
torch.manual_seed(0)
model = torch.nn.Linear(64, 20)
update = unsum.capture(model, torch.randn(3, 64).relu(), torch.tensor([4, 4, 1]))
assert unsum.labels(model, update).tolist() == [1, 4, 4]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def uniform_model(classes: int, inputs: int = 4) -> nn.Linear:
    """A head of zeros: softmax is 1/C whatever the features, so every rule's assumptions hold to
    the letter."""
    model = nn.Linear(inputs, classes)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def test_minima_count_and_not_sums() -> None:
    """Rows (−3, 9), (−1, −1) and (2, −½): their minima are lowest in the first two, their sums in
    the last two."""
    update = Update(
        {"weight": torch.tensor([[-3.0, 9.0], [-1.0, -1.0], [2.0, -0.5]]), "bias": torch.zeros(3)}
    )
    assert unsum.labels(
        uniform_model(3, inputs=2), update, "gradinversion", batch_size=2
    ).tolist() == [0, 1]


def test_the_offset_of_a_class_is_the_mean_over_the_other_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Single-class batches pull their own row by −6 and leave the others at 3 and 1, 2 and 4, 1 and
    1. Of three classes and a batch of four the impact is −6 (1 + ⅓) / 4 = −2."""
    rows = torch.tensor([[-6.0, 2.0, 1.0], [3.0, -6.0, 1.0], [1.0, 4.0, -6.0]], dtype=torch.float64)
    heard: list[tuple[float, list[float], int]] = []

    def counted(g: Tensor, impact: float, offset: Tensor, B: int) -> Tensor:
        heard.append((impact, offset.tolist(), B))
        return torch.zeros(B, dtype=torch.long)

    monkeypatch.setattr(Probe, "row_sums", lambda _probe, _inputs, label: rows[label])
    monkeypatch.setattr(sys.modules["unsum.labels.llg_plus"], "count_down", counted)
    model = uniform_model(3, inputs=2)
    update = Update({"weight": torch.ones(3, 2), "bias": torch.zeros(3)})
    known = (torch.ones(3, 2), torch.arange(3))
    unsum.labels(model, update, "llg+", batch_size=4, auxiliary=known)
    ((impact, offset, B),) = heard
    assert impact == pytest.approx(-2)
    assert offset == pytest.approx([2, 3, 1])
    assert B == 4


def test_all_rules_are_known() -> None:
    assert set(NAMES) == {*COUNTING, "bias-sign", "gradinversion", "idlg", "row-sum", "templates"}


@pytest.mark.parametrize("rule", ["ilrg", "llg", "llg+", "llg*"])
@pytest.mark.parametrize("labels", [[0], [1, 1], [0, 1, 1, 1], [2, 2, 2, 4, 4, 5, 0]])
def test_a_uniform_softmax_is_counted_exactly(rule: str, labels: list[int]) -> None:
    """g_c = (1/C − n_c/B) Σf and ∇b_c = 1/C − n_c/B; equal features, so that no sample weighs more
    than another."""
    model, targets = uniform_model(8), torch.tensor(labels)
    features = torch.full((len(labels), 4), 0.5)
    own = (torch.full((16, 4), 0.5), torch.arange(8).repeat(2))
    update = capture(model, features, targets)
    assert unsum.labels(
        model, update, rule, batch_size=len(labels), auxiliary=own
    ).tolist() == sorted(labels)


@pytest.mark.parametrize("rule", ["ilrg", "llg+", "llg*"])
def test_two_classes(rule: str) -> None:
    """∇W = ±(1/2 − n/B) f: one number tells both counts."""
    model, labels = uniform_model(2), [0, 1, 1, 1]
    update = capture(model, torch.full((4, 4), 0.5), torch.tensor(labels))
    own = (torch.full((4, 4), 0.5), torch.tensor([0, 1, 0, 1]))
    assert unsum.labels(model, update, rule, batch_size=4, auxiliary=own).tolist() == labels


def test_llg_is_an_approximation_by_hand() -> None:
    """g = (0.25, −0.25) Σf: m = −0.25 · 1.5/4 Σf is 2.7 times too small, so the first class is
    never reached."""
    model = uniform_model(2)
    update = capture(model, torch.full((4, 4), 0.5), torch.tensor([0, 1, 1, 1]))
    assert unsum.labels(model, update, "llg", batch_size=4).tolist() == [1, 1, 1, 1]


def test_one_sample_follows_from_every_rule(net: nn.Sequential) -> None:
    for label in (0, 17, 39):
        update = capture(net, pictures(1), torch.tensor([label]), train=False)
        for name in NAMES:
            found = unsum.labels(net.eval(), update, name, batch_size=1, auxiliary=auxiliary(40, 1))
            assert found.tolist() == [label], name


@pytest.mark.parametrize("rule", [name for name in NAMES if name != "idlg"])
def test_distinct_labels_of_an_untrained_network(rule: str, net: nn.Sequential) -> None:
    targets = torch.tensor([31, 3, 9, 20, 12, 39])
    update = capture(net, pictures(6), targets)
    assert (
        unsum.labels(net, update, rule, batch_size=6, auxiliary=auxiliary(40)).tolist()
        == targets.sort()[0].tolist()
    )


@pytest.mark.parametrize("rule", COUNTING)
def test_duplicates_are_counted(rule: str, net: nn.Sequential) -> None:
    labels = [5, 5, 5, 5, 8, 8, 30, 31]
    update = capture(net, pictures(8), torch.tensor(labels))
    assert unsum.labels(net, update, rule, batch_size=8, auxiliary=auxiliary(40)).tolist() == labels


def test_a_residual_network_with_relu_features() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=30)
    labels = [2, 2, 2, 9, 9, 17]
    update = capture(model, torch.rand(6, 3, 64, 64), torch.tensor(labels))
    for rule in ("exact", "ilrg", "llg", "llg*"):
        assert unsum.labels(model, update, rule, batch_size=6).tolist() == labels, rule


@pytest.mark.parametrize("rule", COUNTING)
def test_the_order_of_the_batch_does_not_matter(rule: str, net: nn.Sequential) -> None:
    images, targets = pictures(6), torch.tensor([4, 4, 4, 20, 21, 21])
    turned = torch.tensor([3, 0, 5, 1, 4, 2])
    first, second = (capture(net, images[i], targets[i]) for i in (torch.arange(6), turned))
    known = {"batch_size": 6, "auxiliary": auxiliary(40)}
    assert torch.equal(
        unsum.labels(net, first, rule, **known), unsum.labels(net, second, rule, **known)
    )


@pytest.mark.parametrize("rule", COUNTING)
def test_a_sum_over_the_batch_counts_like_a_mean(rule: str, net: nn.Sequential) -> None:
    targets = torch.tensor([4, 4, 4, 20])
    update = capture(net, pictures(4), targets)
    summed = dataclasses.replace(update.map(lambda _name, g: 4 * g), reduction="sum")
    assert torch.equal(
        unsum.labels(net, summed, rule, batch_size=4, auxiliary=auxiliary(40)), targets
    )


def test_exact_finds_the_batch_size_and_a_disclosed_one_is_used(net: nn.Sequential) -> None:
    update = capture(net, pictures(5), torch.tensor([7, 7, 7, 1, 2]))
    assert unsum.labels(net, update).tolist() == [1, 2, 7, 7, 7]
    disclosed = dataclasses.replace(update, batch_size=5)
    assert unsum.labels(net, disclosed, "ilrg").tolist() == [1, 2, 7, 7, 7]


def test_count_down_by_hand() -> None:
    """g = m n + s with m = −1, s = (0.2, 0.2, 0.2, 2.5), n = (3, 1, 0, 2); an offset of 2.5 hides
    the last class's sign."""
    g, offset = torch.tensor([-2.8, -0.8, 0.2, 0.5]), torch.tensor([0.2, 0.2, 0.2, 2.5])
    assert sorted(count_down(g, -1.0, offset, 6).tolist()) == [0, 0, 0, 1, 3, 3]
    assert sorted(count_down(g, -1.0, torch.zeros(4), 4).tolist()) == [0, 0, 0, 1]
    # more negative rows than samples: the lowest
    assert count_down(g, -1.0, offset, 1).tolist() == [0]


def test_counts_are_rounded_to_a_sum_of_B() -> None:
    """Plain rounding where it adds up; an off-by-one in any count would be seen here."""
    assert whole_counts(torch.tensor([2.1, 0.9, -0.3, 1.2]), 4).tolist() == [2, 1, 0, 1]
    assert whole_counts(torch.tensor([1.8, 1.7, 0.6]), 4).tolist() == [2, 2, 0]
    assert whole_counts(torch.tensor([0.4, 0.3, 0.2]), 1).tolist() == [1, 0, 0]
    assert whole_counts(torch.tensor([-5.0, 40.0]), 4).tolist() == [0, 4]


def test_ilrg_solves_once_an_attack_and_looks_at_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a thousand classes its six systems, solved twice, took two and a half seconds beyond the
    limit."""
    torch.manual_seed(0)
    model, B = nn.Linear(30, 8), 40  # more samples than classes: no solution is whole
    update = capture(model, torch.randn(B, 30), torch.randint(0, 8, (B,)))
    update = Update(update.gradients | {"bias": update.gradients["bias"] + 0.01 * torch.randn(8)})
    solved: list[int] = []

    def counted(P: Tensor, grad_b: Tensor, size: int) -> Tensor:
        solved.append(size)
        return solve_shares(P, grad_b, size)

    monkeypatch.setattr(importlib.import_module("unsum.labels.ilrg"), "solve_shares", counted)
    evidence = Clues.of(model, update, Knowledge(batch_size=B))
    with sharing():
        first, again = (LABEL_RULES["ilrg"](evidence) for _ in range(2))
    assert (len(solved), len(first)) == (6, B)
    assert torch.equal(first, again)
    solved.clear()
    with time_limit(1e-9) as late:
        assert len(LABEL_RULES["ilrg"](evidence)) == B  # the first answer, as published
    assert (len(solved), late.cut) == (1, ["further weights of 'ilrg'"])


def test_the_system_of_ilrg_is_exact_for_the_true_class_means() -> None:
    """A confident head, where the estimates p̂ fail: with the classes' true mean probabilities the
    counts are right."""
    torch.manual_seed(0)
    model, targets = nn.Linear(16, 12).double(), torch.tensor([0, 0, 0, 3, 3, 7, 9])
    nn.init.normal_(model.weight)
    features = torch.rand(7, 16).double()
    grad_b = capture(model, features, targets).gradients["bias"]
    P = model(features).softmax(1).detach()
    means = torch.full((12, 12), 1 / 12).double()
    for label in targets.unique():
        means[label] = P[targets == label].mean(0)
    assert float(P.max()) > 0.9
    assert (
        whole_counts(solve_shares(means, grad_b, 7), 7).tolist()
        == torch.bincount(targets, minlength=12).tolist()
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ilrg_counts_classes_that_occur_as_often_as_they_are_predicted(reduction: str) -> None:
    """A fresh head and more samples than classes: bias gradients near zero, whose ratios alone give
    wrong counts."""
    torch.manual_seed(0)
    model, targets = nn.Linear(512, 100), torch.randint(100, (256,))
    features = (torch.randn(512) + 0.7 * torch.randn(256, 512)).relu()
    gradients = capture(model, features, targets).gradients
    rows, grad_b = (gradients["weight"] @ model.weight.T).double(), gradients["bias"].double()
    published = solve_shares((rows / grad_b[:, None] + model.bias.double()).softmax(1), grad_b, 256)
    scale = 256 if reduction == "sum" else 1
    update = Update(
        {name: scale * gradient for name, gradient in gradients.items()}, reduction=reduction
    )
    found = unsum.labels(model, update, "ilrg", batch_size=256)
    truth = torch.bincount(targets, minlength=100)
    assert int((whole_counts(published, 256) == truth).sum()) <= 90
    assert torch.bincount(found, minlength=100).tolist() == truth.tolist()


def test_llg_plus_measures_what_autograd_measures(net: nn.Sequential) -> None:
    """The closed form of the probe is the gradient that a client with those inputs would have
    sent."""
    update = capture(net, pictures(4), torch.tensor([1, 2, 3, 4]))
    probe = Probe.of(Clues.of(net, update, Knowledge(batch_size=4)))
    expected = capture(net, pictures(4, seed=5), torch.full((4,), 7)).gradients["5.weight"].sum(1)
    torch.testing.assert_close(
        probe.row_sums(pictures(4, seed=5), 7).float(), expected, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("rule", ["llg+", "llg*"])
def test_the_model_is_left_untouched(rule: str) -> None:
    net = nn.Sequential(*small_net()[:5], nn.Dropout(0.5), small_net()[5])
    net[0].eval()  # a mixture of modes must survive, too
    update = capture(net, pictures(4), torch.tensor([1, 2, 3, 3]))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    modes, random_state = (
        [module.training for module in net.modules()],
        torch.random.get_rng_state(),
    )
    first, second = (
        unsum.labels(net, update, rule, batch_size=4, auxiliary=auxiliary(40, 1)) for _ in range(2)
    )
    assert torch.equal(first, second)
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert torch.equal(torch.random.get_rng_state(), random_state)


REFUSALS = [
    (
        "gradinversion",
        {},
        "needs the batch size; give batch_size= .*or use 'exact', which finds it",
    ),
    ("llg", {}, "needs the batch size"),
    ("llg*", {}, "needs the batch size"),
    ("ilrg", {}, "needs the batch size"),
    ("llg+", {"batch_size": 2}, "needs auxiliary data; give auxiliary="),
    (
        "llg+",
        {"batch_size": 2, "auxiliary": (pictures(2), torch.tensor([1, 1]))},
        "two classes or more",
    ),
    ("llg+", {"batch_size": 2, "auxiliary": (pictures(2), torch.tensor([1, 40]))}, "numbered 0…39"),
    ("idlg", {"batch_size": 2}, "label of one sample; for 2 samples use 'exact'"),
    (
        "gradinversion",
        {"batch_size": 41},
        "distinct labels, which 41 samples of 40 classes cannot have",
    ),
    (
        "bias-sign",
        {"batch_size": 41},
        "distinct labels, which 41 samples of 40 classes cannot have",
    ),
    ("ilgr", {}, "no label rule 'ilgr'; did you mean 'ilrg'"),
]


@pytest.mark.parametrize(("rule", "known", "sentence"), REFUSALS)
def test_what_is_missing_is_said(
    rule: str, known: dict[str, object], sentence: str, net: nn.Sequential
) -> None:
    update = capture(net, pictures(2), torch.tensor([0, 1]))
    with pytest.raises(UnsumError, match=sentence):
        unsum.labels(net, update, rule, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", ["bias-sign", "ilrg"])
def test_no_bias_is_refused_with_the_way_out(rule: str) -> None:
    net = small_net(bias=False)
    update = capture(net, pictures(2), torch.tensor([0, 1]))
    with pytest.raises(UnsumError, match="needs the head's bias gradient; use 'llg' or 'exact'"):
        unsum.labels(net, update, rule, batch_size=2)
    for other in ("llg", "llg*", "gradinversion", "exact"):
        assert unsum.labels(net, update, other, batch_size=2).tolist() == [0, 1]


def test_a_delta_of_unknown_rate_suits_only_rules_without_a_scale(net: nn.Sequential) -> None:
    gradients = capture(net, pictures(3), torch.tensor([0, 0, 1])).gradients
    update = Update.from_delta({name: -0.37 * g for name, g in gradients.items()})
    for rule in ("ilrg", "llg*", "llg+"):
        with pytest.raises(UnsumError, match="needs the gradient's scale; give the learning rate"):
            unsum.labels(net, update, rule, batch_size=3, auxiliary=auxiliary(40, 1))
    assert unsum.labels(net, update, "llg", batch_size=3).tolist() == [0, 0, 1]
    known = Update.from_delta(
        {name: -0.37 * g for name, g in gradients.items()}, learning_rate=0.37
    )
    assert unsum.labels(net, known, "ilrg", batch_size=3).tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "last",
    [nn.Tanh(), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 128)],
    ids=lambda m: type(m).__name__,
)
def test_signed_features_are_refused(last: nn.Module) -> None:
    net = nn.Sequential(*small_net()[:5], last, nn.Dropout(0.1), small_net()[5])
    update = capture(net, pictures(2), torch.tensor([0, 1]))
    for rule in ("gradinversion", "llg", "llg*"):
        with pytest.raises(
            UnsumError, match=f"never negative, and here the head is fed by {type(last).__name__}"
        ):
            unsum.labels(net, update, rule, batch_size=2)
    assert unsum.labels(net, update, "ilrg", batch_size=2).tolist() == [0, 1]


def test_nothing_negative_is_nothing_found() -> None:
    model = uniform_model(3)
    update = Update({"weight": torch.ones(3, 4), "bias": torch.ones(3)})
    with pytest.raises(UnsumError, match="no label; use 'exact' or 'llg\\*'"):
        unsum.labels(model, update, "llg", batch_size=2)
    zero = Update({"weight": torch.zeros(3, 4), "bias": torch.zeros(3)})
    with pytest.raises(UnsumError, match="'exact' finds no label: The gradient is zero"):
        unsum.labels(model, zero)
    dead = capture(model, torch.zeros(2, 4), torch.tensor([0, 1]))
    with pytest.raises(UnsumError, match="features vanish"):
        unsum.labels(
            model, dead, "llg+", batch_size=2, auxiliary=(torch.zeros(2, 4), torch.tensor([0, 1]))
        )


def test_an_input_that_cannot_be_guessed_is_refused() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embedding(tokens).mean(1).relu())

    model = Words()
    update = capture(model, torch.randint(9, (2, 5)), torch.tensor([0, 1]))
    with pytest.raises(UnsumError, match="cannot tell which inputs the model takes; use 'llg\\+'"):
        unsum.labels(model, update, "llg*", batch_size=2)


def test_no_rule_warns(net: nn.Sequential) -> None:
    update = capture(net, pictures(2), torch.tensor([0, 1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in set(NAMES) - {"idlg"}:
            unsum.labels(net, update, name, batch_size=2, auxiliary=auxiliary(40, 1))


def test_labels_that_pruning_left() -> None:
    """One entry of the bias gradient is left for two samples: the rows of ∇W still name both."""
    net = small_net(batch_norm=False, classes=100)
    update = capture(net, pictures(2), torch.tensor([28, 35]), defenses=(Prune(0.99),))
    assert int(update.gradients["5.bias"].count_nonzero()) == 1
    assert unsum.labels(net, update, "bias-sign").tolist() != [28, 35]
    assert sorted(unsum.labels(net, update, "adaptive").tolist()) == [28, 35]
