"""Defenses that work where the batch is: on the batch, or with the model at hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from support.material import pictures, small_net
from unsum import (
    Clip,
    DropBias,
    DropHead,
    Mixup,
    Noise,
    SmoothLabels,
    Soteria,
    UnsumError,
    Update,
    capture,
    mixup,
    smooth_labels,
)
from unsum.client.step import first_step
from unsum.defend import DPSGD, ClientDefense
from unsum.defend.soteria import feature_scores

LABELS = torch.tensor([3, 3, 7])


def assert_same(one: Update, other: Update) -> None:
    assert one.gradients.keys() == other.gradients.keys()
    for name, gradient in one.gradients.items():
        torch.testing.assert_close(gradient, other.gradients[name])


def test_smoothing_trains_on_smoothed_targets(net: nn.Sequential) -> None:
    defended = capture(net, pictures(3), LABELS, defenses=SmoothLabels(0.3))
    assert_same(defended, capture(net, pictures(3), smooth_labels(LABELS, 0.3, 40)))
    uniform = capture(net, pictures(3), LABELS, defenses=SmoothLabels(1))
    assert_same(uniform, capture(net, pictures(3), torch.full((3, 40), 1 / 40)))


def test_mixup_trains_on_blends_of_the_batch(net: nn.Sequential) -> None:
    torch.manual_seed(4)
    defended = capture(net, pictures(3), LABELS, defenses=Mixup(1))
    torch.manual_seed(4)
    weight = float(torch.distributions.Beta(1.0, 1.0).sample())
    partner = torch.randperm(3)
    assert 0.05 < weight < 0.95  # a seed that blends
    assert partner.tolist() != [0, 1, 2]
    assert_same(
        defended, capture(net, *mixup(pictures(3), LABELS, 40, weight=weight, partner=partner))
    )


def test_large_alpha_mixes_halves(net: nn.Sequential) -> None:
    """Beta(α, α) concentrates at 1/2: with another partner than itself, a sample becomes the mean
    of the two."""
    torch.manual_seed(0)
    steps = [
        Mixup(1e8).before(first_step(net, pictures(2), torch.tensor([1, 2]), True))
        for _ in range(8)
    ]
    mixed = [step for step in steps if float(step.targets[0, 2]) > 0]
    assert mixed  # half of all permutations of two
    torch.testing.assert_close(mixed[0].targets[:, 1:3], torch.full((2, 2), 0.5), atol=1e-3, rtol=0)
    torch.testing.assert_close(mixed[0].images[0], pictures(2).mean(0), atol=1e-3, rtol=0)


@pytest.mark.parametrize("train", [True, False])
def test_soteria_zeroes_the_lowest_scored_columns(net: nn.Sequential, train: bool) -> None:
    images = pictures(3)
    clean = capture(net, images, LABELS, train=train)
    sent = capture(net, images, LABELS, train=train, defenses=Soteria(0.4))
    net.train(train)
    inputs = images.clone().requires_grad_(True)
    features = net[:5](inputs)
    scores = torch.zeros(128)
    for f in range(128):
        (slope,) = torch.autograd.grad(features[:, f].sum(), inputs, retain_graph=True)
        for i in range(3):
            scores[f] += slope[i].norm() / (features[i, f].detach() + 0.1)
    zeroed = (sent.gradients["5.weight"] == 0).all(0)
    lowest = scores.argsort()[: int(zeroed.sum())]
    assert int(zeroed.sum()) == 51  # positions below 0.4 · 127 = 50.8 of the sorted scores
    assert set(lowest.tolist()) == set(zeroed.nonzero().flatten().tolist())
    assert torch.equal(
        sent.gradients["5.weight"][:, ~zeroed], clean.gradients["5.weight"][:, ~zeroed]
    )
    assert torch.equal(sent.gradients["5.bias"], clean.gradients["5.bias"])
    assert torch.equal(sent.gradients["0.weight"], clean.gradients["0.weight"])


def test_soteria_on_one_linear_layer_in_closed_form() -> None:
    """The features are the inputs: every slope is 1, so score_f = Σ_i 1/(x_if + 0.1)."""
    images = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(6, 3)
    scores = feature_scores(first_step(model, images, torch.tensor([0, 1, 2, 0]), True))
    torch.testing.assert_close(scores, (1 / (images.double() + 0.1)).sum(0))
    sent = capture(model, images, torch.tensor([0, 1, 2, 0]), defenses=Soteria(0.3))
    assert (sent.gradients["weight"] == 0).all(0).nonzero().flatten().tolist() == sorted(
        scores.argsort()[:2].tolist()
    )


@pytest.mark.parametrize("train", [True, False])
def test_soterias_estimate_is_near_the_exact_score(
    net: nn.Sequential, train: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = first_step(net, pictures(3), LABELS, train)
    exact = feature_scores(step)
    monkeypatch.setattr("unsum.defend.soteria._EXACT_UP_TO", 100)  # the net has 128
    torch.manual_seed(0)
    estimate = feature_scores(step, probes=200)
    # features that ReLU has switched off for the whole batch
    assert torch.equal(estimate == 0, exact == 0)
    ratio = (estimate / exact)[exact > 0]
    assert len(ratio) > 100
    assert not torch.equal(ratio, torch.ones_like(ratio))
    # Each norm to 1/√400 = 5 %, the sum of three samples somewhat better; 128 features reach out to
    # three deviations.
    assert float(ratio.std()) < 0.06
    assert float((ratio - 1).abs().max()) < 0.2
    assert torch.equal(feature_scores(step, probes=0), exact)


def test_soteria_leaves_the_model_as_it_was(net: nn.Sequential) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    capture(net.eval(), pictures(3), LABELS, defenses=Soteria(0.5))
    assert not net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not net[5]._forward_pre_hooks


def test_dropped_tensors_are_not_sent(net: nn.Sequential) -> None:
    clean = capture(net, pictures(3), LABELS)
    without_bias = capture(net, pictures(3), LABELS, defenses=DropBias())
    without_head = capture(net, pictures(3), LABELS, defenses=DropHead())
    assert set(clean.gradients) - set(without_bias.gradients) == {"5.bias"}
    assert set(clean.gradients) - set(without_head.gradients) == {"5.bias", "5.weight"}
    assert torch.equal(without_bias.gradients["5.weight"], clean.gradients["5.weight"])
    assert (
        "5.weight"
        in capture(small_net(bias=False), pictures(3), LABELS, defenses=DropBias()).gradients
    )
    with pytest.raises(UnsumError, match="leaves nothing to send"):
        capture(nn.Linear(4, 3), torch.rand(2, 4), torch.tensor([0, 1]), defenses=DropHead())
    with pytest.raises(UnsumError, match="not in the update; leave it out"):
        capture(net, pictures(3), LABELS, defenses=[DropHead(), Soteria(0.1)])


def test_any_mix_is_taken_in_order(net: nn.Sequential) -> None:
    def double(update: Update) -> Update:
        return update.map(lambda _name, g: 2 * g)

    sent = capture(
        net, pictures(3), LABELS, defenses=[SmoothLabels(0.2) | DropBias(), double, Clip(0.5)]
    )
    assert "5.bias" not in sent.gradients
    total = torch.stack([g.norm() for g in sent.gradients.values()]).norm()
    assert float(total) == pytest.approx(0.5, rel=1e-4)
    late = capture(net, pictures(3), LABELS, defenses=[Clip(0.5), double])
    assert float(torch.stack([g.norm() for g in late.gradients.values()]).norm()) == pytest.approx(
        1, rel=1e-4
    )


def test_soteria_sees_the_mixed_images(net: nn.Sequential) -> None:
    torch.manual_seed(4)
    sent = capture(net, pictures(3), LABELS, defenses=Mixup(1) | Soteria(0.4))
    torch.manual_seed(4)
    mixed = Mixup(1).before(first_step(net, pictures(3), LABELS, True))
    assert_same(sent, capture(net, mixed.images, mixed.targets, defenses=Soteria(0.4)))


@pytest.mark.parametrize(
    ("defenses", "sentence"),
    [
        (
            Clip(1) | Mixup(1),
            (
                r"Mixup\(1\) changes the batch and cannot come after Clip\(1\), which changes the "
                r"update"
            ),
        ),
        (
            [DPSGD(1), SmoothLabels(0.1)],
            r"changes the batch and cannot come after DPSGD\(1, clip=1\)",
        ),
        (Noise(1) | DPSGD(1), "changes the gradient and cannot come after"),
        (DPSGD(1) | DPSGD(2), "choose one of them"),
    ],
)
def test_impossible_orders_are_refused(net: nn.Sequential, defenses: object, sentence: str) -> None:
    with pytest.raises(UnsumError, match=sentence):
        capture(net, pictures(3), LABELS, defenses=defenses)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "defense", [Soteria(0.1), Mixup(1), SmoothLabels(0.1), DropBias(), DPSGD(1)]
)
def test_an_update_alone_is_not_enough(defense: ClientDefense) -> None:
    with pytest.raises(UnsumError, match="works inside the client"):
        defense(Update({"w": torch.ones(2)}))


def test_chains_show_their_order() -> None:
    chain = (
        SmoothLabels(0.1) | Mixup(0.4) | DPSGD(1.1, clip=2) | Soteria(0.2) | DropBias() | DropHead()
    )
    assert repr(chain) == (
        "SmoothLabels(0.1) | Mixup(0.4) | DPSGD(1.1, clip=2) | Soteria(0.2) | DropBias() | "
        "DropHead()"
    )


def test_soteria_needs_inputs_with_slopes() -> None:
    class Codes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.values, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.values(x[:, 0].long()))

    with pytest.raises(
        UnsumError, match="codes that an embedding looks up have none; take another defense"
    ):
        capture(Codes(), torch.tensor([[3.0], [5.0]]), torch.tensor([0, 1]), defenses=Soteria(0.5))
