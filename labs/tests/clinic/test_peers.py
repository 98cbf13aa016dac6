"""Other public doctors, with their findings under our ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradiometer.doctor.rule import rules
from gradiometer_labs.clinic.peers import MEANING, main, translated


def report(**severities: str) -> dict[str, Any]:
    """As `rl-doctor diagnose --format json` prints it."""
    return {"findings": [{"detector": name, "severity": how} for name, how in severities.items()]}


def installed(folder: Path, prints: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = folder / "rl-doctor"
    command.write_text(f"#!/bin/sh\nprintf '%s' '{prints}'\n", encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_their_findings_are_ours_the_worst_first() -> None:
    said = report(plateau="WARNING", kl_drift="OK", entropy_collapse="CRITICAL", unheard="CRITICAL")
    assert translated(said) == ["entropy-collapse", "reward-plateau"]
    known = {each.id for each in rules()}
    assert {name for names in MEANING.values() for name in names} <= known


def test_a_log_is_read_by_their_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(tmp_path, json.dumps(report(length_pathology="WARNING")), monkeypatch)
    main([str(tmp_path / "log.csv")])
    assert capsys.readouterr().out.split() == ["truncation", "length-exploit"]


def test_a_log_that_it_cannot_read_has_no_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(tmp_path, "no metrics found", monkeypatch)
    main([str(tmp_path / "log.csv")])
    assert capsys.readouterr().out.split() == []
