"""Tests that run in another environment: found here by their names, run there all at once, and
judged one by one."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent


def names(folder: str) -> list[str]:
    """`file::test` of every test function in `cases_*.py`."""
    found = []
    for file in sorted((HERE / folder).glob("cases_*.py")):
        for statement in ast.parse(file.read_text("utf-8")).body:
            if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test_"):
                found.append(f"{file.stem}::{statement.name}")
    return found


def run(python: Path, folder: str, out: Path) -> dict[str, list[str]]:
    """`file::test` → a line for each failure; parameters of one test are taken together."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTEST_ADDOPTS")
    }
    paths = os.pathsep.join(map(str, (HERE / folder, HERE)))
    command = [
        str(python), "-m", "pytest", "-q", "--confcutdir=.", "-p", "no:cacheprovider", "-o",
        "addopts=", "-o", "pythonpath=", f"--junitxml={out / 'result.xml'}",
        *sorted(file.name for file in (HERE / folder).glob("cases_*.py")),
    ]  # fmt: skip
    # No word to anyone outside, Flower's files in a home of their own, and no cluster that somebody
    # once started here.
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_HOME": str(out / "flwr-home"),
    }
    quiet["RAY_ADDRESS"] = "local"
    done = subprocess.run(
        command,
        cwd=HERE / folder,
        env=kept | quiet | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,  # a federation that waits for a client waits for ever
    )
    assert (out / "result.xml").exists(), done.stdout + done.stderr
    results: dict[str, list[str]] = {}
    for case in ElementTree.parse(out / "result.xml").iter("testcase"):
        module = case.get("classname", "").rpartition(".")[2]
        name = f"{module}::{case.get('name', '').partition('[')[0]}"
        bad = [
            child.text or child.get("message", "")
            for child in case
            if child.tag in ("failure", "error", "skipped")
        ]
        results.setdefault(name, []).extend(bad)
    return results
