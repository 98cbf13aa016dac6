"""The sweep: counts are those of the rule itself, nothing is trained, and every folder of labelled
logs will do."""

from __future__ import annotations

import json
import tarfile
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gradiometer.cli.main import run as run_command
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.doctor.rule import rules
from gradiometer.doctor.thresholds import THRESHOLDS, Group, group, overridden, recorded
from gradiometer.errors import UnknownName, UsageError
from gradiometer.records import Row
from gradiometer.store.writer import Writer
from gradiometer_labs import trainerlogs
from gradiometer_labs.clinic import cases as cases_module
from gradiometer_labs.clinic.cases import (
    LabelledCase,
    clinic_cases,
    labelled_cases,
    synthetic_cases,
)
from gradiometer_labs.clinic.grid import FIRST_SEED, ClinicTraining
from gradiometer_labs.clinic.sweep import sweep, swept_values
from gradiometer_labs.clinic.training import RECORD, TrainingRecord
from gradiometer_labs.synthetic import HEALTHY, MAKERS, SICK

COLLAPSED = "exploration/collapsed"


@pytest.fixture(scope="module")
def cases() -> list[LabelledCase]:
    return list(synthetic_cases(1, 2))


@pytest.fixture(scope="module")
def counted(cases: list[LabelledCase]) -> list[LabelledCase]:
    """The cases that count for one rule: the healthy ones, and those that it should name."""
    return [case for case in cases if case.healthy or "entropy-collapse" in case.accept]


def by_hand(cases: list[LabelledCase], id: str, value: float) -> tuple[int, int]:
    """How often the rule warns with that value: where it should, and on healthy logs."""
    (rule,) = [each for each in rules() if each.id == id]
    with overridden({COLLAPSED: value}):
        warned = [
            any(
                each.severity != "info" for each in diagnose(case.data.source, only=[rule]).findings
            )
            for case in cases
        ]
    pairs = list(zip(cases, warned, strict=True))
    found = sum(said for case, said in pairs if id in case.accept)
    return found, sum(said for case, said in pairs if case.healthy)


@pytest.mark.slow
def test_counts_are_those_of_the_rule_run_by_itself_with_each_value(
    counted: list[LabelledCase],
) -> None:
    (row,) = sweep(counted, only=[COLLAPSED, "entropy-collapse"])
    assert row.value == THRESHOLDS[COLLAPSED].value
    assert [point.value for point in row.points] == swept_values(row.value)
    for point in [*row.points[:1], *row.points[-1:]]:
        assert (point.count.found, point.count.alarms) == by_hand(counted, row.rule, point.value)
    assert (row.now.found, row.now.alarms) == by_hand(counted, row.rule, row.value)
    assert row.now.of == 4  # two seeds of each log whose entropy is gone
    assert row.now.healthy == len(MAKERS) * len(HEALTHY) + len(trainerlogs.HEALTHY)
    assert row.points[0].count.found <= row.now.found <= row.points[-1].count.found
    assert group("exploration").collapsed == row.value  # as it was
    told = [value for values, _ in row.stretches for value in values]
    assert told == sorted([row.value, *swept_values(row.value)])
    counts = [count for _, count in row.stretches]
    assert all(one != other for one, other in pairwise(counts))


@pytest.mark.slow
def test_a_rule_is_run_again_only_where_it_reads_the_threshold(cases: list[LabelledCase]) -> None:
    rows = sweep(cases[:4], only=["entropy-collapse"])
    assert {row.rule for row in rows} == {"entropy-collapse"}
    assert COLLAPSED in {row.threshold for row in rows}
    assert all(not row.threshold.startswith(("course/", "signs/")) for row in rows)
    shared = sweep(cases[:2], only=["course/min_gain"])
    assert {row.rule for row in shared} == {each.id for each in rules()}
    with pytest.raises(UnknownName, match="did you mean"):
        sweep(cases, only=["entropy-colapse"])


def test_what_is_read_is_recorded_and_nothing_else_changes() -> None:
    limits = group("exploration")
    with recorded() as read:
        assert limits.collapsed == THRESHOLDS[COLLAPSED].value
    assert read == {COLLAPSED}
    assert type(limits) is Group
    assert limits.collapsed
    assert read == {COLLAPSED}  # the block is over


