"""Matchers on the command line and in audits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import unsum
from match.cases import crops, lenet
from unsum.attack.options import AttackOptions
from unsum.commands.main import app
from unsum.errors import UnsumError
from unsum.match import MATCHERS

RUNNER = CliRunner()


def test_list_shows_every_matcher_with_its_needs() -> None:
    result = RUNNER.invoke(app, ["list", "--json"])
    rows = json.loads(result.stdout)["gradient matching (--attack)"]
    assert [row["name"] for row in rows] == [entry.name for entry in MATCHERS]
    needs = {row["name"]: row["needs"] for row in rows}
    assert "labels, granted or by the rule 'exact'" in needs["ig"]
    assert "batch size" in needs["dlg"]
    assert "one sample" in needs["idlg"]
    assert "separator 'exact'" in needs["soft-gf"]


def test_attack_writes_pictures_of_a_captured_update(tmp_path: Path) -> None:
    model = unsum.models.load_model("default", classes=10, size=32).model
    file = tmp_path / "client.safetensors"
    unsum.capture(model, crops(2), torch.tensor([1, 2])).save(file)
    out = tmp_path / "leak"
    arguments = [
        "attack",
        "--update",
        str(file),
        "--attack",
        "ig:steps=2,image_size=32",
        "--out",
        str(out),
        "--json",
    ]
    result = RUNNER.invoke(app, [*arguments, "--model", "default"])
    # the default model takes 128², and this head is of another
    assert isinstance(result.exception, UnsumError)
    net = tmp_path / "net.py"
    net.write_text("import sys\nfrom match.cases import lenet\ndef build():\n    return lenet()\n")
    unsum.capture(lenet(), crops(1), torch.tensor([3])).save(file)
    result = RUNNER.invoke(app, [*arguments, "--model", f"{net}:build"])
    assert result.exit_code == 0, result.output
    content = json.loads((out / "leak.json").read_text("utf-8"))
    assert content["method"] == "ig"
    assert any(path.suffix == ".png" for path in out.iterdir())


def test_an_audit_runs_a_matcher_and_says_what_was_granted(tmp_path: Path) -> None:
    net = lenet()
    audit = unsum.audit(
        net,
        (crops(1), torch.tensor([3])),
        attack="dlg:steps=2,image_size=32",
        batch_size_known=True,
    )
    assert audit.setting.attack == "dlg"
    assert "The batch size (1)." in audit.granted
    assert audit.leak.images is not None
    assert "no certificate" in audit.leak.notes[-1]
    assert audit.write(tmp_path / "report").exists()
    with pytest.raises(UnsumError, match="needs the batch size"):
        unsum.audit(net, (crops(1), torch.tensor([3])), attack="dlg:image_size=32")


def test_the_bar_knows_how_many_steps_there_are() -> None:
    assert AttackOptions("ig").steps == 24_000
    assert AttackOptions("ig:steps=70").steps == 70
    assert AttackOptions("dlg").steps == 300
