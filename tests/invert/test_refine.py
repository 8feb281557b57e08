from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from support.long import long
from support.material import pictures, small_net
from support.progress import Heard
from unsum.head import collect_features
from unsum.invert import load_inverse
from unsum.invert.refine import MODES, refine
from unsum.invert.refine.misfit import Misfit
from unsum.invert.refine.prior import colors, mix, spectrum
from unsum.leak import Leak
from unsum.models import load_model

LABELS = torch.tensor([1, 5, 5])


def leaked(
    net: nn.Module,
    images: Tensor,
    labels: Tensor = LABELS,
    *,
    train: bool = True,
    scale: float = 1.0,
) -> tuple[unsum.Update, Leak]:
    """The update of a batch, multiplied by `scale`, with a perfect separation of it; `net` stays in
    the client's mode."""
    net.train(train)
    update = unsum.capture(net, images, labels, train=train).map(
        lambda _name, gradient: gradient * scale
    )
    features = collect_features(net, images)
    head = [module for module in net.modules() if isinstance(module, nn.Linear)][-1]
    targets = nn.functional.one_hot(labels, head.out_features).double()
    logits = head(features).detach()
    return update, Leak("test", targets, logits, features, 0.0, 1e-7, True, scale=scale)


def blurred(images: Tensor) -> Tensor:
    return nn.functional.avg_pool2d(nn.functional.pad(images, (1, 1, 1, 1), mode="replicate"), 3, 1)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("distance", ["l2", "cosine"])
@pytest.mark.parametrize("mode", MODES)
def test_the_truth_has_no_misfit(mode, distance, batch_norm, train) -> None:
    net, images = small_net(batch_norm=batch_norm), pictures(3)
    update, leak = leaked(net, images, train=train, scale=3.0)
    misfit = Misfit(net, update, leak, mode, distance, 4)
    with misfit.ready():
        assert float(misfit.fit(images)[0].detach()) < 1e-6
        assert misfit.watch(images) < 1e-6
        assert float(misfit.fit(blurred(images))[0].detach()) > 1e-3
        assert misfit.watch(blurred(images)) > 1e-3


def test_the_misfits_are_what_they_are_said_to_be() -> None:
    net, images = small_net(), pictures(3)
    update, leak = leaked(net, images)
    other = blurred(images)
    there = unsum.capture(net, other, LABELS).gradients
    misfit = Misfit(net, update, leak, "gf", "l2", 0)
    with misfit.ready():
        loss, features, gradients = (
            float(value.detach()) for value in misfit.fit(other, feature_weight=2.0)
        )
    truth = leak.features
    assert features == pytest.approx(
        float((collect_features(net, other) - truth).norm() / truth.norm()) ** 2, rel=1e-4
    )
    apart = sum(float((there[n] - g).square().sum()) for n, g in update.gradients.items())
    whole = sum(float(g.square().sum()) for g in update.gradients.values())
    assert gradients == pytest.approx(apart / whole, rel=1e-4)
    assert loss == pytest.approx(gradients + 2 * features, rel=1e-5)


def test_modes_share_the_gradients_as_published() -> None:
    net, images = small_net(), pictures(3)
    update, leak = leaked(net, images)
    fitted = {mode: Misfit(net, update, leak, mode, "l2", 0).fitted for mode in MODES}
    assert fitted["features"] == []
    assert fitted["f"] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert sorted(fitted["g"]) == sorted(fitted["gf"]) == sorted(update.gradients)
    split = Misfit(net, update, leak, "f", "l2", 4)
    assert split.watched == ["1.weight"]
    assert "1.weight" not in split.fitted


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prior", ["spectrum", "pixels"])
def test_refinement_lowers_its_own_losses_and_keeps_the_box(mode, prior) -> None:
    net, images = small_net(), pictures(3)
    update, leak = leaked(net, images)
    heard = Heard()
    found = refine(
        net, update, leak, blurred(images), mode=mode, prior=prior, steps=50, gradient_steps=50,
        held_out=0, progress=heard,
    )  # fmt: skip
    assert found.improved
    assert found.images.shape == images.shape
    assert 0 <= float(found.images.min()) <= float(found.images.max()) <= 1
    key = "gradients" if mode == "g" else "features"
    # Fifty steps of Adam, along corrections made for photos, go a shorter way on these pictures of
    # noise.
    fraction = 0.8 if mode == "g" else 0.2
    assert float(found.history[key][-1]) < fraction * float(found.history[key][0])
    assert float(found.history["watched"].min()) < float(found.history["watched"][0])
    assert [row[0] for row in heard.steps] == found.history["step"].tolist()


def test_pictures_keep_the_leaks_order() -> None:
    net, images = small_net(), pictures(3)
    update, leak = leaked(net, images)
    order = torch.tensor([2, 0, 1])
    turned = replace(
        leak, features=leak.features[order], targets=leak.targets[order], logits=leak.logits[order]
    )
    straight = refine(net, update, leak, blurred(images), steps=25).images
    # Sums over the batch round differently in another order, so that a few dozen steps agree only
    # nearly.
    torch.testing.assert_close(
        refine(net, update, turned, blurred(images)[order], steps=25).images,
        straight[order],
        atol=5e-3,
        rtol=0,
    )
    assert float((straight - straight[order]).abs().max()) > 0.1