@pytest.mark.parametrize(
    ("value", "tried"),
    [
        (0.1, [0.025, 0.05, 0.075, 0.15, 0.2, 0.4]),
        (0.9, [0.6, 0.8, 0.85, 0.925, 0.95, 0.975]),
        (3, [1.0, 2.0, 4.0, 6.0, 12.0]),
        (-0.5, [-2.0, -1.0, -0.75, -0.375, -0.25, -0.125]),
    ],
)
def test_values_stay_shares_and_whole_numbers(value: float, tried: list[float]) -> None:
    assert swept_values(value) == pytest.approx(tried)


def test_every_made_up_log_knows_which_findings_name_it(cases: list[LabelledCase]) -> None:
    known = {each.id for each in rules()}
    assert {id for sick in SICK.values() for id in sick.accept} <= known
    assert sum(case.healthy for case in cases) == len(MAKERS) * len(HEALTHY) + len(
        trainerlogs.HEALTHY
    )
    assert sum(not case.healthy for case in cases) == 2 * (len(SICK) + len(trainerlogs.SICK))


def labelled(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    lines = ["step,reward", *(f"{n},{n + rng.normal()}" for n in range(80))]
    (folder / "one").mkdir(parents=True)
    (folder / "one" / "progress.csv").write_text("\n".join(lines) + "\n")
    rows = [
        {"id": "one", "files": ["progress.csv"], "state": "healthy", "accept": []},
        {"id": "gone", "files": ["x.csv"], "state": "broken", "accept": ["reward-declining"]},
    ]
    (folder / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


def test_labelled_logs_are_read_from_a_folder_or_an_archive(tmp_path: Path) -> None:
    folder = labelled(tmp_path / "wild")
    with ExitStack() as stack:
        (case,) = labelled_cases(folder, stack)  # what is not there is left out
        assert (case.name, case.healthy, case.origin) == ("one", True, "labelled")
        reward = case.data.get("reward")
        assert reward is not None
        assert len(reward) == 80
    with tarfile.open(folder / "logs.tar.xz", "w:xz") as archive:
        archive.add(folder / "one", "one")
    (folder / "one" / "progress.csv").unlink()
    with ExitStack() as stack:
        (case,) = labelled_cases(folder, stack)
        assert len(sweep([case], only=["reward-plateau"])) > 0
    (folder / "labels.jsonl").write_text('{"id": "one"}\n')
    with pytest.raises(UsageError, match="has no 'files'"):
        list(labelled_cases(folder, ExitStack()))


def test_kept_trainings_are_cases_twice_from_the_store_and_as_a_log(tmp_path: Path) -> None:
    made = ClinicTraining(setup="cartpole-ppo", fault="entropy_no_grad", seed=FIRST_SEED)
    with Writer(tmp_path / made.name / "run") as writer:
        for step in range(40):
            row = {"reward": float(step), "grad/all/norm/raw": 1.0}
            writer.put(Row(step=step, wall_time=0.0, values=row))
    record = TrainingRecord(
        overrides=made.overrides, first_return=0.0, mean_return=1.0, seconds=1.0, ended=""
    )
    (tmp_path / made.name / RECORD).write_text(json.dumps(asdict(record)))
    with ExitStack() as stack:
        found = list(clinic_cases(tmp_path, stack))
        assert [case.origin for case in found] == ["clinic", "scalars"]
        assert all("dead-term" in case.accept and not case.healthy for case in found)
        assert all(case.data.get("reward") is not None for case in found)


@pytest.mark.slow
def test_the_command_prints_a_table_or_one_object_and_trains_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    counted: list[LabelledCase],
) -> None:
    monkeypatch.setattr(cases_module, "synthetic_cases", lambda: counted[-8:])
    call = ["clinic", "--sweep", "--out", str(tmp_path / "none"), "--only", "entropy-collapse"]
    assert run_command([*call, "--wild", str(labelled(tmp_path / "wild"))]) == 0
    said = capsys.readouterr().out
    assert "1 healthy (labelled)" in said
    assert "pairs of rule and threshold move" in said
    assert run_command([*call, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["rule"] for row in found["rows"]} == {"entropy-collapse"}
    assert set(found["rows"][0]) == {"rule", "threshold", "value", "trades", "now", "points"}
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sweep", "--quick"], "--sweep trains nothing"),
        (["--only", "entropy-collapse"], "belong to --sweep"),
        (["--sweep", "--wild", "nowhere"], "holds no labels.jsonl"),
        (["--sweep", "--only", "entropy-colapse"], "did you mean 'entropy-collapse'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cases_module, "synthetic_cases", partial(synthetic_cases, 0, 0))
    assert run_command(["clinic", *arguments]) == 2
    assert message in capsys.readouterr().err
