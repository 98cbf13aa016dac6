"""Wiring that is proved: an event of the meter is a finding, a table without it is a clean bill."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gradiometer.doctor.rule import Skipped, rules
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Event, Finding, Table
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run

IDS = ("gradients-not-cleared", "shapes-broadcast", "double-softmax")
LEAK = {"term": "policy_loss", "into": "value_loss", "parameter": "critic.weight"}
DETAIL: dict[str, dict[str, Any]] = {
    "gradients-not-cleared": {"optimizer": 0},
    "shapes-broadcast": {"shapes": [[64, 1], [64]], "result": [64, 64], "name": "value_loss"},
    "double-softmax": {"node": "LogSoftmaxBackward0"},
}


def verdict(run: Run | Log, id: str) -> list[Finding] | Skipped:
    return next(rule for rule in rules() if rule.id == id)(RunData(run))


def proofs(step: int = 0, **states: str) -> Table:
    named = {id.replace("_", "-"): state for id, state in states.items()}
    return Table(step=step, name="proofs", content=named)


def fact(id: str, step: int = 0, **detail: Any) -> Event:
    return Event(step=step, kind=id, message=f"{id} it is", detail={**DETAIL.get(id, {}), **detail})


@pytest.mark.parametrize("id", IDS)
def test_what_the_meter_saw_is_critical_and_proved_from_its_step_on(
    id: str, tmp_path: Path, patients: ModuleType
) -> None:
    event = fact(id, 1, file="/home/me/train.py", line=41)
    states = {id.replace("-", "_"): "found"}
    run = patients.patient(tmp_path, {"reward": [1.0]}, events=[event], tables=[proofs(**states)])
    found = verdict(run, id)
    assert isinstance(found, list)
    (one,) = found
    assert (one.severity, one.basis, one.since_step) == ("critical", "proved", 1)
    assert "(train.py:41)" in one.title
    assert one.evidence[0].reading == f"{id} it is"
    assert one.fix
    assert one.cause
    assert one.confirm


@pytest.mark.parametrize("id", IDS)
def test_a_check_that_passed_is_silent_and_one_that_was_not_made_says_why(
    id: str, tmp_path: Path, patients: ModuleType
) -> None:
    states = {id.replace("-", "_"): "ok"}
    run = patients.patient(tmp_path / "ok", {"reward": [1.0]}, tables=[proofs(**states)])
    assert verdict(run, id) == []
    states = {id.replace("-", "_"): "unmeasurable: the model is sharded"}
    run = patients.patient(tmp_path / "not", {"reward": [1.0]}, tables=[proofs(**states)])
    skipped = verdict(run, id)
    assert isinstance(skipped, Skipped)
    assert skipped.why == "the model is sharded"
    log = Log("made", name="made", run_id="made", rows=[(0, {"reward": 1.0})])
    assert isinstance(verdict(log, id), Skipped)


def test_a_fact_that_was_withdrawn_is_no_finding(tmp_path: Path, patients: ModuleType) -> None:
    tables = [proofs(shapes_broadcast="found"), proofs(8, shapes_broadcast="ok")]
    events = [fact("shapes-broadcast")]
    run = patients.patient(tmp_path, {"reward": [1.0]}, events=events, tables=tables)
    assert verdict(run, "shapes-broadcast") == []


def test_the_title_has_both_shapes_and_the_variable(tmp_path: Path, patients: ModuleType) -> None:
    run = patients.patient(tmp_path, {"reward": [1.0]}, events=[fact("shapes-broadcast")])
    found = verdict(run, "shapes-broadcast")
    assert isinstance(found, list)
    assert "'value_loss' broadcasts (64, 1) against (64,) to (64, 64)" in found[0].title


def test_a_leak_names_both_terms_and_the_head(tmp_path: Path, patients: ModuleType) -> None:
    events = [fact("leak-between-terms", **LEAK)]
    run = patients.patient(tmp_path / "leak", {"reward": [1.0]}, events=events)
    found = verdict(run, "leak-between-terms")
    assert isinstance(found, list)
    assert (found[0].severity, found[0].basis) == ("critical", "proved")
    assert "'policy_loss' trains the critic: it reaches critic.weight" in found[0].title
    tables = [proofs(leak_between_terms="ok")]
    run = patients.patient(tmp_path / "none", {"reward": [1.0]}, tables=tables)
    assert verdict(run, "leak-between-terms") == []


@pytest.mark.parametrize("how", ["alias", "equal", "never"])
def test_a_target_is_proved_whatever_was_logged(
    how: str, tmp_path: Path, patients: ModuleType
) -> None:
    event = fact("target-network", 7, how=how, target="q_target")
    run = patients.patient(tmp_path, {"reward": [1.0]}, events=[event])
    found = verdict(run, "target-network")
    assert isinstance(found, list)
    (one,) = found
    assert (one.severity, one.basis, one.since_step) == ("warn", "proved", 7)
    assert "'q_target'" in one.title
    assert one.fix
    assert one.cause


def test_parameters_in_no_optimizer_are_critical_where_a_head_is_lost(
    tmp_path: Path, patients: ModuleType
) -> None:
    for blocks, severity in ((["critic"], "critical"), (["trunk"], "warn"), ([], "warn")):
        event = fact("not-in-optimizer", parameters=2, blocks=blocks)
        run = patients.patient(
            tmp_path / severity[:1] / str(len(blocks)), {"reward": [1.0]}, events=[event]
        )
        found = verdict(run, "not-in-optimizer")
        assert isinstance(found, list)
        assert (found[0].severity, found[0].basis) == (severity, "proved")


@pytest.mark.parametrize("id", ["gradients-not-cleared", "not-in-optimizer"])
def test_gradients_of_earlier_steps_are_no_hidden_term(
    id: str, tmp_path: Path, patients: ModuleType
) -> None:
    error = {"grad/all/term/additivity_error": [0.5] * 8}
    assert verdict(patients.patient(tmp_path / "alone", error), "hidden-term")
    run = patients.patient(tmp_path / "known", error, events=[fact(id)])
    assert verdict(run, "hidden-term") == []
