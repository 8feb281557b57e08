"""A short fuzz of every format, in this process: `python fuzz/run.py` runs the same for as long as
one likes."""

from __future__ import annotations

import importlib.util
import signal
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[2] / "fuzz"
FORMATS = {
    "safetensors": 1000, "npz": 600, "npy": 600, "flower": 600, "pt": 300, "pt-legacy": 300,
    "tar": 300, "tar-gz": 200, "photos-npz": 300, "utility-npz": 150, "picture": 600,
    "inverse": 100, "training-checkpoint": 150, "matching-checkpoint": 600, "order": 600,
}  # fmt: skip


def test_every_format_is_fuzzed(run: object) -> None:
    sys.path.insert(0, str(FUZZ))
    import formats

    assert set(formats.FORMATS) == set(FORMATS)


@pytest.fixture(scope="module")
def run() -> object:
    spec = importlib.util.spec_from_file_location("fuzz_run", FUZZ / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_run"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "mutations"), FORMATS.items())
def test_nothing_but_clean_errors(
    run: object, name: str, mutations: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "FOUND", tmp_path)
    before = signal.signal(signal.SIGALRM, run._alarm)  # type: ignore[attr-defined]
    try:
        tally = run.fuzz(name, mutations, 20_261_115, limit_memory=False)  # type: ignore[attr-defined]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert tally.findings == []
    assert tally.read + tally.refused == tally.mutations == mutations
    # the mutations are not all so coarse that nothing but the first check is reached
    assert tally.read > 0
    assert tally.sentences > 1


def test_the_corpus_is_small_and_has_every_format(run: object) -> None:
    files = [file for file in (FUZZ / "corpus").rglob("*") if file.is_file()]
    assert {file.parent.name for file in files} == set(FORMATS) - {
        "inverse"
    }  # whose smallest file is too large to keep
    assert sum(file.stat().st_size for file in files) < 1 << 20
