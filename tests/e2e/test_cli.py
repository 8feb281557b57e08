"""The command as a user types it. One real process; the rest in this one, to spare PyTorch's
import."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from support.command import Result, Run, runner
from unsum.audit.sweep import task


@pytest.fixture
def unsum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `unsum …` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    return runner(monkeypatch, capsys)


@pytest.mark.long
def test_the_default_audit_in_a_process_of_its_own(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("unsum")), "audit", "--json", "--no-compare"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    first_sign_of_life = process.stderr.readline()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "loading PyTorch" in first_sign_of_life
    result = json.loads(out)  # nothing but JSON on stdout
    assert result["scores"]["label_correct"] == 1
    assert result["scores"]["worst_feature_error"] < 1e-4
    assert result["scores"]["psnr"] >= 18
    assert result["attack"]["exact"] is True
    assert (tmp_path / "unsum-report" / "report.html").stat().st_size > 100_000
    assert json.loads((tmp_path / "unsum-report" / "result.json").read_text()) == {
        key: value for key, value in result.items() if key != "report"
    }


@pytest.mark.long
def test_the_table_shows_what_was_granted_and_recovered(unsum: Callable[..., Result]) -> None:
    result = unsum("audit", "--batch", "3", "--same-label", "2", "--no-compare")
    assert result.code == 0
    for part in (
        "The model's weights and one client update",
        "Chelsea the cat",
        "exact",
        "3 of 3 labels",
        "report.html",
    ):
        assert part in result.out
    assert "Separating the batch" in result.err
    assert Path("unsum-report/pictures.png").stat().st_size > 10_000


def test_options_reach_the_audit(unsum: Callable[..., Result]) -> None:
    arguments = [
        "--batch",
        "2",
        "--seed",
        "7",
        "--out",
        "elsewhere",
        "--eval-mode",
        "--attack",
        "fgla",
    ]
    defenses = ["--defense", "noise:1e-7|clip:0.5", "--defense", "prune:0.1"]
    result = json.loads(unsum("audit", "--json", *arguments, *defenses).out)
    setting = result["setting"]
    assert setting["defenses"] == "Noise(1e-07) | Clip(0.5) | Prune(0.1)"
    assert (setting["batch_size"], setting["seed"], setting["mode"], setting["attack"]) == (
        2,
        7,
        "eval",
        "fgla",
    )
    assert result["report"] == "elsewhere/report.html"
    assert setting["command"].endswith("--defense 'noise:1e-7|clip:0.5' --defense prune:0.1")


def test_a_label_rule_reaches_the_audit(unsum: Callable[..., Result]) -> None:
    result = unsum(
        "audit", "--batch", "4", "--attack", "fgla", "--labels", "ilrg", "--batch-size-known"
    )
    assert result.code == 0
    for part in (
        "fgla, labels by ilrg",
        "The batch size (4)",
        "Labels were found by the rule 'ilrg'",
        "4 of 4 labels",
    ):
        assert part in result.out
    page = Path("unsum-report/report.html").read_text("utf-8")
    assert "labels by ilrg" in page
    assert "The batch size (4)" in page


@pytest.mark.long
def test_a_sweep_prints_its_answer_and_writes_its_page(unsum: Callable[..., Result]) -> None:
    sweeps = ["--sweep", "noise=1e-7,1e-1", "--sweep", "sign", "--defense", "clip:0.5"]
    result = unsum(
        "audit", "--attack", "fgla", "--batch", "2", "--no-utility", "--keep-under", "0.4", *sweeps
    )
    assert result.code == 0
    for part in (
        "no defense",
        "0.1 ← unproven",
        "after Clip(0.5)",
        "keeps the attacks tried under 40 %",
        "sweep.html",
    ):
        assert part in result.out
    assert "Clip(0.5) | Noise(0.1): attacking" in result.err
    page = Path("unsum-report/sweep.html").read_text("utf-8")
    assert (
        "unsum audit --attack fgla --batch 2 --no-utility --keep-under 0.4 --sweep noise=1e-7,1e-1"
        in page
    )


@pytest.mark.long
def test_a_sweep_as_json_with_accuracy_on_ones_own_pictures(
    unsum: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "RUNS", 1)  # tests/audit says how the three agree
    labels = np.arange(128) % 2
    bright = (
        np.random.default_rng(0).integers(0, 100, (128, 8, 8, 3))
        + 150 * labels[:, None, None, None]
    )
    np.savez("task.npz", images=bright.astype(np.uint8), labels=labels)
    options = ["--attack", "fgla", "--batch", "2", "--utility-data", "task.npz", "--json"]
    result = unsum("audit", "--sweep", "noise=1e-7,1e-1", *options)
    content = json.loads(result.out)  # nothing but JSON on stdout
    assert content["enough"][0]["strength"] == 0.1
    assert content["keep_under"] == 0.2
    assert content["references"][0]["accuracy"]["mean"] > 0.9
    assert content["sweeps"][0]["points"][1]["accuracy"] is not None
    assert content["report"] == "unsum-report/sweep.html"
    assert json.loads(Path("unsum-report/sweep.json").read_text()) == {
        key: value for key, value in content.items() if key != "report"
    }


@pytest.mark.long
def test_an_existing_report_is_kept_unless_forced(unsum: Callable[..., Result]) -> None:
    Path("unsum-report").mkdir()
    Path("unsum-report/report.html").write_text("mine")
    start = time.perf_counter()
    refused = unsum("audit")
    assert refused.code == 2
    assert "add --force" in refused.err
    assert Path("unsum-report/report.html").read_text() == "mine"
    assert time.perf_counter() - start < 5  # refused before the audit, not after
    assert unsum("audit", "--batch", "1", "--force", "--no-compare").code == 0
    assert Path("unsum-report/report.html").read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "resnet18"], "did you mean 'torchvision:resnet18'"),
        (["--model", "torchvision:resnet81"], "did you mean 'resnet18'"),
        (["--model", "torchvision:squeezenet1_1"], "has no linear head"),
        (["--attack", "exakt"], "did you mean 'exact'"),
        (["--labels", "ilgr"], "did you mean 'ilrg'"),
        (
            ["--labels", "ilrg"],
            "needs the batch size; give batch_size= (unsum audit: --batch-size-known)",
        ),
        (["--labels", "llg+", "--batch-size-known"], "needs auxiliary data"),
        (["--defense", "nosie:1"], "did you mean 'noise'"),
        (["--defense", "noise"], "strength is missing"),
        (["--batch", "17"], "choose a batch of 1 to 16"),
        (["--batch", "0"], "choose a batch of 1 to 16"),
        (["--same-label", "9"], "can share a label"),
        (["--sweep", "nosie=1..2"], "did you mean 'noise'"),
        (["--sweep", "noise=2..1"], "the smaller number first"),
        (["--sweep", "dp=1"], "or use eval mode (train=False, --eval-mode)"),
        (["--sweep", "sign", "--keep-under", "30"], "a share above 0 and up to 1, not 30"),
        (["--sweep", "sign", "--utility-data", "absent.npz"], "There is no file 'absent.npz'"),
        (["--keep-under", "0.5"], "belong to a sweep; add, say, --sweep noise=1e-3..10"),
        (["--device", "gpu"], "There is no device 'gpu'"),
        (["--device", "cuda:99"], "cannot be used here; try --device cpu"),
    ],
)
def test_bad_values_give_one_sentence_and_exit_code_2(
    unsum: Callable[..., Result], arguments: list[str], sentence: str
) -> None:
    result = unsum("audit", *arguments)
    assert result.code == 2
    assert sentence in result.err
    assert "Traceback" not in result.err
    assert result.err.strip().splitlines()[-1].startswith("unsum: ")
    assert not Path("unsum-report").exists()


@pytest.mark.parametrize("arguments", [["--bach", "3"], ["--batch", "many"]])
def test_bad_usage_exits_with_2(unsum: Callable[..., Result], arguments: list[str]) -> None:
    result = unsum("audit", *arguments)
    assert result.code == 2
    assert "--batch" in result.err


def test_list_names_every_method(unsum: Callable[..., Result]) -> None:
    plain = unsum("list")
    families = json.loads(unsum("list", "--json").out)
    names = [row["name"] for rows in families.values() for row in rows]
    assert {
        "exact",
        "fgla",
        "bias-sign",
        "llg+",
        "ilrg",
        "learned",
        "noise",
        "clip",
        "prune",
    } <= set(names)
    assert all(name in plain.out for name in names)


def test_a_model_and_weights_of_ones_own(unsum: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def net(num_classes):\n"
        "    model = nn.Sequential(nn.Conv2d(3, 8, 3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(512, "
        "num_classes))\n"
        "    model.image_size = 32\n"
        "    return model\n"
    )
    weights = {"0.weight": torch.rand(8, 3, 3, 3).half(), "0.bias": torch.zeros(8).half()}
    save_file(weights, tmp_path / "trained.safetensors")
    chosen = [
        "--model",
        "mine.py:net",
        "--weights",
        "trained.safetensors",
        "--batch",
        "3",
        "--json",
        "--no-compare",
    ]
    refused = unsum("audit", *chosen)
    assert refused.code == 2
    assert "hold no head; add --fresh-head" in refused.err
    result = unsum("audit", *chosen, "--fresh-head")
    assert result.code == 0, result.err
    setting = json.loads(result.out)["setting"]
    assert (
        setting["model"] == "net of mine.py, weights of trained.safetensors under a fresh head, 32²"
    )
    refused = unsum("audit", "--model", "mlp", "--weights", "trained.safetensors", "--force")
    assert refused.code == 2
    assert "do not fit the model: it lacks 1.weight" in refused.err
