"""The adaptive separator on defended gradients, against the ones that do not adapt."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import unsum
from separate.sparse_cases import sparse_case
from support.long import long
from unsum import UnsumError, capture, separate
from unsum.separate.adaptive.prior import denoise


def test_noise_is_removed_by_the_prior() -> None:
    case = sparse_case()
    adaptive, exact = case.run("noise:0.02", "adaptive"), case.run("noise:0.02", "exact")
    assert adaptive[1] < 0.7 * exact[1]
    assert 1 - adaptive[0] < 0.5 * (1 - exact[0])


def test_signed_features_are_not_cut_at_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(4, 3000, generator=generator)
    torch.manual_seed(1)
    model = nn.Linear(3000, 50)
    update = capture(model, features, torch.arange(4))
    torch.manual_seed(2)
    leak = separate(model, unsum.Noise(0.05)(update), "adaptive")
    assert float((leak.features < -0.5).double().mean()) > 0.2
    # the noise alone is 0.2
    assert float((leak.features - features).norm() / features.norm()) < 0.25


@pytest.mark.parametrize(
    ("defense", "least"), [("noise:0.005", 0.9), ("prune:0.9", 0.97), ("prune:0.97", 0.85)]
)
def test_samples_of_one_label_are_told_apart(defense: str, least: float) -> None:
    case = sparse_case(same=6)
    adaptive = case.run(defense, "adaptive", labels=case.labels)
    ratio = case.run(defense, "fgla", labels=case.labels)
    assert adaptive[0] > least
    assert ratio[0] < 0.6  # the mean of six


def test_counts_come_from_the_bias_gradient() -> None:
    case = sparse_case(same=3)
    leak = separate(case.model, case.defended("noise:0.02"), "adaptive", batch_size=6)
    assert leak.labels.sort().values.tolist() == case.labels.sort().values.tolist()


def test_what_noise_hides_is_given_as_the_mean() -> None:
    case = sparse_case(same=3)
    leak = separate(case.model, case.defended("noise:0.4"), "adaptive", labels=case.labels)
    assert leak.labels.sort().values.tolist() == case.labels.sort().values.tolist()
    members = (leak.labels == case.labels[0]).nonzero()[:, 0].tolist()
    assert torch.equal(leak.features[members[0]], leak.features[members[1]])
    assert any(
        f"Samples {', '.join(map(str, members))} share a label" in note for note in leak.notes
    )
    mean = case.features[:3].mean(0)
    assert float(torch.cosine_similarity(leak.features[members[0]], mean, dim=0)) > 0.5


@pytest.mark.parametrize(
    ("fraction", "best"), [(0.8, 4e-3), (0.97, 0.03), *long((0.9, 6e-3), (0.99, 0.25))]
)
def test_pruned_entries_are_no_zeros(fraction: float, best: float) -> None:
    case = sparse_case()
    adaptive = case.run(f"prune:{fraction}", "adaptive")
    assert adaptive[1] < best
    assert adaptive[1] < 0.5 * case.run(f"prune:{fraction}", "exact")[1]


def test_labels_survive_where_one_bias_entry_does() -> None:
    case = sparse_case()
    update = case.defended("prune:0.99")
    assert int((update.gradients["bias"] != 0).sum()) == 1
    leak = separate(case.model, update, "adaptive", batch_size=6)
    assert leak.labels.sort().values.tolist() == case.labels.sort().values.tolist()


@pytest.mark.parametrize("same", [0, 3, 6])
def test_clipping_alone_stays_exact(same: int) -> None:
    case = sparse_case(same=same)
    leak = separate(case.model, case.defended("clip:0.5"), "adaptive")
    assert leak.exact
    assert leak.scale < 0.5
    assert case.scored(leak)[1] < 1e-4


def test_clipped_and_noisy() -> None:
    case = sparse_case()
    leak = separate(case.model, case.defended("clip:4|noise:0.002"), "adaptive")
    true_scale = min(
        1.0, 4 / float(torch.cat([g.flatten() for g in case.update.gradients.values()]).norm())
    )
    assert leak.scale == pytest.approx(true_scale, rel=0.15)
    cosine, error = case.scored(leak)
    assert cosine > 0.99
    assert error < 0.8 * case.run("clip:4|noise:0.002", "fgla")[1]  # the scale is known to a tenth


def test_sign_leaves_the_direction_and_claims_no_more() -> None:
    case = sparse_case()
    leak = separate(case.model, case.defended("sign"), "adaptive")
    assert leak.labels.sort().values.tolist() == case.labels.sort().values.tolist()
    assert case.scored(leak)[0] > 0.65  # 1/√2 for exponential features
    assert leak.predicted_error > 0.5
    assert not leak.exact


@pytest.mark.parametrize(("defense", "most"), [("quantize:8", 0.05), ("qsgd:1024", 0.15)])
def test_quantized(defense: str, most: float) -> None:
    case = sparse_case()
    leak = separate(case.model, case.defended(defense), "adaptive")
    error = case.scored(leak)[1]
    assert error < most
    assert 0.4 * error < leak.predicted_error < 4 * error


def test_rounded_to_sixteen_bits() -> None:
    case = sparse_case()
    leak = separate(case.model, case.defended("bfloat16"), "adaptive")
    assert case.scored(leak)[1] < 0.003
    assert not leak.exact
    assert math.isnan(leak.predicted_error)  # others would explain what is so rough


def test_columns_that_were_held_back_are_named() -> None:
    case = sparse_case()
    gradients = dict(case.update.gradients)
    gradients["weight"] = gradients["weight"].index_fill(1, torch.arange(0, 3000, 20), 0.0)
    leak = separate(case.model, unsum.Update(gradients), "adaptive")
    assert not leak.exact
    assert any(
        "columns of the head's gradient are zero" in note and "held back" in note
        for note in leak.notes
    )
    kept = torch.ones(3000, dtype=torch.bool)
    kept[::20] = False
    order = [int((leak.labels == label).nonzero()[0]) for label in case.labels]
    wrong = (leak.features[order] - case.features)[:, kept].norm(dim=1) / case.features[
        :, kept
    ].norm(dim=1)
    assert float(wrong.max()) < 0.02


def test_secure_aggregation_is_one_large_batch() -> None:
    torch.manual_seed(0)
    model = nn.Linear(400, 60)
    features = torch.rand(8, 400) * (torch.rand(8, 400) < 0.5)
    labels = torch.tensor([3, 3, 5, 7, 7, 9, 11, 13])
    clients = [capture(model, features[i : i + 2], labels[i : i + 2]) for i in range(0, 8, 2)]
    leak = separate(model, unsum.aggregate(clients), "adaptive")
    assert leak.batch_size == 8
    assert leak.exact
    assert leak.labels.sort().values.tolist() == labels.tolist()


def test_nothing_but_noise_and_nothing_at_all() -> None:
    model = nn.Linear(200, 30)
    torch.manual_seed(0)
    noise = unsum.Update({"weight": torch.randn(30, 200), "bias": torch.randn(30)})
    assert not separate(model, noise, "adaptive").exact
    silent = unsum.Update({"weight": torch.zeros(30, 200), "bias": torch.zeros(30)})
    leak = separate(model, silent, "adaptive", batch_size=2)
    assert leak.features.shape == (2, 200)
    assert leak.predicted_error == float("inf")


def test_bad_input_is_refused() -> None:
    case = sparse_case()
    with pytest.raises(UnsumError, match="outside the model's classes"):
        separate(case.model, case.defended("noise:0.01"), "adaptive", labels=torch.tensor([100]))
    with pytest.raises(UnsumError, match="'adaptive' takes no options"):
        separate(case.model, case.update, "adaptive", steps=3)
    with pytest.raises(UnsumError, match="lacks 'weight'"):
        separate(case.model, unsum.Update({"bias": torch.zeros(100)}), "adaptive")


def test_estimates_far_above_their_noise_stay_as_they_are() -> None:
    estimates = torch.rand(2, 40, dtype=torch.float64) + 1
    posterior = denoise(estimates, torch.full((2,), 1e-6, dtype=torch.float64), signed=False)
    torch.testing.assert_close(posterior.mean, estimates)
