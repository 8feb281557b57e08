"""What the README shows must run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_the_first_screen_has_one_picture_and_two_commands() -> None:
    top = README.read_text("utf-8").split("\n## ")[0]
    commands = re.findall(r"^\$ (.+)$", top, re.MULTILINE)
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", top)
    assert commands == ["pip install uv && uv run unsum audit", "uv run pytest"]
    assert len(pictures) == 1
    assert (README.parent / pictures[0]).is_file()


@pytest.mark.long
def test_the_python_example_runs_and_finds_every_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)  # our own text
    assert sorted(names["leak"].labels.tolist()) == [7, 7, 7, 7, 21, 35, 58, 99]  # type: ignore[attr-defined]
    assert names["leak"].exact  # type: ignore[attr-defined]
    assert (tmp_path / "my-report" / "report.html").is_file()


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README.read_text("utf-8")):
        assert (README.parent / target).exists(), target
