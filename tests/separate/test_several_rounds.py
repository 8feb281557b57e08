"""The same batch in several rounds: noise averaged, with a prediction that says so, and rounds that
do not belong together."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum import Noise, UnsumError

C, H, B = 50, 128, 6


def rounds(
    count: int, *, noise: float, body: float = 0.0
) -> tuple[list[tuple[nn.Module, unsum.Update]], Tensor, Tensor]:
    """Rounds whose heads differ by a third, and bodies by `body`; the features at the first
    weights, and the labels."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, H), nn.ReLU(), nn.Linear(H, C))
    with torch.no_grad():
        model[2].weight.mul_(3)
    images, labels = torch.randn(B, 20), torch.randint(C, (B,))
    sent = []
    for place in range(count):
        here = copy.deepcopy(model)
        with torch.no_grad():
            for layer, amount in ((here[2], 0.3), (here[0], body)):
                layer.weight.add_(
                    amount * (place > 0) * layer.weight.std() * torch.randn_like(layer.weight)
                )
        defenses = Noise(noise) if noise else ()
        sent.append((here, unsum.capture(here, images, labels, train=False, defenses=defenses)))
    return sent, model[:2](images).detach(), labels


def error(leak: unsum.Leak, features: Tensor, labels: Tensor) -> float:
    return unsum.score(leak, features=features, targets=labels)["worst_feature_error"]


def test_four_rounds_halve_the_error_of_noise_and_predict_it() -> None:
    sent, features, labels = rounds(4, noise=1e-2)
    one, four = (
        unsum.separate_rounds(sent[:1], batch_size=B),
        unsum.separate_rounds(sent, batch_size=B),
    )
    single = error(unsum.separate(*sent[0], batch_size=B), features, labels)
    assert error(one, features, labels) == pytest.approx(single)
    together = error(four, features, labels)
    assert 0.35 * single < together < 0.65 * single  # a half, but for chance
    assert four.predicted_error == pytest.approx(together, rel=0.35)
    assert (
        "4 updates of the client, and that they are of the same batch." in four.knowledge.granted()
    )


def test_clean_rounds_are_vouched_for() -> None:
    sent, features, labels = rounds(2, noise=0.0)
    leak = unsum.separate_rounds(sent)
    assert leak.exact
    assert error(leak, features, labels) < 1e-5


def test_rounds_whose_features_moved_are_not_mixed() -> None:
    sent, features, labels = rounds(2, noise=0.0, body=0.2)
    leak = unsum.separate_rounds(sent)
    assert "do not fit together" in leak.notes[0]
    assert error(leak, features, labels) < 1e-5 or "round 2 of 2" in leak.notes[0]


def test_rounds_of_other_models_or_none_are_refused() -> None:
    sent, _, _ = rounds(1, noise=0.0)
    other = nn.Sequential(nn.Linear(20, H), nn.ReLU(), nn.Linear(H, 9))
    update = unsum.capture(other, torch.randn(2, 20), torch.tensor([0, 1]))
    with pytest.raises(UnsumError, match="different models"):
        unsum.separate_rounds([*sent, (other, update)])
    with pytest.raises(UnsumError, match="No round was given"):
        unsum.separate_rounds([])


def linear_rounds(
    weights: list[Tensor], features: list[Tensor], labels: Tensor, *, bias: bool = True
) -> list[tuple[nn.Module, unsum.Update]]:
    """Rounds of heads alone, each with its weights and features."""
    sent = []
    for W, F in zip(weights, features, strict=True):
        head = nn.Linear(W.shape[1], W.shape[0], bias=bias, dtype=W.dtype)
        with torch.no_grad():
            head.weight.copy_(W)
            if bias:
                head.bias.zero_()
        sent.append((head, unsum.capture(head, F, labels)))
    return sent


def siblings(distance: float) -> tuple[Tensor, Tensor]:
    """Three samples and for each another of its label that differs by so much."""
    torch.manual_seed(3)
    F = torch.randn(3, 32)
    apart = torch.randn(3, 32)
    other = F + distance * F.norm(dim=1, keepdim=True) * apart / apart.norm(dim=1, keepdim=True)
    return torch.cat([F, other]), torch.arange(3).repeat(2)


