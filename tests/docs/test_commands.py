"""Every command that README and docs show, run as it stands there by a new user: installed from the
wheel, nothing besides."""

from __future__ import annotations

import json
import re
import shlex
import socket
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support import newcomer_files, newcomer_shell, pages
from support.newcomer import Newcomer

# Not ours: run by CI itself, or they change the machine.
OTHERS = {
    "pip install uv && uv run unsum audit": "installs; the same audit is run below",
    "pip install uv": "installs",
    "uv run pytest": "runs these tests; .ci/run takes its command from the README",
    (
        "uv run pytest            # every method and every part, in at most five minutes on two "
        "cores"
    ): "runs these tests",
    "uv run pytest -m long    # the rest": "runs these tests",
    ".ci/run                  # what must pass before a change lands: lint, types, import "
    "contracts, spelling, lock file, site, all tests": "runs these tests",
    "uv venv && uv pip sync requirements.lock && uv pip install --no-deps . ./bench": "installs",
    'pip install -e ".[flower]" -e examples/flower-audit': (
        "installs; tests/integrations runs the example where Flower is"
    ),
    (
        "unsum audit --flower-run seen --model pytorchexample/task.py:Net --momentum 0.9 --batch "
        "32 --out run-report"
    ): "needs a training of Flower's quickstart; tests/integrations plays it",
    "flwr run examples/flower-audit --stream": (
        "leaves a server of Flower's running; tests/integrations runs the same app"
    ),
    "uv run mkdocs serve       # the documentation, on a local port": "goes on until it is interrupted; .ci/run builds the site",
    "python scripts/train_embedded.py --photos imagenet-val-224-a.tar --photos "
    "imagenet-val-224-b.tar --labeled imagenette-224.tar --held-out imagenet-samples-224.tar "
    "--inverse-steps 20000 --out weights": "needs ImageNet photos and a GPU",
}

# Ours, and longer than a test may take: started as they stand, and interrupted by Ctrl-C once this
# is shown.
INTERRUPTED = {
    "unsum app": "unsum is at http://127.0.0.1:8765/",
    "unsum audit --defense clip:1 --sweep noise=1e-3,1e-2 --utility-data my-pictures.npz": "Clip(1): training",
    "unsum audit --sweep noise=1e-3..10": "Noise(0.001): attacking",
    "unsum audit --sweep prune=0.5..0.99/8 --sweep sign --keep-under 0.1": "Prune(0.5): attacking",
    "unsum bench --size smoke": "cells to measure, 0 in the store",
    "unsum train-inverse --data photos/ --data more.tar --hours 0.2 --out inverse": "4 more are only scored",
    "unsum train-inverse --model examples/lenet.py:build --data torchvision:CIFAR10:datasets/ "
    "--layer fc1 --steps 6000 --batch 32 --lr 3e-3 --out lenet-inverse": "5 more are only scored",
    "unsum train-inverse --model examples/resnet50_v1.py:unpooled --weights resnet50.safetensors "
    "--data photos.tar --hours 1 --out inverse": "2 more are only scored",
}

# The same round under other defenses is most of an audit's time. It is played once for every kind
# of audit: here, and for the default one by the test of the wheel. All others find the machine too
# slow for it, which they say in their report.
COMPARED = {
    "unsum audit --data people.csv --target income --batch 8",
    "unsum audit --defense noise:0.01 --fail-above 0.2 --junit leaks.xml --sarif leaks.sarif",
    "unsum audit --local-steps 4 --lr 0.05 --momentum 0.9",
    "unsum audit --model hf:my-vit/ --data shard-0000.tar",
    "unsum audit --model mlp",
    "unsum audit --model net.py:build --weights trained.safetensors --data photos/ --batch 16",
}
TOO_SLOW = "import importlib\nimportlib.import_module('unsum.audit.compare').LITTLE = 0.0"

SHOWN = sorted({(shown.text, shown.page) for shown in pages.commands()})
OURS = {
    " ".join(shlex.split(text, comments=True))
    for text, _ in SHOWN
    if text.startswith("unsum ") and text not in OTHERS
}


class Ran(NamedTuple):
    """What became of a command, and the folder it ran in."""

    code: int
    out: str
    err: str
    folder: Path
    interrupted: bool


