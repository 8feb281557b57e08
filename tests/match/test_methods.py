"""Every matcher draws real pictures: one table of methods and networks."""

from __future__ import annotations

import math

import pytest
import torch

from match.cases import Case, convnet, decibels, lenet
from support.long import long
from unsum.match import MATCHERS

LBFGS = {"distance": "l2", "steps": 640, "total_variation": 1e-4}
CASES = [
    Case("dlg", lenet, 1, 25, {"steps": 70}),
    Case("idlg", lenet, 1, 25, {"steps": 70}),
    Case("ig", convnet, 2, 18.5, {"steps": 500, "total_variation": 1e-3}),
    Case("gradinversion", convnet, 2, 18.5, {"steps": 450, "restarts": 2, "total_variation": 1e-3}),
    Case("soft-g", lenet, 1, 25, LBFGS, soft=True),
    Case("soft-f", lenet, 1, 20, LBFGS | {"separator": "soft"}, soft=True),
    Case("soft-gf", lenet, 1, 24, LBFGS, soft=True),
]


# The others do what one of these does, with another distance or other labels.
QUICK = [
    case
    for case in CASES
    if case.method not in ("dlg", "idlg", "gradinversion", "soft-f", "soft-gf")
]
FURTHER = [case for case in CASES if case not in QUICK]


@pytest.mark.parametrize("case", [*QUICK, *long(*FURTHER)], ids=str)
def test_pictures_are_recovered(case: Case) -> None:
    leak, images, targets = case.run()
    assert leak.method == case.method
    assert leak.images is not None
    assert leak.images.shape == images.shape
    assert 0 <= float(leak.images.min()) <= float(leak.images.max()) <= 1
    assert float(decibels(leak.images, images).min()) > case.decibel
    torch.manual_seed(0)
    for nothing in (torch.full_like(images, 0.5), torch.rand_like(images)):
        assert float(decibels(nothing, images).max()) < case.decibel - 5
    rows = targets if targets.ndim == 2 else torch.eye(10)[targets]
    torch.testing.assert_close(
        leak.targets.float().sort(0).values, rows.sort(0).values, atol=0.05, rtol=0
    )


@pytest.mark.parametrize("case", [CASES[0], CASES[4]], ids=str)
def test_what_is_claimed(case: Case) -> None:
    """Pictures have no certificate; features of a separator keep theirs."""
    leak, _, _ = Case(
        case.method, case.network, 1, 0, {**case.options, "steps": 16}, soft=case.soft
    ).run()
    assert "carry no certificate" in leak.notes[-1]
    assert "distance of gradients is" in leak.notes[-1]
    if case.method == "dlg":
        assert not leak.exact
        assert leak.predicted_error == math.inf
        assert 0 < leak.residual < 1
        assert leak.features.shape == (1, 768)
        assert leak.knowledge.granted()[1:] == ["The batch size (1)."]
    else:
        assert leak.exact
        assert leak.notes[0] == "Labels and features were found by the separator 'exact'."


def test_the_table_has_every_method() -> None:
    published = {"dlg", "idlg", "ig", "gradinversion", "soft-g", "soft-f", "soft-gf"}
    assert {case.method for case in CASES} == published <= {entry.name for entry in MATCHERS}
    for entry in MATCHERS:
        assert entry.summary
        assert "image size" in entry.needs
