"""Facts of credit and environment as findings, and a credit that opposes what was paid."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Event, Finding, Table
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run

SEVERITIES = {
    "ratio-always-one": "critical",
    "entropy-sign": "critical",
    "never-trained": "critical",
    "score-not-zero-mean": "critical",
    "sampler-mismatch": "warn",
}


def verdict(run: Run | Log, id: str) -> list[Finding] | Skipped:
    return next(rule for rule in rules() if rule.id == id)(RunData(run))


@pytest.mark.parametrize("id", SEVERITIES)
def test_a_fact_that_the_meter_wrote_down_is_proved(
    id: str, tmp_path: Path, patients: ModuleType
) -> None:
    event = Event(step=1, kind=id, message="it is so")
    table = Table(step=1, name="proofs", content={id: "found"})
    run = patients.patient(tmp_path, {"reward": [1.0]}, events=[event], tables=[table])
    found = verdict(run, id)
    assert isinstance(found, list)
    (one,) = found
    assert (one.basis, one.since_step, one.severity) == ("proved", 1, SEVERITIES[id])
    assert one.evidence[0].reading == "it is so"
    assert one.cause
    assert one.fix
    assert one.confirm


@pytest.mark.parametrize(("slope", "severity"), [(0.0, "critical"), (1.0, "info")])
def test_an_optimizer_that_nothing_reaches_weighs_as_the_run_goes(
    tmp_path: Path, patients: ModuleType, slope: float, severity: str
) -> None:
    event = Event(step=1, kind="never-trained", message="idle", detail={"how": "no-gradient"})
    noise = np.random.default_rng(0).normal(0.0, 1.0, 200)
    rewards = list(20.0 + slope * np.arange(200) + noise)
    run = patients.patient(tmp_path, {"reward": rewards}, events=[event])
    found = verdict(run, "never-trained")
    assert isinstance(found, list)
    assert [each.severity for each in found] == [severity]


@pytest.mark.parametrize("id", ["ratio-always-one", "entropy-sign", "never-trained"])
def test_what_was_checked_is_silent_and_what_could_not_be_checked_says_why(
    id: str, tmp_path: Path, patients: ModuleType
) -> None:
    ok = Table(step=1, name="proofs", content={id: "ok"})
    run = patients.patient(tmp_path / "ok", {"reward": [1.0]}, tables=[ok])
    assert verdict(run, id) == []
    blind = Table(step=1, name="proofs", content={id: "unmeasurable: nobody looked"})
    run = patients.patient(tmp_path / "blind", {"reward": [1.0]}, tables=[blind])
    found = verdict(run, id)
    assert isinstance(found, Skipped)
    assert found.why == "nobody looked"


def credited(values: list[float], folder: Path, patients: ModuleType) -> Run:
    run: Run = patients.patient(folder, {"credit/corr_return": values, "reward": [1.0] * 20})
    return run


def test_updates_that_push_down_what_was_paid_oppose_the_reward(
    tmp_path: Path, patients: ModuleType
) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 20)
    found = verdict(credited(list(-0.7 + noise), tmp_path, patients), "update-opposes-reward")
    assert isinstance(found, list)
    assert (found[0].severity, found[0].basis) == ("critical", "statistical")
    assert "{" not in found[0].cause + found[0].confirm


@pytest.mark.parametrize("level", [0.9, 0.3, 0.0, -0.2])
def test_a_correlation_that_is_not_clearly_negative_says_nothing(
    level: float, tmp_path: Path, patients: ModuleType
) -> None:
    noise = np.random.default_rng(1).normal(0, 0.15, 20)
    found = verdict(credited(list(level + noise), tmp_path, patients), "update-opposes-reward")
    assert isinstance(found, Skipped) or found == []


def test_a_correlation_that_turns_later_says_nothing(tmp_path: Path, patients: ModuleType) -> None:
    """Once the critic explains the returns, what is left of them may have any sign."""
    values = [0.8] * 30 + [-0.6] * 60
    found = verdict(credited(values, tmp_path, patients), "update-opposes-reward")
    assert isinstance(found, Skipped) or found == []
