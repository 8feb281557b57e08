"""One client against the server: what it declares takes no memory, and is met with a sentence,
never with a low leak."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unsum
from hostile.child import within_memory
from support.long import long
from unsum.errors import UnsumError
from unsum.files.writing import save_tensors
from unsum.local_training import LocalTraining

HUGE = 10**30

# What the audit of a Flower round does with one client: the counters of its BatchNorm went up by
# `given` batches.
_ROUND = """
sys.path.insert(0, ".")
from integrations.networks import network, photos, trained
from unsum.integrations.finding import attack_seen, finding_of, reason_of
from unsum.integrations.rounds import seen
model = network()
after = trained(model, *photos(), rate=0.1)
for name in after:
    if name.endswith("num_batches_tracked"):
        after[name] = after[name] - 1 + given
try:
    found = seen(model, model.state_dict(), after, unsum.LocalTraining(learning_rate=0.1))
    leak = attack_seen(model, found, None, train=True, seed=0)
    print(json.dumps(["audited", finding_of(1, "7", found.update, leak).to_dict()["leakage"]]))
except Exception as error:
    print(json.dumps(["failed", reason_of(error)]))
"""


@pytest.mark.parametrize("batches", long(30_000, 10**9, 2**62))
def test_counters_of_a_client_take_no_memory_and_are_no_low_leak(batches: int) -> None:
    outcome, told = within_memory(_ROUND, batches)
    assert outcome == "failed"
    assert f"said to have taken {batches:,} local steps" in told
    assert "not audited" in told
    assert "Error" not in told  # a sentence of our own, no other library's


@pytest.mark.long
def test_an_honest_client_is_audited_within_the_same_memory() -> None:
    outcome, leakage = within_memory(_ROUND, 1)
    assert outcome == "audited"
    assert leakage > 0.999


def _update(path: Path, metadata: str) -> Path:
    """A gradient of three samples for a head of 5 classes, with metadata as a stranger writes
    it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    update = unsum.capture(model, torch.rand(2, 12), torch.tensor([0, 3]))
    save_tensors(
        {name: g.contiguous() for name, g in update.gradients.items()},
        path,
        {"unsum-update": metadata},
    )
    return path


def _steps(steps: Any, **others: Any) -> dict[str, Any]:
    return {
        "kind": "delta",
        "learning_rate": 0.1,
        "training": {"learning_rate": 0.1, "steps": steps} | others,
    }


_FILE = """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5))
model.image_size = 2
told = []
for path, method in given:
    try:
        told.append(unsum.attack(model, unsum.Update.load(path, model=model), method).exact)
    except unsum.UnsumError as error:
        told.append(str(error))
print(json.dumps(told))
"""


@pytest.mark.long
def test_metadata_of_a_small_file_takes_no_memory(tmp_path: Path) -> None:
    declared: list[tuple[Any, str, str]] = [
        ({"batch_size": 100_000}, "auto", "said to hold 100,000 samples"),
        ({"batch_size": 100_000}, "adaptive", "said to hold 100,000 samples"),
        ({"batch_size": 2**40}, "cocktail", "said to hold"),
        (_steps(100_000), "auto", "False"),  # read as one step, and nothing is claimed
        (_steps(100_000, epochs=50_000), "local-steps", "said to have taken 100,000 local steps"),
        (_steps(2, batch_size=10**7), "local-steps", "said to hold 10,000,000 samples"),
        (_steps(None, epochs=10**9), "local-steps", "say how many"),
    ]
    given = [
        (str(_update(tmp_path / f"{i}.safetensors", json.dumps(metadata))), method)
        for i, (metadata, method, _) in enumerate(declared)
    ]
    assert all(Path(path).stat().st_size < 1500 for path, _ in given)
    for told, (_, _, sentence) in zip(within_memory(_FILE, given), declared, strict=True):
        assert sentence in str(told)


def test_a_declared_batch_of_pictures_is_not_matched_on_its_word_alone(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 5))
    update = unsum.capture(model, torch.rand(2, 3, 64, 64), torch.tensor([0, 3]))
    declared = unsum.Update(update.gradients, batch_size=4000)
    with pytest.raises(UnsumError, match="4,000 samples, too many to be matched"):
        unsum.attack(model, declared, "ig:steps=1", options={"image_size": 64})