@pytest.fixture(scope="session")
def ran(newcomer: Newcomer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Every command of ours, each in a folder with the files that it names and no others."""
    base = tmp_path_factory.mktemp("commands")
    prepared = base / "prepared"
    newcomer_files.prepare(prepared)
    newcomer.install("[app,hf,train]", bench=True)
    chosen = sorted(
        OURS - ({"unsum app"} if _taken(8765) else set()),
        key=lambda command: command not in INTERRUPTED,
    )
    jobs = [_job(base, prepared, number, command) for number, command in enumerate(chosen)]
    (base / "jobs.json").write_text(json.dumps(jobs))
    newcomer.run([str(newcomer.python), newcomer_shell.__file__, str(base / "jobs.json")], base)
    done: list[dict[str, Any]] = json.loads((base / "jobs.json").read_text("utf-8"))
    return {command: _result(job) for command, job in zip(chosen, done, strict=True)}


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _job(base: Path, prepared: Path, number: int, command: str) -> dict[str, Any]:
    folder = base / f"command-{number}"
    newcomer_files.link(prepared, folder, command)
    before = [text for part, text in newcomer_files.BEFORE.items() if part in command]
    return {
        "arguments": shlex.split(command),
        "folder": str(folder),
        "out": str(base / f"{number}.out"),
        "err": str(base / f"{number}.err"),
        "environment": newcomer_files.environment(prepared),
        "before": "\n".join(before if command in COMPARED else [*before, TOO_SLOW]),
        "until": INTERRUPTED.get(command),
    }


def _result(job: dict[str, Any]) -> Ran:
    out, err = (Path(job[name]).read_text("utf-8") for name in ("out", "err"))
    return Ran(job["code"], out, err, Path(job["folder"]), job.get("interrupted", False))


def test_commands_were_found_and_each_is_run_or_excused() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/quickstart.md"} <= {page for _, page in SHOWN}
    assert len(OURS) >= 15
    unexplained = {text for text, _ in SHOWN if not text.startswith("unsum ")} - OTHERS.keys()
    assert not unexplained, "say in OTHERS why these are not run"


def test_no_excuse_has_outlived_its_command() -> None:
    assert OTHERS.keys() <= {text for text, _ in SHOWN}
    assert INTERRUPTED.keys() | COMPARED <= OURS


@pytest.mark.long
def test_the_wheel_needs_no_extra_for_the_first_command(newcomer: Newcomer, tmp_path: Path) -> None:
    newcomer.install()
    out = newcomer.run(["unsum", "audit"], tmp_path)
    assert "This update gives away the features of every picture of the batch" in " ".join(
        out.split()
    )
    assert (tmp_path / "unsum-report" / "report.html").is_file()


@pytest.mark.long
def test_the_bench_is_absent_until_its_wheel_is_installed(
    newcomer: Newcomer, tmp_path: Path
) -> None:
    newcomer.install()
    newcomer.uv("pip", "uninstall", "--python", str(newcomer.python), "unsum-bench")
    told = newcomer.run(["sh", "-c", 'unsum bench list 2>&1; echo "ended with $?"'], tmp_path)
    assert "pip install ./bench" in told
    assert told.splitlines()[-1] == "ended with 2"
    newcomer.install(bench=True)
    assert "rgla-8" in newcomer.run(["unsum", "bench", "list"], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("command", sorted(OURS))
def test_the_command_runs(ran: dict[str, Ran], command: str) -> None:
    if command not in ran:
        pytest.skip("another program listens on the port that the page takes")
    result = ran[command]
    assert "Traceback" not in result.err
    if command in INTERRUPTED:
        assert result.interrupted, result.err
        assert result.code in (0, 1, 130), result.err
        return
    # A gate that is shown must close, unless a proof is shown: what it is shown with does not
    # protect.
    assert result.code == ("--fail-above" in command and "--prove-below" not in command), result.err
    assert result.out
    if " audit" in command:
        assert len(list(result.folder.glob("*/*.html"))) == 1


@pytest.mark.long
def test_the_gate_says_what_the_page_says_it_says(ran: dict[str, Ran]) -> None:
    page = (pages.ROOT / "docs" / "ci.md").read_text("utf-8")
    shown, *_ = re.findall(r"^Gate .*$", page, re.MULTILINE)
    (command,) = (
        text
        for text, where in SHOWN
        if where == "docs/ci.md" and "--fail-above" in text and "--prove-below" not in text
    )
    assert ran[command].out.splitlines()[-1] == shown


@pytest.mark.long
@pytest.mark.parametrize(
    "command", sorted(c for c in OURS if "--update client" in c or "--after client" in c)
)
def test_what_a_client_sent_gives_its_labels_away(ran: dict[str, Ran], command: str) -> None:
    """The files are those of a client with four samples: a command that read them wrongly would not
    find its labels."""
    folder = ran[command].folder
    if " attack " in command:
        found = json.loads((folder / "unsum-leak" / "leak.json").read_text("utf-8"))["labels"]
    else:
        content = json.loads((folder / "unsum-report" / "result.json").read_text("utf-8"))
        found = [int(row["found_label"].split()[-1]) for row in content["samples"]]
    assert sorted(found) == newcomer_files.LABELS
