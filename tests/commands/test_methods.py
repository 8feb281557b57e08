"""What `unsum list` shows without importing PyTorch is what is registered."""

from __future__ import annotations

from unsum.commands.listing import _own, listed_methods


def test_an_attack_is_in_one_group() -> None:
    groups = [
        [row["name"] for row in rows]
        for title, rows in _own().items()
        if title.endswith("(--attack)")
    ]
    names = sorted(name for group in groups for name in group)
    assert len(groups) == 2
    assert len(names) == len(set(names)) > 20


def test_the_list_on_disk_is_in_step() -> None:
    assert _own() == listed_methods(), "run scripts/list_methods.py"
