"""assert_healthy lets a healthy run pass, and fails with the doctor's words otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradiometer.errors import UsageError
from gradiometer.records import Event, Row
from gradiometer.store.writer import Writer
from gradiometer.testing import assert_healthy


def write(folder: Path, rewards: np.ndarray, *events: Event) -> Path:
    with Writer(folder) as writer:
        for step, reward in enumerate(rewards):
            writer.put(Row(step=step, wall_time=float(step), values={"reward": float(reward)}))
        for event in events:
            writer.put(event)
    return folder


def rising() -> np.ndarray:
    noise = np.random.default_rng(0).normal(size=200)
    return np.linspace(0.0, 10.0, 200) + 0.3 * noise


DEAD = Event(
    step=0,
    kind="dead-term",
    message="the term 'entropy' has no gradient path to any watched parameter",
    detail={"term": "entropy"},
)


def test_a_healthy_run_passes_and_gives_its_diagnosis(tmp_path: Path) -> None:
    found = assert_healthy(write(tmp_path / "run", rising()), must_learn=True)
    assert found.state == "healthy"


def test_a_finding_fails_with_the_report_unless_it_is_allowed(tmp_path: Path) -> None:
    run = write(tmp_path / "run", rising(), DEAD)
    with pytest.raises(AssertionError, match=r"(?s)dead-term.*fix"):
        assert_healthy(run)
    assert [each.id for each in assert_healthy(run, allow=["dead-term"]).findings] == ["dead-term"]


def test_not_learning_fails_where_learning_is_asked_for(tmp_path: Path) -> None:
    flat = np.random.default_rng(1).normal(size=200)
    run = write(tmp_path / "run", flat)
    allowed = [each.id for each in assert_healthy(run, fail_on="critical").findings]
    with pytest.raises(AssertionError, match="reward"):
        assert_healthy(run, allow=allowed, must_learn=True)


def test_an_empty_log_and_a_wrong_severity_are_told(tmp_path: Path) -> None:
    run = write(tmp_path / "run", rising())
    with pytest.raises(UsageError, match="severity"):
        assert_healthy(run, fail_on="warning")  # type: ignore[arg-type]
