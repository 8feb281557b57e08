"""Files are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from unsum.files.writing import PART, write_folder, write_text, write_whole


def test_a_fault_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.json", "old")

    def torn(part: Path) -> None:
        part.write_text("ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(file, torn)
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert write_text(file, "new").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_is_filled_at_once_and_goes_with_its_fault(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "today"

    def torn(part: Path) -> None:
        (part / "page.html").write_text("half")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_folder(folder, torn)
    assert list(tmp_path.iterdir()) == []
    write_folder(folder, lambda part: (part / "page.html").write_text("whole"))
    assert [path.name for path in folder.iterdir()] == ["page.html"]
    assert (folder / "page.html").read_text() == "whole"
    assert not (folder / PART).exists()
