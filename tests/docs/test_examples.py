"""Every public function and class shows itself at work in its docstring; pytest runs the examples
(`--doctest-modules`)."""

from __future__ import annotations

import doctest
import inspect

import pytest

import unsum

PUBLIC = sorted(name for name in unsum.__all__ if callable(getattr(unsum, name)))


def test_the_public_names_were_found() -> None:
    assert {"attack", "audit", "capture", "separate", "Update", "Noise"} <= set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_docstring_has_an_example_with_a_result(name: str) -> None:
    text = inspect.getdoc(getattr(unsum, name)) or ""
    examples = doctest.DocTestParser().get_examples(text)
    assert any(example.want for example in examples), (
        f"add an Examples section to the docstring of unsum.{name}"
    )
    assert not any(doctest.SKIP in example.options for example in examples), (
        "an example that is skipped shows nothing"
    )
