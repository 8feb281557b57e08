from __future__ import annotations

import pytest
import torch

from unsum import Knowledge, UnsumError


def test_nothing_is_granted_by_default() -> None:
    assert Knowledge().granted() == ["The model's weights and one client update."]
    assert Knowledge().targets(5) is None


def test_everything_granted_is_said() -> None:
    knowledge = Knowledge(torch.tensor([0, 1]), auxiliary_photos="9 cats", may_change_model=True)
    text = " ".join(knowledge.granted())
    for part in ("labels", "batch size (2)", "9 cats", "change the model"):
        assert part in text


def test_labels_become_rows() -> None:
    assert Knowledge(torch.tensor([2, 0])).targets(3).tolist() == [[0, 0, 1], [1, 0, 0]]
    rows = torch.tensor([[0.25, 0.75]])
    assert Knowledge(rows).targets(2).tolist() == rows.tolist()


@pytest.mark.parametrize(
    ("labels", "size", "sentence"),
    [
        (torch.tensor([0.5, 0.5]), None, "whole class numbers"),
        (torch.zeros(2, 2, 2), None, r"must be \(B,\) or \(B, C\)"),
        (torch.tensor([], dtype=torch.long), None, r"must be \(B,\)"),
        (torch.tensor([0, 1]), 3, "2 labels do not fit a batch size of 3"),
        (None, 0, "at least 1"),
    ],
)
def test_contradictions_are_refused(
    labels: torch.Tensor | None, size: int | None, sentence: str
) -> None:
    with pytest.raises(UnsumError, match=sentence):
        Knowledge(labels, size)


@pytest.mark.parametrize(
    ("labels", "sentence"), [([5], "label 5 is outside"), ([-1], "label -1 is outside")]
)
def test_labels_outside_the_classes_are_refused(labels: list[int], sentence: str) -> None:
    with pytest.raises(UnsumError, match=sentence):
        Knowledge(torch.tensor(labels)).targets(5)


def test_auxiliary_samples_are_checked_and_said() -> None:
    knowledge = Knowledge(auxiliary=(torch.zeros(6, 3, 4, 4), torch.tensor([0, 1, 1, 4, 4, 4])))
    assert knowledge.granted()[-1] == "6 labeled samples of its own, of 3 classes."
    for images, labels in [
        (3, torch.zeros(2).long()),
        (2, torch.zeros(2)),
        (2, torch.zeros(2, 2).long()),
        (0, torch.ones(0)),
    ]:
        with pytest.raises(UnsumError, match="one whole class number per image"):
            Knowledge(auxiliary=(torch.zeros(images, 3), labels))