def test_the_client_and_the_model_are_left_alone() -> None:
    net, images = small_net(), pictures(3)
    update, leak = leaked(net, images)
    net[0].weight.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    refine(net, update, leak, blurred(images), mode="gf", steps=3, gradient_steps=3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert [p.requires_grad for p in net.parameters()] == [False, True, True, True, True, True]


def test_the_held_out_gradients_refuse_a_worse_picture() -> None:
    """From the truth itself every change is for the worse; wrong features would lead away from
    it."""
    net, images = small_net(), pictures(3)
    update, leak = leaked(net, images)
    misled = replace(leak, features=leak.features.flip(1))
    found = refine(net, update, misled, images, steps=200)
    assert not found.improved
    torch.testing.assert_close(found.images, images)
    assert len(found.history["step"]) == 5  # four looks without improvement end it
    assert float(found.history["features"][-1]) < float(found.history["features"][0])


def test_features_are_fitted_no_better_than_they_are_known() -> None:
    net, images = small_net(), pictures(3)
    update, leak = leaked(net, images)
    vague = refine(net, update, replace(leak, predicted_error=0.1), blurred(images), steps=300)
    sharp = refine(net, update, leak, blurred(images), steps=300)
    assert len(vague.history["step"]) < len(sharp.history["step"])


def test_corrections_have_the_spectrum_and_colors_of_photos() -> None:
    S = spectrum(torch.zeros(1, 3, 64, 64))
    assert float(S[0, 8] / S[0, 32]) == pytest.approx(4, rel=0.01)  # 1/frequency
    assert float(S[0, 0]) == float(S.max())
    M = colors(torch.zeros(1, 3, 8, 8))
    gray, red = torch.ones(1, 3, 1, 1), torch.tensor([2.0, -1, -1]).view(1, 3, 1, 1)
    torch.testing.assert_close(mix(M, gray), gray)
    torch.testing.assert_close(mix(M, red), 0.4 * red)


@pytest.mark.long
def test_photos_of_the_default_audit_become_better(default_audit: unsum.Audit) -> None:
    """The claim of the documentation, in small: a few steps raise PSNR, and by more than as many
    with pixels of equal rank."""
    model = load_model("default", classes=100).model.train()
    truth = default_audit.truth
    images, labels = truth.images[:4], truth.targets[:4]
    update = unsum.capture(model, images, labels)
    leak = unsum.attack(model, update)
    assert leak.images is not None
    features = collect_features(model, images)
    found = {
        prior: refine(model, update, leak, leak.images, prior=prior, steps=75).images
        for prior in ("spectrum", "pixels")
    }
    scores = {
        name: unsum.score(replace(leak, images=pictures), images=images, features=features)["psnr"]
        for name, pictures in {"start": leak.images, **found}.items()
    }
    assert scores["spectrum"] > scores["start"] + 0.3
    assert scores["spectrum"] > scores["pixels"] + 0.3


@pytest.mark.parametrize("prior", ["color", *long("decoder-input", "decoder-weights")])
def test_other_priors_begin_at_the_inverses_pictures(prior) -> None:
    model = load_model("default", classes=20).model.train()
    images = nn.functional.interpolate(torch.rand(2, 3, 8, 8), size=128, mode="bilinear")
    update, leak = leaked(model, images, torch.tensor([0, 1]))
    inverse = load_inverse(model)
    start = unsum.invert(model, leak)
    still = refine(model, update, leak, start, prior=prior, steps=0, inverse=inverse)
    torch.testing.assert_close(still.images, start)
    moved = refine(model, update, leak, start, prior=prior, steps=12, inverse=inverse)
    assert float(moved.history["features"][-1]) < float(moved.history["features"][0])


def test_bad_input_is_told() -> None:
    net, images = small_net(), pictures(3)
    update, leak = leaked(net, images)
    with pytest.raises(unsum.UnsumError, match="each of the leak's 3 samples"):
        refine(net, update, leak, images[:2])
    with pytest.raises(unsum.UnsumError, match="NaN or Inf"):
        refine(net, update, leak, images / 0 * 0)
    with pytest.raises(unsum.UnsumError, match="There is no mode of refinement 'fg'; did you mean"):
        refine(net, update, leak, images, mode="fg")  # type: ignore[arg-type]
    with pytest.raises(
        unsum.UnsumError, match="There is no prior of refinement 'pixel'; did you mean 'pixels'"
    ):
        refine(net, update, leak, images, prior="pixel")  # type: ignore[arg-type]
    with pytest.raises(unsum.UnsumError, match="There is no distance 'l1'"):
        refine(net, update, leak, images, distance="l1")  # type: ignore[arg-type]
    with pytest.raises(unsum.UnsumError, match=r"pass inverse=load_inverse"):
        refine(net, update, leak, images, prior="decoder-input")
    with pytest.raises(unsum.UnsumError, match="held_out must be 0"):
        refine(net, update, leak, images, mode="g", held_out=1)
    with pytest.raises(unsum.UnsumError, match="at least 0"):
        refine(net, update, leak, images, steps=-1)
    bare = unsum.Update({name: g for name, g in update.gradients.items() if name.startswith("5.")})
    with pytest.raises(unsum.UnsumError, match="nothing to match; use 'features'"):
        refine(net, bare, leak, images, mode="f")
    # nothing to watch but the features themselves
    assert refine(net, bare, leak, blurred(images), steps=25).improved
