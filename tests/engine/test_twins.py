"""Two samples that look like one: what they send besides their mean, by hand and by autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unsum.engine.twins import Passed, SentLayers, amplification, drawn, largest, outside


def one_place(read: Tensor, delta: Tensor) -> Passed:
    return Passed(read[:, None], delta[:, None])


@pytest.mark.parametrize("places", [1, 4])
def test_a_size_is_the_norm_of_the_sample_s_own_gradient(places: int) -> None:
    torch.manual_seed(0)
    patches, delta = torch.randn(3, places, 5).double(), torch.randn(3, places, 2).double()
    own = torch.einsum("bpm,bpn->bmn", delta, patches).flatten(1).norm(dim=1)
    torch.testing.assert_close(Passed(patches, delta).size, own)


def test_a_convolution_is_read_by_its_patches() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 3, padding=1, bias=False).double()
    x = torch.randn(1, 2, 4, 4).double()
    written = conv(x)
    delta = torch.randn_like(written)
    (gradient,) = torch.autograd.grad(written, conv.weight, delta)
    passed = Passed.of(conv, x, delta)
    assert passed.patches.shape == (1, 16, 18)
    assert float(passed.size) == pytest.approx(float(gradient.norm()))


def test_what_lies_outside_a_span() -> None:
    """Of (1, 2, 2) beside the first axis (0, 2, 2) is left; in the span, nothing."""
    basis = torch.tensor([[1.0, 0.0, 0.0]])
    rows = torch.tensor([[1.0, 2.0, 2.0], [7.0, 0.0, 0.0]])
    assert outside(rows, basis).tolist() == [[0, 2, 2], [0, 0, 0]]


def test_half_the_difference_outside_both_spans_counts() -> None:
    """Half of (8, 6) − (2, 0) is (3, 3), of which (0, 3) is beside (1, 0); half of δ likewise."""
    at = one_place(torch.tensor([[5.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    plus = one_place(torch.tensor([[8.0, 6.0]]), torch.tensor([[1.0, 4.0]]))
    minus = one_place(torch.tensor([[2.0, 0.0]]), torch.tensor([[9.0, 0.0]]))
    assert plus.beyond(minus, at.spans(torch.float32)).tolist() == pytest.approx([3.0 * 2.0])


def test_the_best_layer_and_the_worst_direction_count() -> None:
    """Three directions in two layers: the larger of the layers, then the smallest direction."""
    zero, axis = torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])
    # What the layers show of x + d; x − d is the origin.
    shown = iter([(30.0, 20.0), (0.0, 0.0), (5.0, 25.0), (0.0, 0.0), (7.0, 8.0), (0.0, 0.0)])

    def play(_inputs: Tensor) -> dict[str, Passed]:
        sides = ((torch.tensor([[0.0, 2 * size]]), size) for size in next(shown))
        sent = torch.tensor([[0.0, 2.0]])
        layers = zip("ab", sides, strict=True)
        return {name: one_place(read, sent if size else zero) for name, (read, size) in layers}

    at = {name: one_place(axis, axis) for name in "ab"}
    sent = SentLayers(torch.ones(1, 2), at, {"a": 1.0, "b": 2.0}, play)
    found = sent.twins(0.01, 3, seed=0)
    assert found.tolist() == pytest.approx([7.0])  # of 30, 12.5 and 7
    assert next(shown, None) is None


def test_samples_of_a_linear_model_have_no_twin_that_shows() -> None:
    """δ does not depend on x there, so half of δ₊ − δ₋ is zero."""
    X, delta = torch.eye(3)[:2], torch.ones(2, 4)

    def play(x: Tensor) -> dict[str, Passed]:
        return {"": one_place(x, delta)}

    sent = SentLayers(X, play(X), {"": 1e-9}, play)
    assert sent.twins(0.01, 4, seed=0).tolist() == [0, 0]


def test_the_layer_that_shows_a_sample_least_counts() -> None:
    """5 · 2 and 10 · 1 over 0.1 in one layer, 3 and ½ over 0.5 in the other."""
    at = {
        "a": one_place(torch.tensor([[3.0, 4.0], [6.0, 8.0]]), torch.tensor([[2.0], [1.0]])),
        "b": one_place(torch.eye(2), torch.tensor([[3.0], [0.5]])),
    }
    sent = SentLayers(torch.eye(2), at, {"a": 0.1, "b": 0.5}, lambda _: at)
    assert sent.contributions().tolist() == pytest.approx([6.0, 1.0])


def test_changes_have_the_length_that_was_asked_for() -> None:
    inputs = torch.tensor([[3.0, 4.0], [0.0, 1.0]])[:, None]
    d = drawn(inputs, 0.1, torch.Generator().manual_seed(0))
    assert d.shape == inputs.shape
    assert d.flatten(1).norm(dim=1).tolist() == pytest.approx([0.5, 0.1])


def test_features_amplify_errors_or_are_no_better_than_their_input() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.tensor([[1.0, 1.0], [2.0, -1.0]], dtype=torch.float64)
    cubed = amplification(lambda x: x.norm(dim=1, keepdim=True) ** 30, inputs, 8, generator)
    assert bool(((cubed > 3) & (cubed < 33)).all())
    assert amplification(torch.ones_like, inputs, 2, generator).tolist() == [1.0, 1.0]


def test_the_largest_singular_value_is_bounded_from_below() -> None:
    assert largest(torch.diag(torch.tensor([5.0, 1.0]))) == pytest.approx(5.0, rel=1e-6)
    noise = torch.randn(40, 60, generator=torch.Generator().manual_seed(0))
    exact = float(torch.linalg.matrix_norm(noise, 2))
    assert 0.8 * exact < largest(noise) <= exact * (1 + 1e-6)
    assert 0 < largest(torch.zeros(2, 3)) < 1e-30
