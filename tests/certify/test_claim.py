"""One place grants `exact`, from evidence; nothing else in the package does."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
import torch

import unsum
from support.sources import parsed
from unsum.certify.claim import Evidence, grant, grant_each

SOURCE = Path(unsum.__file__).parent
SURE = Evidence(torch.tensor([1e-6, 1e-5]), explained=True, confirmations=1)
GRANTING = ("exact", "inputs_exact")


@cache
def calls() -> list[tuple[str, ast.Call]]:
    return [
        (path.relative_to(SOURCE).as_posix(), node)
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
    ]


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def test_only_one_module_makes_claims() -> None:
    assert {path for path, call in calls() if name_of(call) == "Claim"} == {"certify/claim.py"}


def test_every_exact_is_false_or_comes_from_a_claim() -> None:
    """`exact=` takes False, what another object's `.exact` says, or what `grant_each` grants;
    nothing is decided on the spot."""
    granted = {"grant_each"}
    for path, call in calls():
        # it only puts what a reader was granted into the leak's order
        if path == "active/compose.py":
            continue
        for keyword in call.keywords:
            if keyword.arg in GRANTING and name_of(call) in (
                "Leak",
                "Peeled",
                "replace",
                "Recovered",
            ):
                value = keyword.value
                passed_on = isinstance(value, ast.Attribute) and value.attr in GRANTING
                denied = isinstance(value, ast.Constant) and value.value in (False, None)
                asked = isinstance(value, ast.Call) and name_of(value) in granted
                assert passed_on or denied or asked, (
                    f"{path}:{call.lineno} decides about {keyword.arg} itself"
                )


def test_a_claim_needs_every_piece_of_evidence() -> None:
    assert grant(SURE).exact
    assert grant(SURE).predicted_error == pytest.approx(1e-5)
    for lacking in (
        {"explained": False},
        {"confirmations": 0},
        {"missing": 1},
        {"doubts": ["Something else fits."]},
        {"errors": torch.tensor([1e-6, 2e-3])},
        {"errors": torch.tensor([1e-6, float("nan")])},
        {"errors": torch.tensor([])},
    ):
        claim = grant(
            Evidence(**({"errors": SURE.errors, "explained": True, "confirmations": 1} | lacking))
        )
        assert not claim.exact, lacking
        assert claim.predicted_error == claim.predicted_error  # never NaN


def test_what_was_declared_is_named_in_the_claim_and_only_there() -> None:
    assumed = Evidence(SURE.errors, True, 1, assumed=["It stands on the declared loss."])
    assert grant(assumed).notes == ["It stands on the declared loss."]
    assert grant(
        Evidence(SURE.errors, True, 0, assumed=["It stands on the declared loss."])
    ).notes == ["No second start led to this solution."]


def test_no_input_is_exact_where_what_it_was_computed_from_is_not() -> None:
    errors = torch.tensor([1e-6, 1e-2, float("nan")])
    assert grant_each(errors, above=True).tolist() == [True, False, False]
    assert not grant_each(errors, above=False).any()
    assert not grant_each(errors, above=True, doubts=["Two may be one."]).any()
