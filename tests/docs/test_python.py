"""The Python code on every page of the documentation runs from top to bottom, and its own
assertions hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support import pages
from support.long import long
from unsum.separate import SEPARATORS

ELSEWHERE = {
    "README.md": "run by tests/e2e/test_readme.py, which also looks at what came out",
    "CONTRIBUTING.md": "the outline of a method; docs/tutorials/write-an-attack.md has a whole one",
}
PROGRAMS = {page: blocks for page, blocks in pages.programs().items() if page not in ELSEWHERE}


def test_programs_were_found_and_no_excuse_has_outlived_them() -> None:
    assert sum(page.startswith("docs/tutorials/") for page in PROGRAMS) >= 4
    assert ELSEWHERE.keys() <= pages.programs().keys()


# The site's build runs them as well: where .ci/run has just built it, they are not run again.
TUTORIALS = sorted(page for page in PROGRAMS if page.startswith("docs/tutorials/"))


@pytest.mark.parametrize("page", [*sorted(PROGRAMS.keys() - set(TUTORIALS)), *long(*TUTORIALS)])
def test_the_code_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page in TUTORIALS and os.environ.get("UNSUM_SITE_BUILT") == "1":
        pytest.skip("the site was built just before, and ran it")
    monkeypatch.chdir(tmp_path)
    # what a page registers ends with it
    monkeypatch.setattr(SEPARATORS, "_entries", dict(SEPARATORS._entries))
    names: dict[str, object] = {"__name__": "page"}
    for block in PROGRAMS[page]:
        exec(compile(block, page, "exec"), names)  # our own text


@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_asserts_what_it_claims_and_is_executed_in_the_build(page: str) -> None:
    assert "assert " in "".join(PROGRAMS[page])
    source = (pages.ROOT / page).read_text("utf-8")
    assert source.count("```python exec=") == len(PROGRAMS[page])
