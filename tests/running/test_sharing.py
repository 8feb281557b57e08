"""What attacks on one model compute once."""

from __future__ import annotations

import pytest
import torch

import unsum
from support.material import pictures, small_net
from unsum.labels import feature_prior
from unsum.running.sharing import once, sharing, sharing_models
from unsum.score.reference import public_inputs


def test_models_are_shared_by_inner_scopes_and_forgotten_after_the_outer_one() -> None:
    made: list[int] = []
    model = object()

    def make() -> int:
        made.append(1)
        return len(made)

    def asked() -> int:
        with sharing_models(), sharing():
            return once("part", (model,), make, of_model=True)

    with sharing_models():
        assert [asked(), asked()] == [1, 1]
    assert asked() == 2


def test_public_inputs_are_the_same_tensor_for_the_same_client() -> None:
    assert public_inputs(pictures(2)) is public_inputs(pictures(2))
    assert public_inputs(torch.randn(2, 9)) is public_inputs(torch.randn(3, 9))


def test_an_audit_expects_features_of_public_photos_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    make = feature_prior._feature_prior

    def counted(head: object, model: object, public: object, seed: int) -> object:
        made.append(public is not None)
        return make(head, model, public, seed)

    monkeypatch.setattr(feature_prior, "_feature_prior", counted)
    noise = unsum.Noise(1e-2)
    unsum.audit(small_net(), (pictures(2), torch.tensor([3, 7])), defenses=noise, compare=True)
    assert made.count(True) == 1
