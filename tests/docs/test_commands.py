"""Every command that README and docs show, run as it stands there; those that cannot be run are listed with a reason."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
import typer

import pages
from unsum import cli

# Not ours: run by CI itself, or they change the machine.
OTHERS = {
    "pip install uv && uv run unsum audit": "installs; the same audit is run below",
    "pip install uv": "installs",
    "uv run pytest": "runs these tests; .ci/run takes its command from the README",
    "uv run pytest            # everything; tests/e2e opens the report in Chromium if there is one": "runs these tests",
    ".ci/run                  # what must pass before a change lands: lint, types, import contracts, lock file, site, tests": (
        "runs these tests"
    ),
    "uv venv && uv pip sync requirements.lock && uv pip install --no-deps .": "installs",
    "uv run mkdocs serve       # the documentation, on a local port": "goes on until it is interrupted; .ci/run builds the site",
    "python scripts/train_embedded.py --photos imagenet-val-224-a.tar --photos imagenet-val-224-b.tar "
    "--labelled imagenette-224.tar --held-out imagenet-samples-224.tar --inverse-steps 20000 --out weights": (
        "needs ImageNet photos and a GPU"
    ),
}

# Ours, but too much for a test: their arguments are parsed, so that no option is shown that does not exist.
PARSED_ONLY = {
    "unsum audit --sweep noise=1e-5..1e-1": "a minute or more; tests/audit/test_sweep.py sweeps small cases",
    "unsum audit --sweep prune=0.5..0.99/8 --sweep sign --keep-under 0.1": "a minute or more",
    "unsum audit --defense clip:1 --sweep noise=1e-3,1e-2 --utility-data my-pictures.npz": "a minute, mostly training",
    "unsum audit --attack rgla --labels ilrg --batch-size-known": "20 000 steps; tests/separate/test_rgla.py takes fewer",
    "unsum train-inverse --data photos/ --data more.tar --hours 0.2 --out inverse": "trains for twelve minutes on photos",
    "unsum train-inverse --model examples/resnet50_v1.py:unpooled --weights resnet50.safetensors --data photos.tar --hours 1 "
    "--out inverse": "trains for an hour on the user's photos",
    "unsum audit --model examples/resnet50_v1.py:unpooled --weights resnet50.safetensors --inverse inverse/inverse.safetensors": (
        "needs weights and an inverse of the user's"
    ),
    "unsum app": "goes on until it is interrupted; tests/e2e/test_app.py starts and stops it",
    **dict.fromkeys(
        (
            "unsum doctor --model net.py:build --data photos/ --batch 32",
            "unsum audit --model net.py:build --weights trained.safetensors --data photos/ --batch 16",
            "unsum audit --model torchvision:resnet18:IMAGENET1K_V1 --data torchvision:CIFAR10:datasets/",
            "unsum audit --model hf:my-vit/ --data shard-0000.tar",
            "unsum audit --model net.py:build --weights sent.safetensors --update client.safetensors",
            "unsum audit --model net.py:build --before round-4.npz --after client.npz --lr 0.1",
            "unsum attack --model net.py:build --weights sent.pt --update client.npz",
            "unsum capture --data photos/ --batch 8 --defense noise:0.001",
        ),
        "needs files of the user's; tests/e2e/test_inputs.py runs such commands on files of its own",
    ),
}

SHOWN = sorted({(shown.text, shown.page) for shown in pages.commands()})
OURS = {" ".join(shlex.split(text, comments=True)) for text, _ in SHOWN if text.startswith("unsum ")}


def test_commands_were_found_and_each_is_run_or_excused() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/quickstart.md"} <= {page for _, page in SHOWN}
    assert len(OURS) >= 15
    unexplained = {text for text, _ in SHOWN if not text.startswith("unsum ")} - OTHERS.keys()
    assert not unexplained, "say in OTHERS why these are not run"


def test_no_excuse_has_outlived_its_command() -> None:
    assert OTHERS.keys() <= {text for text, _ in SHOWN}
    assert PARSED_ONLY.keys() <= OURS


@pytest.mark.parametrize("command", sorted(PARSED_ONLY))
def test_what_is_not_run_is_at_least_understood(command: str) -> None:
    group = typer.main.get_command(cli.app)
    with group.make_context("unsum", shlex.split(command)[1:]) as context:
        name, chosen, arguments = group.resolve_command(context, shlex.split(command)[1:])  # type: ignore[attr-defined]
        chosen.make_context(name, arguments, parent=context)


@pytest.mark.parametrize("command", sorted(OURS - PARSED_ONLY.keys()))
def test_the_command_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    captured = capsys.readouterr()
    # A gate that is shown must close: what it is shown with does not protect.
    assert (stop.value.code or 0) == ("--fail-above" in command), captured.err
    assert captured.out
    if " audit" in command:
        assert len(list(tmp_path.glob("*/*.html"))) == 1
