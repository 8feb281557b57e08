"""`unsum audit --updates`: what its options make of many updates."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from unsum.audit.finding import ClientFinding
from unsum.audit.many import Findings
from unsum.commands import audit, options
from unsum.commands import main as cli
from unsum.commands.audit_many import _granted_in, _show, summary
from unsum.errors import UnsumError


@pytest.mark.parametrize(
    ("words", "granted"),
    [((), None), (("--batch", "5"), None), (("--batch", "5", "--batch-size-known"), 5)],
)
def test_a_batch_size_is_granted_only_where_it_is_said_to_be_known(
    words: tuple[str, ...], granted: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--batch` alone is what a simulated client would have; of a captured update it tells the
    attacker nothing."""
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(audit, "audit_many", lambda *_asked, **how: heard.append(how))
    monkeypatch.setattr(sys, "argv", ["unsum", "audit", "--updates", str(tmp_path), *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert [how["batch_size"] for how in heard] == [granted]


def gate(level: float, *leakages: float) -> tuple[int, str]:
    """What the gate says of clients that leak so much: NaN where nobody knows."""
    findings = Findings()
    for number, leakage in enumerate(leakages):
        findings.put(ClientFinding(0, f"client-{number}", "audited", leakage=leakage), str(number))
    said = summary(findings, level)["gate"]
    return said["exit_code"], said["reason"]


def test_the_gate_of_many_updates_passes_only_what_is_known_and_not_above_the_level() -> None:
    # at the level is not above it
    assert gate(0.5, 0.1, 0.5) == (0, "No update leaks more than 0.5.")
    assert gate(0.5, 0.1, 0.51, 0.9) == (
        1,
        "2 of 3 updates leak more than 0.5; the first is client-1.",
    )
    assert gate(0.5, 0.1, math.nan)[0] == 2
    # What is known to leak is enough, and what is not known is not counted with it.
    assert gate(0.5, math.nan, 0.9) == (
        1,
        "1 of 2 updates leak more than 0.5; the first is client-1.",
    )
    assert "1 of 2 updates it is not decidable" in gate(0.5, 0.1, math.nan)[1]
    assert "gate" not in summary(Findings(), None)


def test_a_number_that_differs_between_updates_is_not_that_of_the_first() -> None:
    weights = "The model's weights and one client update."
    assert _granted_in([[weights, "The batch size (4)."], [weights, "The batch size (8)."]]) == [
        weights,
        "The batch size (of every update its own).",
    ]
    assert _granted_in([[], [weights, "The batch size (4)."]]) == [weights, "The batch size (4)."]


@pytest.mark.parametrize(("leaking", "told"), [(2, "2 leak, 1 not"), (1, "1 leaks, 1 not")])
def test_states_are_counted_in_words_that_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], leaking: int, told: str
) -> None:
    findings = Findings(tmp_path / "findings.sqlite")
    sure: dict[str, Any] = {"exact": True, "leakage": 1.0, "batch_size": 1}
    for number in range(leaking):
        findings.put(ClientFinding(0, str(number), "audited", **sure), str(number))
    findings.put(ClientFinding(0, "unknown", "audited", reason="a crowd"), "unknown")
    _show(findings, "net")
    assert f"updates of net: {told} decidable" in capsys.readouterr().out


@pytest.mark.parametrize("wanted", [-5.0, math.nan])
def test_a_time_limit_is_no_negative_number(wanted: float) -> None:
    with pytest.raises(UnsumError, match=r"--time-limit takes seconds, or 0 for as long as it "):
        options.seconds(wanted)
    assert [options.seconds(0.0), options.seconds(3.0), options.seconds(None)] == [
        math.inf,
        3,
        None,
    ]
