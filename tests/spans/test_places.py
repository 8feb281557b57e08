"""Samples of networks that end in depthwise and 1×1 convolutions: vectors of single places, held
against the truth."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import unsum
from support.long import long
from support.maps import client, depthwise
from unsum.gradients import inputs_of
from unsum.spans.maps.places import read_places


@pytest.mark.parametrize("labels", [[1, 1, 0], *long([0, 1], [2])])
def test_every_sample_is_certified(labels: list[int]) -> None:
    """Nothing overlaps; zeros tell the places, and what each sent back tells whose it is."""
    sent = client(depthwise(), labels, train=False)
    leak = unsum.separate(sent.model, sent.update, "spans", batch_size=len(labels))
    assert leak.exact, leak.notes
    scores = unsum.score(leak, features=sent.features, targets=sent.labels)
    assert scores["worst_feature_error"] < min(1e-4, leak.predicted_error)
    assert sorted(leak.labels.tolist()) == sorted(labels)
    assert any("the order of the places is open" in note for note in leak.notes)


def test_vectors_are_those_of_places() -> None:
    """Each once, as long as it was."""
    sent = client(depthwise(), [0, 1], train=False)
    found = read_places(sent.model, sent.update, torch.device("cpu"), 0)
    assert found is not None
    assert found.layer.name == "1.3"
    with inputs_of(sent.model.get_submodule("1.3")) as seen, torch.no_grad():
        sent.model[1](sent.maps)
    true = seen[-1].double().permute(0, 2, 3, 1).flatten(0, 2)
    errors, which = (torch.cdist(found.vectors, true) / true.norm(dim=1)).min(1)
    assert sorted(which.tolist()) == list(range(8))
    assert float(errors.max()) < 1e-4


def test_a_replaced_vector_is_never_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    """One place of a sample swapped for a mixture of two."""
    from unsum.spans.maps import method

    def mixed(*args: object) -> object:
        found = read_places(*args)  # type: ignore[arg-type]
        assert found is not None
        vectors = found.vectors.clone()
        vectors[0] = (vectors[0] + vectors[1]) / 2
        return found._replace(vectors=vectors)

    sent = client(depthwise(), [0, 1], train=False)
    assert unsum.separate(sent.model, sent.update, "spans", batch_size=2).exact
    monkeypatch.setattr(method, "read_places", mixed)
    monkeypatch.setattr(method, "_POLISHES", 1)
    try:
        leak = unsum.separate(sent.model, sent.update, "spans", batch_size=2)
    except unsum.UnsumError:
        return
    wrong = F.normalize(leak.features.double())
    right = torch.cdist(wrong, F.normalize(sent.features.double())).amin(0) < 1e-3
    assert not leak.exact or bool(right.all())


def test_train_mode_is_refused() -> None:
    """BatchNorm's own statistics leave differences of places alone: these have no zeros."""
    sent = client(depthwise(), [0, 1])
    with pytest.raises(unsum.UnsumError, match="use 'exact' for the head alone"):
        unsum.separate(sent.model, sent.update, "spans", batch_size=2)
