"""What the clinic found of a rule stands beside what the rule finds."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from gradiometer.doctor import report
from gradiometer.doctor.report import track_record
from gradiometer.doctor.rule import rules
from gradiometer.records import Finding


def finding(id: str, basis: str) -> Finding:
    return Finding(id=id, title="", severity="warn", basis=basis)  # type: ignore[arg-type]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        report, "_held_out", lambda: {"step-too-large": (7, 9), "dead-term": (3, 3)}
    )


@pytest.mark.usefixtures("kept")
def test_what_is_not_proved_says_how_often_it_was_right() -> None:
    assert (
        track_record(finding("step-too-large", "heuristic"))
        == "right in 7 of 9 held-out trainings that showed this first"
    )


@pytest.mark.usefixtures("kept")
def test_what_is_proved_or_was_never_seen_says_nothing() -> None:
    assert track_record(finding("dead-term", "proved")) == ""
    assert track_record(finding("reward-hacking", "heuristic")) == ""


def test_the_kept_file_counts_findings_of_ours() -> None:
    kept = json.loads(
        files("gradiometer.doctor").joinpath("precision.json").read_text(encoding="utf-8")
    )
    assert set(kept) <= {rule.id for rule in rules()}
    assert all(0 <= right <= shown for right, shown in kept.values())
