"""`gradiometer doctor` as a user runs it: on our runs, on other trainers' real logs, on many, and
on what is no log."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from forkserver import Done, python

from gradiometer.records import Event, Row
from gradiometer.store.writer import Writer

FIXTURES = Path(__file__).parents[1] / "fixtures"


def gradiometer(*arguments: str) -> Done:
    return python("-m", "gradiometer", *arguments)


def made(folder: Path, *, dead: bool) -> Path:
    rng = np.random.default_rng(0)
    with Writer(folder) as writer:
        for step in range(200):
            values = {
                "reward": step / 20 + rng.normal(),
                "entropy": 1.0 - step / 400 + 0.02 * rng.normal(),
            }
            writer.put(Row(step=step, wall_time=float(step), values=values))
        if dead:
            message = "the term 'entropy' has no gradient path to any watched parameter"
            writer.put(Event(step=0, kind="dead-term", message=message, detail={"term": "entropy"}))
    return folder


def test_a_dead_term_comes_first_and_decides_the_exit_code(tmp_path: Path) -> None:
    run = str(made(tmp_path / "run", dead=True))
    done = gradiometer("doctor", run)
    assert done.returncode == 0
    assert "CRITICAL dead-term" in done.stdout
    assert gradiometer("doctor", run, "--fail-on", "critical").returncode == 1
    assert gradiometer("doctor", run, "--fail-on", "warn").returncode == 1
    healthy = str(made(tmp_path / "healthy", dead=False))
    assert gradiometer("doctor", healthy, "--fail-on", "warn").returncode == 0


def test_states_decide_the_exit_code_where_they_are_named(tmp_path: Path) -> None:
    run = str(made(tmp_path / "run", dead=True))  # a concern: it learns, and a term is dead
    for words, code in (
        ("state:concern", 1),
        ("state:broken", 0),
        ("state:broken,state:concern", 1),
        ("critical,state:broken", 1),
        ("none", 0),
    ):
        assert gradiometer("doctor", run, "--fail-on", words).returncode == code, words


def test_the_schema_is_printed_without_a_run_and_holds_for_what_is_printed(tmp_path: Path) -> None:
    printed = json.loads(gradiometer("doctor", "--schema").stdout)
    said = gradiometer("doctor", str(made(tmp_path / "run", dead=True)), "--json").stdout
    jsonschema.validate(json.loads(said), printed)


def test_json_is_one_object_with_the_promised_keys(tmp_path: Path) -> None:
    done = gradiometer("doctor", str(made(tmp_path / "run", dead=True)), "--json")
    said = json.loads(done.stdout)
    assert said["run"] == str(tmp_path / "run")
    assert said["findings"][0]["id"] == "dead-term"
    assert set(said) >= {"run", "verdict", "findings", "skipped", "unknown_keys"}
    assert all(skipped["why"] for skipped in said["skipped"])


def test_guessed_names_are_said_and_a_column_is_what_the_user_says(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    rows = [{"step": n, "mean_r": n / 10, "puzzle": -n / 10, "vf_loss": 1.0} for n in range(20)]
    log.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    done = gradiometer("doctor", str(log))
    assert (
        "read `mean_r` as reward (a guess from its name); --name reward=COLUMN changes it"
        in done.stdout
    )
    told = json.loads(gradiometer("doctor", str(log), "--name", "reward=puzzle", "--json").stdout)
    assert told["names"][0] == {
        "column": "puzzle",
        "meaning": "reward",
        "how": "told",
        "instead_of": ["mean_r"],
    }
    wrong = gradiometer("doctor", str(log), "--name", "reward=puzle")
    assert wrong.returncode == 2
    assert "did you mean 'puzzle'?" in wrong.stderr


def test_an_imported_run_keeps_what_was_told_and_guessed(tmp_path: Path) -> None:
    log, run = tmp_path / "log.jsonl", str(tmp_path / "run")
    rows = [{"step": n, "mean_len": n / 10, "puzzle": n / 10} for n in range(20)]
    log.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    done = gradiometer("import", str(log), "-o", run, "--name", "reward=puzzle")
    assert "read as you specified: puzzle as reward" in done.stdout
    said = json.loads(gradiometer("doctor", run, "--json").stdout)["names"]
    assert [(each["column"], each["how"]) for each in said] == [
        ("puzzle", "told"),
        ("mean_len", "guessed"),
    ]


def test_a_folder_of_runs_is_a_table_with_shared_causes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        made(tmp_path / "runs" / name, dead=True)
    made(tmp_path / "runs" / "c", dead=False)
    done = gradiometer("doctor", str(tmp_path / "runs"))
    assert "2 of 3  dead-term" in done.stdout
    several = json.loads(gradiometer("doctor", str(tmp_path / "runs"), "--json").stdout)
    assert several["shared"]["dead-term"] == 2


def test_files_are_written_where_asked(tmp_path: Path) -> None:
    run = str(made(tmp_path / "run", dead=True))
    for form in ("markdown", "html", "text"):
        done = gradiometer(
            "doctor", run, "--format", form, "-o", str(tmp_path / "out" / f"report.{form}")
        )
        assert (done.returncode, done.stdout) == (0, "")
        assert "dead-term" in (tmp_path / "out" / f"report.{form}").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "no run at"),
        (["RUN", "--format", "pdf"], "unknown format 'pdf'"),
        (["RUN", "--fail-on", "bad"], "unknown severity 'bad'"),
        (["RUN", "--fail-on", "critcal"], "did you mean 'critical'?"),
        (["RUN", "--fail-on", "not-learning"], "did you mean 'state:not-learning'?"),
        (["RUN", "--fail-on", "warn,state:brokn"], "unknown state 'state:brokn'; did you mean"),
        ([], "give a run or a log"),
        (["RUN", "--format", "html"], "-o report.html"),
        (["RUN", "-o", "."], "is a folder"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    run = str(made(tmp_path / "run", dead=False))
    done = gradiometer(
        "doctor", *(run if argument == "RUN" else argument for argument in arguments)
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_since_leaves_out_what_was_before(tmp_path: Path) -> None:
    run = str(made(tmp_path / "run", dead=True))
    said = json.loads(gradiometer("doctor", run, "--since", "100", "--json").stdout)
    assert "dead-term" not in [finding["id"] for finding in said["findings"]]


def test_a_real_dqn_that_stays_below_its_random_start_is_told_so() -> None:
    said = json.loads(gradiometer("doctor", str(FIXTURES / "sb3_dqn"), "--json").stdout)
    assert [f["id"] for f in said["findings"] if f["severity"] != "info"] == ["reward-declining"]


@pytest.mark.parametrize("log", ["sb3_ppo", "cleanrl_ppo"])
def test_real_logs_of_trainings_that_learn_get_a_clean_bill(log: str) -> None:
    done = gradiometer("doctor", str(FIXTURES / log), "--json")
    said = json.loads(done.stdout)
    assert [f["id"] for f in said["findings"] if f["severity"] != "info"] == []
    assert "warning:" in done.stderr or not done.stderr


def test_a_real_log_of_trl_is_read_under_its_own_names() -> None:
    """Its completions are cut off at 16 tokens: an untrained model never ends by itself."""
    said = json.loads(gradiometer("doctor", str(FIXTURES / "trl_grpo"), "--json").stdout)
    (finding,) = [f for f in said["findings"] if f["severity"] != "info"]
    assert finding["id"] == "truncation"
    assert finding["evidence"][0]["series"] == "completions/clipped_ratio"
    assert "max_completion_length" in finding["fix"][0]
