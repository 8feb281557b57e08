"""The federated tutorials' network from the command line: an inverse for its first dense layer, and
32 photos drawn by it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support.lenet import BATCH, NET, write_crops
from unsum.commands import main as cli

ONE_TONE = 15.2  # dB, of these photos beside their own mean color


@pytest.mark.long
def test_all_samples_are_found_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["unsum", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert not stop.value.code

    photos, inverse, report = (str(tmp_path / name) for name in ("photos", "inverse", "report"))
    write_crops(Path(photos))
    model = ["--model", f"{NET}:build", "--data", photos]
    training = [
        "--held-out",
        photos,
        "--layer",
        "fc1",
        "--steps",
        "200",
        "--batch",
        "32",
        "--lr",
        "3e-3",
    ]
    run("train-inverse", *model, *training, "--out", inverse)
    run(
        "audit",
        *model,
        "--batch",
        "32",
        "--batch-size-known",
        "--inverse",
        inverse,
        "--no-compare",
        "--out",
        report,
    )
    found = json.loads((Path(report) / "result.json").read_text("utf-8"))
    assert found["attack"]["exact"] is True
    assert [row["found_label"] for row in found["samples"]] == [
        row["label"] for row in found["samples"]
    ]
    scores = [row["psnr"] for row in found["samples"]]
    assert len(scores) == BATCH
    assert sum(scores) / BATCH > ONE_TONE + 0.8
    page = (Path(report) / "report.html").read_text("utf-8")
    assert page.count("data:image/png;base64,") >= 2 * BATCH
