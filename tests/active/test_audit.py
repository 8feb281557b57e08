"""A malicious server in an audit: pictures beside labels, and the permission in red wherever a
report speaks of it."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import unsum
from support.active_photos import SIZE, cut, distances
from unsum import UnsumError, active
from unsum.audit.report import render, render_markdown
from unsum.commands.audit_tables import _setting_table
from unsum.commands.main import app
from unsum.knowledge import CHANGES_MODEL


@pytest.fixture(scope="module")
def imprinted() -> unsum.Audit:
    return unsum.audit(batch=8, server="imprint:bins=256", ceiling=False)


def test_pictures_stand_beside_their_own_features(imprinted: unsum.Audit) -> None:
    """BatchNorm in train mode: the pictures' features are only nearly those of the round, and still
    find their rows."""
    sure = [
        row
        for row in imprinted.samples
        if row.found is not None and bool(imprinted.leak.inputs_exact[row.found])
    ]
    assert len(sure) >= 5
    assert all(row.psnr > 60 and row.feature_error < 1e-3 for row in sure)
    assert imprinted.scores["label_correct"] == 1.0
    assert imprinted.leak.method == "imprint + exact"
    assert "changed by the server (imprint: 256 bins" in imprinted.setting.model


def test_the_permission_is_granted_and_shown_in_red(imprinted: unsum.Audit) -> None:
    assert imprinted.leak.knowledge.may_change_model
    assert CHANGES_MODEL in imprinted.granted
    assert f'<li class="malicious">{CHANGES_MODEL}</li>' in render(imprinted)
    assert f"- 🔴 **{CHANGES_MODEL.rstrip('.')}" in render_markdown(imprinted)
    console = Console(
        record=True, width=200, color_system="truecolor", force_terminal=True, file=StringIO()
    )
    console.print(_setting_table(imprinted))
    line = next(
        line
        for line in console.export_text(styles=True).splitlines()
        if "Permission to change" in line
    )
    assert "\x1b[1;31m" in line


def test_an_honest_audit_says_nothing_of_it(default_audit: unsum.Audit) -> None:
    assert CHANGES_MODEL not in default_audit.granted
    assert '<li class="malicious"' not in render(default_audit)
    assert "🔴" not in render_markdown(default_audit)


def test_a_leak_of_its_own(plain: nn.Sequential) -> None:
    changed, reader = active.modify(plain, shape=(3, SIZE, SIZE))
    x = cut(5, seed=1)
    before = {name: value.clone() for name, value in changed.state_dict().items()}
    leak = active.attack(changed, unsum.capture(changed, x, torch.arange(5)), reader)
    assert leak.knowledge.may_change_model
    assert leak.images is not None
    assert leak.images.shape[1:] == x.shape[1:]
    assert float(distances(leak.images[leak.inputs_exact], x).max(1).values.min()) > 60
    assert leak.features.shape == (leak.batch_size, 64)
    assert any("Labels were not sought" in note for note in leak.notes)
    assert all(torch.equal(before[name], value) for name, value in changed.state_dict().items())


def test_batch_norm_counts_nothing(convolutional: nn.Sequential) -> None:
    changed, reader = active.modify(convolutional, shape=(3, SIZE, SIZE))
    update = unsum.capture(changed, cut(5, seed=1), torch.arange(5))
    before = {name: value.clone() for name, value in changed.state_dict().items()}
    active.attack(changed, update, reader)
    assert all(torch.equal(before[name], value) for name, value in changed.state_dict().items())


def test_what_does_not_go_together() -> None:
    with pytest.raises(UnsumError, match="only before the client trains"):
        unsum.audit(
            nn.Linear(3, 2), update=unsum.Update({"weight": torch.ones(2, 3)}), server="imprint"
        )
    with pytest.raises(UnsumError, match="There is no server 'inprint'"):
        unsum.audit(batch=2, server="inprint")


@pytest.mark.long
def test_the_command_line(tmp_path: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(
        app,
        [
            "audit",
            "--server",
            "traps:rows=64",
            "--batch",
            "3",
            "--no-compare",
            "--out",
            str(tmp_path / "report"),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "malicious server" in (tmp_path / "report" / "report.md").read_text("utf-8")
    listed = runner.invoke(app, ["list", "--json"])
    assert '"imprint"' in listed.output
    assert '"traps"' in listed.output
    swept = runner.invoke(
        app,
        [
            "audit",
            "--server",
            "imprint",
            "--sweep",
            "noise=1e-5..1e-3",
            "--out",
            str(tmp_path / "s"),
        ],
    )
    assert "A sweep is of honest servers" in str(swept.exception)
