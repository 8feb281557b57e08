"""Defenses as the command line hands them to an audit."""

from __future__ import annotations

import pytest

import unsum
from unsum.defend import parse_defense


def test_client_defenses_reach_the_audit_in_order() -> None:
    chain = [parse_defense("smooth:0.1|drop-bias"), parse_defense("clip:0.5")]
    result = unsum.audit(batch=3, defenses=chain)
    assert result.setting.defenses == "SmoothLabels(0.1) | DropBias() | Clip(0.5)"
    assert result.scores["label_correct"] == 1
    smoothed = result.leak.targets.min()
    assert float(smoothed) == pytest.approx(
        0.1 / result.setting.classes, rel=0.01
    )  # the attack read the smoothing itself
    assert result.leak.scale < 1


def test_what_is_not_sent_cannot_be_attacked() -> None:
    verdict = unsum.audit(batch=2, defenses=parse_defense("drop-head")).verdict
    assert verdict.state == "not decidable"
    assert "lacks 'head.weight'" in (verdict.reason or "")
