"""What features of other inputs are expected to be, from few public ones: closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unsum
from unsum.audit.round import Sent, shares_of
from unsum.head import Head, collect_features
from unsum.labels.feature_prior import FeaturePrior, feature_prior
from unsum.score.reference import public_inputs


def prior_of(public: Tensor, *before: nn.Module) -> FeaturePrior:
    """Of a head that is fed by the inputs themselves, but for what comes `before`."""
    torch.manual_seed(0)
    model = nn.Sequential(*before, nn.Linear(public.shape[1], 7))
    update = unsum.capture(model, public[:2], torch.tensor([0, 1]))
    prior = feature_prior(Head.of(model, update), model, public)
    assert prior is not None
    return prior


def drawn(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed))


def test_a_mean_that_all_inputs_share_is_kept() -> None:
    common = drawn(1, 500)
    prior = prior_of(common + 1e-3 * drawn(6, 500, 1), nn.ReLU())
    torch.testing.assert_close(prior.mean, common[0].double(), atol=2e-3, rtol=0)
    assert prior.non_negative


def test_inputs_that_share_nothing_have_an_even_mean() -> None:
    """Of independent features of variance v, the mean of k − 1 has v/(k − 1) that is its own: all
    of it goes."""
    public = drawn(6, 20000)
    prior = prior_of(public, nn.ReLU())
    assert float(prior.mean.std()) < 0.1 * float(public.mean(0).std())
    assert float(prior.mean.mean()) == pytest.approx(0.5, abs=0.01)
    signed = prior_of(public - 0.5, nn.Tanh())
    assert float(signed.mean.abs().max()) < 0.1 * float((public - 0.5).mean(0).abs().max())


def test_between_the_two_the_share_is_least_squares() -> None:
    """fᵢ = c + zᵢ with variances a and v: the mean of k − 1 others is c + z with v/(k − 1), so that
    a/(a + v/(k − 1)) of what it has beside its own mean is left."""
    k, a, v = 5, 1.0, 2.0
    generator = torch.Generator().manual_seed(0)
    common = a**0.5 * torch.randn(1, 40000, generator=generator)
    public = 20 + common + v**0.5 * torch.randn(k, 40000, generator=generator)
    prior, mean = prior_of(public, nn.ReLU()), public.double().mean(0)
    kept = float(prior.mean.std() / mean.std())
    assert kept == pytest.approx(a / (a + v / (k - 1)), abs=0.03)
    assert float(prior.mean.mean()) == pytest.approx(20, rel=0.01)


def test_made_up_pictures_take_the_place_of_public_ones_and_stand_beside_them() -> None:
    """Pictures of few tones through one dense layer: what random ones leave of the features of
    others is next to what public ones leave, and both together are no worse."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 400), nn.ReLU(), nn.Linear(400, 7))
    model.input_shape = (3, 8, 8)
    draw = torch.rand(40, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    pictures = nn.functional.interpolate(draw, size=8, mode="bilinear")
    features = collect_features(model, pictures).double()
    head = Head.of(model, unsum.capture(model, pictures[:2], torch.tensor([0, 1])))
    left = {}
    for known in (0, 4):
        prior = feature_prior(head, model, pictures[36:] if known else None)
        assert prior is not None
        assert prior.public == known
        left[known] = float((features[:36] - prior.mean).square().sum(1).mean())
    scatter = float((features[:36] - features[:36].mean(0)).square().sum(1).mean())
    four = float((features[:36] - features[36:].mean(0)).square().sum(1).mean())
    assert left[4] < four
    assert left[0] < 2 * scatter


def test_made_up_inputs_stand_in_for_public_ones_that_do_not_fit() -> None:
    """An embedding has no row of number −1, which standard normal rows ask for."""
    torch.manual_seed(0)
    model = nn.Sequential(Codes(), nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 5))
    update = unsum.capture(model, torch.tensor([[3.0], [8.0]]), torch.tensor([0, 1]))
    head = Head.of(model, update)
    alone, instead = (feature_prior(head, model, public) for public in (None, torch.randn(64, 1)))
    assert alone is not None
    assert instead is not None
    assert instead.public == 0
    assert torch.equal(instead.mean, alone.mean)
    assert float(alone.mean.norm()) > 0


def test_an_answer_that_needs_no_update_is_no_leak() -> None:
    """Under noise alone `adaptive` answers with what made-up inputs read, which is a guess; it had
    counted as a third of a sample."""
    torch.manual_seed(48)
    model = nn.Sequential(Codes(), nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 5))
    codes, labels = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 3, 2])
    update = unsum.Noise(100.0)(unsum.capture(model, codes, labels))
    leak = unsum.separate(model, update, "adaptive")
    sent = Sent(model, codes, labels, update, train=True, seed=0)
    prior = feature_prior(Head.of(model, update), model, None)
    assert prior is not None
    assert float(torch.cosine_similarity(leak.features, prior.mean[None]).min()) > 0.99
    cosines = torch.cosine_similarity(leak.features, sent.features.double())
    assert float(cosines.max()) > 0.5  # the direction of a sample that everybody knows
    assert max(share.most for share in shares_of(sent, leak)) < 0.01


class Codes(nn.Embedding):
    """(B, 1) numbers of rows → (B, 6)."""

    def __init__(self) -> None:
        super().__init__(10, 6)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, 0].long())


def test_what_made_up_inputs_read_is_a_guess_beside_public_ones() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 24), nn.ReLU(), nn.Linear(24, 5))
    images, labels = torch.rand(2, 3, 8, 8), torch.tensor([0, 3])
    update = unsum.capture(model, images, labels)
    sent = Sent(model, images, labels, update, train=True, seed=0)
    head = Head.of(model, update)
    public = public_inputs(images)
    assert public is not None
    priors = [feature_prior(head, model, some) for some in (public, None)]
    assert sent.truth.public is not None
    assert len(sent.truth.public) == 3  # the mean of public photos, and what two priors expect
    for guess, prior in zip(sent.truth.public[1:], priors, strict=True):
        assert prior is not None
        torch.testing.assert_close(guess, prior.mean.to(guess))


def test_the_spread_is_how_much_inputs_differ_in_size() -> None:
    sizes = torch.tensor([[0.8], [1.2], [0.8], [1.2]])
    prior = prior_of(sizes * drawn(1, 300), nn.ReLU())
    # each against the mean of the other three, but for the weight that fits all of them
    expected = [(0.8 / (3.2 / 3) - 1) ** 2, (1.2 / (2.8 / 3) - 1) ** 2]
    assert prior.spread == pytest.approx((sum(expected) / 2) ** 0.5, rel=0.05)