def test_siblings_that_no_round_shows_apart_are_not_vouched_for() -> None:
    F, labels = siblings(0.05)
    weights = [1e-4 * torch.randn(12, 32) for _ in range(3)]
    leak = unsum.separate_rounds(linear_rounds(weights, [F] * 3, labels))
    assert error(leak, F, labels) > 1e-2
    assert not leak.exact
    assert any("would look like one" in note for note in leak.notes)


@pytest.mark.parametrize("difference", [0.0, 1e-7])
def test_rounds_of_equal_weights_are_one_round(difference: float) -> None:
    torch.manual_seed(5)
    F, labels, W = torch.randn(4, 24), torch.tensor([0, 1, 2, 2]), torch.randn(8, 24) / 5
    weights = [W, W * (1 + difference * torch.randn_like(W))]
    sent = linear_rounds(weights, [F, F], labels)
    one, two = unsum.separate(*sent[0]), unsum.separate_rounds(sent)
    assert two.notes[0] == "2 rounds of equal weights count as one."
    assert (two.exact, two.predicted_error) == (one.exact, pytest.approx(one.predicted_error))


def test_noise_of_equal_rounds_is_averaged() -> None:
    torch.manual_seed(6)
    F, labels, W = torch.randn(3, 64), torch.tensor([0, 1, 2]), torch.randn(40, 64) / 3
    (head, update), *_ = linear_rounds([W], [F], labels)
    noisy = [
        update.map(lambda _, t: t + 1e-3 * t.abs().max() * torch.randn_like(t)) for _ in range(9)
    ]
    one = unsum.separate_rounds([(head, noisy[0])], batch_size=3)
    nine = unsum.separate_rounds([(head, one) for one in noisy], batch_size=3)
    assert error(nine, F, labels) < 0.6 * error(one, F, labels)
    assert nine.predicted_error == pytest.approx(one.predicted_error / 3, rel=0.3)


def test_two_classes_without_a_bias_leave_a_sample_and_its_negative_open() -> None:
    torch.manual_seed(7)
    F, labels = torch.randn(1, 10, dtype=torch.float64), torch.tensor([1])
    weights = [torch.randn(2, 10, dtype=torch.float64) / 3 for _ in range(5)]
    for bias in (True, False):
        leak = unsum.separate_rounds(linear_rounds(weights, [F] * 5, labels, bias=bias))
        assert leak.exact is bias


def test_a_round_with_fewer_directions_joins_the_others() -> None:
    torch.manual_seed(8)
    F, labels = torch.randn(4, 24), torch.tensor([0, 1, 2, 3])
    sure = torch.randn(20, 24) / 5
    # the second round is certain of the last sample, which sends nothing
    sure[3] += 60 * F[3] / F[3].square().sum()
    sent = linear_rounds([torch.randn(20, 24) / 5, sure], [F, F], labels)
    leak = unsum.separate_rounds(sent, batch_size=4)
    assert error(leak, F, labels) < 1e-4


def test_a_batch_size_that_was_told_and_not_found_is_not_vouched_for() -> None:
    torch.manual_seed(9)
    F, labels = torch.randn(3, 24), torch.tensor([0, 1, 2])
    sent = linear_rounds([torch.randn(12, 24) / 5 for _ in range(2)], [F, F], labels)
    assert unsum.separate_rounds(sent, batch_size=3).exact
    assert not unsum.separate_rounds(sent, batch_size=5).exact


def test_other_batches_in_every_round_are_not_taken_for_one() -> None:
    torch.manual_seed(10)
    labels = torch.tensor([0, 1])
    F = [torch.randn(2, 24) for _ in range(2)]
    leak = unsum.separate_rounds(
        linear_rounds([torch.randn(12, 24) / 5 for _ in range(2)], F, labels), batch_size=2
    )
    assert "do not fit together" in leak.notes[0]
    assert min(error(leak, one, labels) for one in F) < 1e-4