NUMBERS = [
    {"batch_size": HUGE},
    {"num_examples": HUGE},
    {"batch_size": "8"},
    {"batch_size": 2.0},
    {"batch_size": [8]},
    {"num_examples": -1},
    {"learning_rate": "fast"},
    {"learning_rate": 10**400},
    {"learning_rate": float("nan")},
    {"learning_rate": True},
    _steps(HUGE),
    _steps(2.5),
    _steps("2"),
    _steps(True),
    _steps(2, momentum=float("nan")),
    _steps(2, momentum="0.9"),
    _steps(2, weight_decay=float("inf")),
    _steps(2, learning_rate=float("inf")),
    _steps(2, learning_rate=10**400),
    _steps(2, epochs=HUGE),
    _steps(2, epochs=None),
    _steps(2, batch_size=HUGE),
    {"training": 7},
    {"training": {"steps": 2, "surprise": 1}},
    {"kind": ["gradient"]},
    {"reduction": "x" * 100_000},
]


@pytest.mark.parametrize("metadata", NUMBERS, ids=lambda metadata: json.dumps(metadata)[:60])
def test_metadata_that_makes_no_sense_is_one_sentence(
    tmp_path: Path, metadata: dict[str, Any]
) -> None:
    path = _update(tmp_path / "u.safetensors", json.dumps(metadata))
    with pytest.raises(UnsumError) as told:
        unsum.Update.load(path)
    assert str(told.value).count("\n") == 0
    assert len(str(told.value)) < 400


@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 2.5}, {"steps": "2"}, {"learning_rate": "0.1"}, {"learning_rate": float("inf")},
        {"epochs": 1.5}, {"momentum": None}, {"weight_decay": float("inf"), "learning_rate": 0.1},
        {"batch_size": 0},
    ],
)  # fmt: skip
def test_so_is_local_training_that_makes_no_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(UnsumError, match="must be"):
        LocalTraining(**settings)


@pytest.mark.parametrize("value", [1e308, -1e308, 1e160])
@pytest.mark.parametrize("method", ["auto", "exact", "adaptive", "fgla"])
def test_gradients_beyond_all_training_are_refused(value: float, method: str) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).double()
    update = unsum.capture(model, torch.rand(2, 12).double(), torch.tensor([0, 3]))
    sent = {name: g.clone() for name, g in update.gradients.items()}
    sent["1.weight"][2, 3] = value
    with pytest.raises(UnsumError, match=r"'1.weight' holds values of 1e\+"):
        unsum.attack(model, unsum.Update(sent), method)


@pytest.mark.parametrize("value", [3e38, 1e-40])
def test_gradients_at_the_ends_of_float32_are_answered_without_a_claim(value: float) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    assert unsum.attack(
        model, unsum.capture(model, torch.rand(1, 12), torch.tensor([3]))
    ).exact  # what was sent is claimed
    update = unsum.Update(
        {name: torch.randn_like(p).sign() * value for name, p in model.named_parameters()}
    )
    with contextlib.suppress(UnsumError):
        assert not unsum.attack(model, update).exact


def test_long_names_of_tensors_are_cut_in_sentences() -> None:
    model, name = nn.Linear(4, 3), "layer." * 5000
    told = []
    for gradients in (
        {name: torch.zeros(3, 4)},
        {"weight": torch.zeros(3, 4), name: torch.zeros(3)},
    ):
        with pytest.raises(UnsumError) as refusal:
            unsum.Update(gradients).validate(model)
        told.append(str(refusal.value))
    from unsum.files.naming import named_as
    from unsum.integrations.rounds import seen

    with pytest.raises(UnsumError) as refusal:
        named_as(model, {name: torch.zeros(7)}, ordered=True)
    told.append(str(refusal.value))
    with pytest.raises(UnsumError) as refusal:
        seen(model, {**model.state_dict(), name: torch.zeros(1)}, model.state_dict())
    told.append(str(refusal.value))
    assert all(
        "layer.layer." in sentence and "…" in sentence and len(sentence) < 400 for sentence in told
    )
