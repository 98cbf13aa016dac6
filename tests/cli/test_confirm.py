"""`gradiometer doctor RUN --confirm`: on small trainings of the labs, and with somebody's own
probe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import gradiometer_labs as labs
from gradiometer.cli import confirm as cli
from gradiometer.cli.main import run as gradiometer
from gradiometer.doctor.diagnosis import Diagnosis
from gradiometer.errors import UsageError
from gradiometer.records import Evidence, Finding
from gradiometer_labs.config import configure

CARTPOLE = (
    "num_envs=2",
    "num_steps=24",
    "num_minibatches=2",
    "update_epochs=2",
    "total_steps=48000",
    "seed=5",
)
DEAD = Finding(
    id="dead-term",
    title="The loss term 'entropy' has no gradient",
    severity="critical",
    basis="proved",
    evidence=(Evidence(series="grad/all/term/entropy/loss", reading="0.01"),),
    confirm="Print entropy.requires_grad.",
)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """The run of a small training whose entropy bonus is dead."""
    place = tmp_path / "run"
    overrides = [*CARTPOLE, "fault=entropy_no_grad", f"run={place}", "total_steps=480", "every=1"]
    lab = labs.find("cartpole")
    lab.train(configure(lab.config(), overrides))
    return place


PROBES = """
def nothing(experiment):
    return {"reward": experiment.seed % 7, "grad_norm": 2.0}
def fails(experiment):
    if experiment.kind != "baseline":
        raise ValueError("no such coefficient")
    return 1.0
"""


@pytest.fixture
def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A module in the current folder, under a name of this test's own."""
    name = f"my_probes_{tmp_path.parent.name}_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(PROBES)
    return lambda function: f"{name}:{function}"


@pytest.mark.slow
def test_the_command_confirms_the_first_finding(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(
        (each.name, each.stat().st_mtime_ns) for each in trained.iterdir() if each.name == "run.db"
    )
    assert gradiometer(["doctor", str(trained), "--confirm"]) == 0
    told = capsys.readouterr()
    assert "CONFIRM dead-term · supported" in told.out
    assert "bit-identical" in told.out
    assert told.out.index("CRITICAL dead-term") < told.out.index("CONFIRM dead-term")
    assert "confirming dead-term: 3/3" in told.err
    assert (
        sorted(
            (each.name, each.stat().st_mtime_ns)
            for each in trained.iterdir()
            if each.name == "run.db"
        )
        == files
    )


def test_a_probe_of_ones_own_is_asked_instead(
    trained: Path, probes: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        gradiometer(["doctor", str(trained), "--confirm", "--probe", probes("nothing"), "--json"])
        == 0
    )
    content = json.loads(capsys.readouterr().out)
    found = content["confirmations"][0]
    assert (found["finding"], found["outcome"], found["seeds"]) == ("dead-term", "supported", [5])
    assert content["findings"][0]["id"] == "dead-term"


def test_a_probe_that_fails_costs_exit_2_and_not_the_diagnosis(
    trained: Path, probes: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--json"]):
        assert (
            gradiometer(["doctor", str(trained), "--confirm", "--probe", probes("fails"), *more])
            == 2
        )
        told = capsys.readouterr()
        assert "dead-term" in told.out
        assert "ValueError: no such coefficient" in told.err
        assert "Traceback" not in told.err
    assert json.loads(told.out)["confirmations"] == []


def test_wrong_usage_is_told_before_anything_is_judged(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, words in (
        (["--confirm", "--probe", "nowhere:probe"], "no module 'nowhere'"),
        (["--confirm", "--probe", "nowhere"], "module:function"),
        (["--probe", "nowhere:probe"], "belongs to --confirm"),
        ([str(trained), "--confirm"], "one run at a time; found 2"),
    ):
        assert gradiometer(["doctor", str(trained), *arguments]) == 2
        told = capsys.readouterr()
        assert words in told.err
        assert told.out == ""


# -- how it is said


def diagnosis_of(*findings: Finding) -> Diagnosis:
    return Diagnosis(
        state="concern",
        run=Path("run"),
        verdict="",
        findings=findings,
        folded=(),
        skipped=(),
        unknown_keys=(),
        looked=(),
        curves={},
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Somebody else's log: no lab."""
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps({"step": step, "reward": 1.0}) + "\n" for step in range(5)))
    return file


def test_without_a_lab_and_a_probe_it_says_how_to_make_sure(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.prepared([log], probe="").tell(diagnosis_of(DEAD), form="text", output="")
    told = capsys.readouterr().out
    assert "CONFIRM dead-term · not run" in told
    assert "by hand   Print entropy.requires_grad." in told
    assert "--probe module:function" in told.replace("\n            ", " ")


def test_without_the_labs_it_says_how_to_get_them(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gradiometer_labs", None)  # as if it were not installed
    cli.prepared([log], probe="").tell(diagnosis_of(DEAD), form="text", output="")
    told = capsys.readouterr().out.replace("\n            ", " ")
    assert "CONFIRM dead-term · not run" in told
    assert 'pip install "gradiometer[labs]"' in told
    assert "--probe module:function" in told


def test_a_healthy_run_has_nothing_to_confirm(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.prepared([log], probe="").tell(diagnosis_of(), form="text", output="")
    told = capsys.readouterr()
    assert told.out == ""
    assert "nothing to confirm" in told.err


def test_a_report_in_a_file_has_it_too(
    log: Path, tmp_path: Path, probes: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.md"
    report.write_text("# Report\n")
    asked = cli.prepared([log], probe=probes("nothing"))
    asked.tell(diagnosis_of(DEAD), form="markdown", output=str(report))
    assert capsys.readouterr().out == ""
    written = report.read_text()
    assert written.startswith("# Report\n\n### Confirm dead-term: supported · 1 seed")
    assert "- saw: reward, grad_norm are bit-identical" in written


def test_several_runs_are_too_many(log: Path) -> None:
    with pytest.raises(UsageError, match="one run at a time"):
        cli.prepared([log, log], probe="")
