"""Other people's trainers: what can be broken in them, what a patient draws, and how it is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradiometer as gm
from gradiometer.cli.main import run as run_command
from gradiometer.doctor.rule import rules
from gradiometer_labs.clinic import grid
from gradiometer_labs.clinic.grid import split
from gradiometer_labs.clinic.outsider import said_by, write_log
from gradiometer_labs.clinic.patients import READINGS, ward_patients
from gradiometer_labs.clinic.wardreport import TRAINERS, _lead
from gradiometer_labs.clinic.wardsummary import mean_over_wards
from gradiometer_labs.wards import ward
from gradiometer_labs.wards.ward import WARDS, Patient, Ranges, Ward, find_ward

CALL = ["clinic", "--engine", "serial", "--seeds", "1", "--out"]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Ward:
    """A ward that trains nothing."""
    made = Ward(
        name="toy",
        summary="a toy",
        setups={
            ("PPO", "bandit"): Ranges(fixed={"steps": 3}, drawn={"lr": (1e-3, 1e-2)}),
            ("PPO", "walk"): Ranges(drawn={"width": [8, 16]}),
            ("DQN", "walk"): Ranges(drawn={"width": [8, 16]}),
        },
    )

    @made.fault(accept=("dead-term",))
    def one_line(setup: Any) -> None:
        """A line is wrong."""

    @made.fault("DQN", accept=("target-network",))
    def other_line(setup: Any) -> None:
        """Another one is."""

    find = find_ward.__wrapped__
    monkeypatch.setattr(ward, "find_ward", lambda name: made if name == "toy" else find(name))
    return made


def test_any_beginning_of_the_list_has_every_fault_once_before_any_twice(toy: Ward) -> None:
    found = [each.fault for each in toy.patients(each=2, controls=1)]
    assert found[:3] == ["none"] * 3
    assert found[3:6] == ["one_line", "other_line", "one_line"]
    assert found.count("one_line") == 4
    names = [each.name for each in toy.patients(each=3, controls=3)]
    assert len(names) == len(set(names))


def test_a_patient_draws_the_same_settings_every_time_and_no_two_the_same(toy: Ward) -> None:
    drawn = [
        Patient(ward="toy", algorithm="PPO", task="bandit", index=index).settings
        for index in (*range(40), *range(40))
    ]
    assert drawn[:40] == drawn[40:]
    rates = np.log10([each["lr"] for each in drawn[:40]])
    assert rates.min() >= -3
    assert rates.max() <= -2
    assert abs(rates.mean() + 2.5) < 0.15, "uniform in the logarithm"
    assert len({each["seed"] for each in drawn}) == 40
    assert {each["steps"] for each in drawn} == {3}


def test_every_ward_weighs_the_same_and_in_it_every_fault(case: Any) -> None:
    right = [case("entropy_no_grad", ["dead-term"], seed=seed) for seed in range(5)]
    wrong = [case("lr_high", ["dead-term"])]
    none = [case("clip_tiny", [])]
    names = {"full": lambda judged: [said.id for said in judged.full]}
    found = mean_over_wards({"one": [*right, *wrong], "other": none}, names)["full"]["top1"]
    assert found["share"] == 0.25, "(1/2 + 0) / 2, not 5/7"
    assert found["low"] == 0.0
    assert found["high"] == 0.5


@pytest.mark.slow
def test_at_least_sixty_faults_in_four_wards_each_named_by_findings_that_exist() -> None:
    known = {rule.id for rule in rules()}
    wards = [find_ward(name) for name in WARDS]
    assert len(wards) >= 4
    assert sum(len(each.faults) for each in wards) >= 60
    for each in wards:
        setups = {algorithm for algorithm, _ in each.setups}
        for fault in each.faults.values():
            assert set(fault.accept) <= known, fault.name
            assert set(fault.algorithms) <= setups, fault.name
            assert fault.summary, fault.name
    assert len(ward_patients((), each=3, controls=10)) >= 800


def test_the_page_has_a_name_for_every_ward() -> None:
    assert set(TRAINERS) == set(WARDS)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("", []),
        ("dead-term\\nreward-plateau", ["dead-term", "reward-plateau"]),
        ('["dead-term"]', ["dead-term"]),
        ('{"findings": [{"id": "dead-term"}]}', ["dead-term"]),
    ],
)
def test_another_tool_prints_lines_or_json(tmp_path: Path, printed: str, said: list[str]) -> None:
    tool = tmp_path / "tool.py"
    tool.write_text(f"import sys; open(sys.argv[1]); print('''{printed}''')", encoding="utf-8")
    (tmp_path / "log.csv").touch()
    assert said_by(f"{sys.executable} {tool} {{log}}", tmp_path / "log.csv") == said


def test_another_tool_gets_what_was_logged(tmp_path: Path) -> None:
    from gradiometer.store.logs import Log

    rows = [(1, {"reward": 2.0}), (3, {"reward": 4.0, "entropy": 0.5})]
    log = Log(tmp_path, name="log", run_id="log", rows=rows, facts={"config": {"gamma": 0.9}})
    write_log(log, tmp_path / "log.csv")
    with gm.load(tmp_path / "log.csv") as read:
        assert read.series("reward")[1].tolist() == [2.0, 4.0]
        assert read.series("entropy")[0].tolist() == [3]
    assert json.loads((tmp_path / "config.json").read_text()) == {"gamma": 0.9}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--wards", "sb4"], "did you mean 'sb3'"),
        (["--wards", "sb3", "--faults", "entropy_detach"], "did you mean 'entropy_detached'"),
        (["--wards", "sb3", "--labs", "tsp"], "--wards has its own patients"),
        (["--wards", "sb3", "--judge", "tool log.csv"], "names no {log}"),
        (["--wards", "sb3", "--stored"], "holds none of these patients"),
        (["--limit", "3"], "--limit, --judge and --stored belong to --wards"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run_command([*CALL, str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.slow
def test_patients_of_two_wards_are_trained_named_kept_small_and_never_trained_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "split", lambda: {**split(), "wards_tuned_on": []})
    out, page = tmp_path / "out", tmp_path / "clinic.md"
    faults = ["gradients_not_cleared", "bandit_helper.baseline_leaks"]
    call = [*CALL, str(out), "--wards", "sb3", "programs", "--faults", *faults, "--limit", "1"]
    assert run_command([*call, "--report", str(page), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["top1"] for row in found["by_fault"]] == [[True], [True]]
    assert found["left_out"] == ["sb3", "programs"]
    readings = list(out.rglob(READINGS))
    assert len(readings) == 2
    assert max(path.stat().st_size for path in readings) < 200_000
    assert not list(out.rglob("run.db"))
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "2 short trainings" in card
    text = page.read_text(encoding="utf-8")
    assert text.index("first finding is right") < text.index("## In whose trainers")
    assert (tmp_path / "pictures" / "clinic.png").stat().st_size > 5_000

    monkeypatch.setattr(Patient, "train", lambda *_: pytest.fail("it was trained before"))
    tool = f"{sys.executable} -c \"print('gradients-not-cleared')\" {{log}}"
    assert run_command([*call, "--judge", tool, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["by_fault"] == found["by_fault"]
    assert again["accuracy"]["judged"]["top1"]["share"] == 0.5


def test_where_rules_were_tuned_on_every_trainer_no_headline_is_made() -> None:
    found: dict[str, Any] = {"left_out": [], "accuracy": {"full": {}, "scalars": {}}}
    text = " ".join(_lead(found))
    assert "tuned on all of these trainers" in text
    assert "%" not in text
