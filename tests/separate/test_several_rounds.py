"""The same batch in several rounds: noise averaged, with a prediction that says so, and rounds that do not belong together."""

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
    """Rounds whose heads differ by a third, and bodies by `body`; the features at the first weights, and the labels."""
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
                layer.weight.add_(amount * (place > 0) * layer.weight.std() * torch.randn_like(layer.weight))
        defenses = Noise(noise) if noise else ()
        sent.append((here, unsum.capture(here, images, labels, train=False, defenses=defenses)))
    return sent, model[:2](images).detach(), labels


def error(leak: unsum.Leak, features: Tensor, labels: Tensor) -> float:
    return unsum.score(leak, features=features, targets=labels)["worst_feature_error"]


def test_four_rounds_halve_the_error_of_noise_and_predict_it() -> None:
    sent, features, labels = rounds(4, noise=1e-2)
    one, four = unsum.separate_rounds(sent[:1], batch_size=B), unsum.separate_rounds(sent, batch_size=B)
    single = error(unsum.separate(*sent[0], batch_size=B), features, labels)
    assert error(one, features, labels) == pytest.approx(single)
    together = error(four, features, labels)
    assert 0.35 * single < together < 0.65 * single  # a half, but for chance
    assert four.predicted_error == pytest.approx(together, rel=0.35)
    assert "4 updates of the client, and that they are of the same batch." in four.knowledge.granted()


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
