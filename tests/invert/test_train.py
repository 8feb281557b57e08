"""Training an inverse: it learns, it survives a kill, it fits its backbone and no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import unsum
from support.inverse_training import SHORT, SIZE, backbone, photos, seen_by, weights
from unsum.invert import checkpoint, load_inverse
from unsum.invert.train import Training, TrainingState, train_inverse


@pytest.mark.long
def test_it_learns_pictures_it_was_not_trained_on(tmp_path: Path) -> None:
    seen: list[TrainingState] = []
    training = Training(steps=250, size=SIZE, batch=32, clients=(8,), rate=3e-3)
    inverse = train_inverse(
        backbone(),
        photos(256),
        photos(64, seed=1),
        tmp_path,
        training,
        card={"photos": 256},
        watch=seen_by(seen),
    )
    gray = float(-10 * ((photos(64, seed=1) / 255 - 0.5) ** 2).mean().log10())
    assert inverse.card["held_out_psnr_batch_8"] > gray + 6
    assert inverse.card["photos_seen"] == 250 * 32
    assert seen[-1].held_out_psnr > seen[0].held_out_psnr + 4
    stored = load_inverse(backbone(), tmp_path / "inverse.safetensors")
    assert stored.card == inverse.card
    # stored in half precision
    torch.testing.assert_close(weights(stored), weights(inverse), atol=1e-3, rtol=1e-3)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("moment", [1, 7])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path, moment: int) -> None:
    def kill(progress: TrainingState) -> None:
        if progress.step == moment:
            raise KilledError

    model = backbone()
    with pytest.raises(KilledError):
        train_inverse(
            model, photos(40), photos(8, 1), tmp_path / "a", SHORT, card={"photos": 40}, watch=kill
        )
    steps: list[TrainingState] = []
    resumed = train_inverse(
        model,
        photos(40),
        photos(8, 1),
        tmp_path / "a",
        SHORT,
        card={"photos": 40},
        watch=seen_by(steps),
    )
    whole = train_inverse(
        model, photos(40), photos(8, 1), tmp_path / "b", SHORT, card={"photos": 40}
    )
    assert steps[0].step == moment + 1
    assert torch.equal(weights(resumed), weights(whole))


def test_a_finished_run_does_nothing_again(tmp_path: Path) -> None:
    first = train_inverse(
        backbone(), photos(40), photos(8, 1), tmp_path, SHORT, card={"photos": 40}
    )
    steps: list[TrainingState] = []
    again = train_inverse(
        backbone(),
        photos(40),
        photos(8, 1),
        tmp_path,
        SHORT,
        card={"photos": 40},
        watch=seen_by(steps),
    )
    assert steps == []
    assert torch.equal(weights(first), weights(again))


def test_a_checkpoint_is_refused_by_another_run(tmp_path: Path) -> None:
    train_inverse(backbone(), photos(40), photos(8, 1), tmp_path, SHORT, card={"photos": 40})
    for changed, word in ((replace(SHORT, rate=1e-4), "rate"), (replace(SHORT, seed=1), "seed")):
        with pytest.raises(unsum.UnsumError, match=f"another {word}"):
            train_inverse(
                backbone(), photos(40), photos(8, 1), tmp_path, changed, card={"photos": 40}
            )
    with pytest.raises(unsum.UnsumError, match="another backbone"):
        train_inverse(backbone(1), photos(40), photos(8, 1), tmp_path, SHORT, card={"photos": 40})
    (tmp_path / checkpoint.FILE).write_bytes(b"nothing")
    with pytest.raises(unsum.UnsumError, match="cannot be read; delete it"):
        train_inverse(backbone(), photos(40), photos(8, 1), tmp_path, SHORT, card={"photos": 40})


def test_an_inverse_is_refused_by_another_backbone(tmp_path: Path) -> None:
    train_inverse(backbone(), photos(40), photos(8, 1), tmp_path, SHORT, card={"photos": 40})
    with pytest.raises(unsum.UnsumError, match="was trained for a backbone with other weights"):
        load_inverse(backbone(1), tmp_path / "inverse.safetensors")


def test_fine_tuning_starts_from_an_inverse(tmp_path: Path) -> None:
    train_inverse(backbone(), photos(40), photos(8, 1), tmp_path / "a", SHORT, card={"photos": 40})
    first = load_inverse(backbone(), tmp_path / "a" / "inverse.safetensors")
    tuning = replace(SHORT, steps=1, rate=1e-9, loss="mse")
    start = tmp_path / "a" / "inverse.safetensors"
    tuned = train_inverse(
        backbone(),
        photos(40),
        photos(8, 1),
        tmp_path / "b",
        tuning,
        card={"photos": 40},
        start=start,
    )
    torch.testing.assert_close(weights(tuned), weights(first), atol=1e-6, rtol=0)
    assert tuned.card["loss"] == "mse"


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(unsum.UnsumError, match="either with hours or with steps"):
        Training()
    with pytest.raises(unsum.UnsumError, match="either with hours or with steps"):
        Training(hours=1, steps=1)
    with pytest.raises(unsum.UnsumError, match="must be positive"):
        Training(steps=0)


def test_clients_must_fit_into_a_step(tmp_path: Path) -> None:
    training = replace(SHORT, clients=(6, 16))
    with pytest.raises(unsum.UnsumError, match="multiples of the smallest client"):
        train_inverse(backbone(), photos(40), photos(8, 1), tmp_path, training, card={"photos": 40})
