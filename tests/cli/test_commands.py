"""The command line as a user types it: every call is a real process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradiometer.metrics import CATALOGUE
from gradiometer.records import Row, Vector
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer

PLAIN = {
    **os.environ,
    "NO_COLOR": "1",
    "TERM": "dumb",
    "COLUMNS": "200",
    "TERMINAL_WIDTH": "200",
    "OMP_NUM_THREADS": "1",
}


def gradiometer(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gradiometer", *arguments], capture_output=True, text=True, env=PLAIN)


def fails_with(code: int, says: str, *arguments: str) -> None:
    done = gradiometer(*arguments)
    assert done.returncode == code
    assert re.search(says, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    import numpy as np

    with Writer(tmp_path / "runs" / "ppo", facts={"seed": 7}) as writer:
        for step in range(3):
            values = {
                "grad/all/norm/raw": step,
                "grad/layer.fc/norm/raw": 1.0,
                "reward": float("nan") if step == 1 else step,
            }
            writer.put(Row(step=step, wall_time=0.0, values=values))
            writer.put(Vector(step=step, name="sketch/all", values=np.ones(4)))
    return tmp_path / "runs" / "ppo"


def test_without_a_verb_the_help_is_shown_and_names_every_verb() -> None:
    shown = gradiometer("--help").stdout
    for verb in ("demo", "train", "labs", "show", "metrics", "prune", "env"):
        assert re.search(rf"│ {verb} ", shown)
    assert gradiometer("--version").stdout.startswith("gradiometer 0.")


@pytest.mark.parametrize("verb", ["demo", "train", "labs", "show", "metrics", "prune", "env"])
def test_every_verb_has_help(verb: str) -> None:
    shown = gradiometer(verb, "--help")
    assert shown.returncode == 0
    assert f"gradiometer {verb}" in shown.stdout


def test_show_prints_a_table_for_each_block(run: Path) -> None:
    shown = gradiometer("show", str(run)).stdout
    assert "up to step 2" in shown
    assert re.search(r"norm/raw +2 +1 +0 +2 +3", shown)
    assert re.search(r"reward +2 +1 +0 +2 +3 \(1 NaN\)", shown)
    assert "1 layers not shown" in shown
    assert "layer.fc" in gradiometer("show", str(run / "run.db"), "--layers").stdout


def test_show_as_json_is_one_strict_object(run: Path) -> None:
    content = json.loads(gradiometer("show", str(run), "--json").stdout)
    assert content["newest_step"] == 2
    assert content["facts"]["seed"] == 7
    series = {row["name"]: row for row in content["series"]}
    assert series["reward"]["nan_count"] == 1
    assert "grad/layer.fc/norm/raw" in series


def test_show_filters_by_name(run: Path) -> None:
    shown = gradiometer("show", str(run), "--match", "^reward").stdout
    assert "reward" in shown
    assert "norm/raw" not in shown


def test_what_is_not_a_run_is_one_clear_error(run: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a run")
    fails_with(2, "no run at .*pqo; did you mean .*ppo", "show", str(run.parent / "pqo"))
    fails_with(2, "not a run", "show", str(tmp_path / "notes.txt"))
    fails_with(2, "folder of runs: open one of ppo", "show", str(run.parent))
    fails_with(2, "no series .* matches 'nothing'", "show", str(run), "--match", "nothing")
    fails_with(2, "not a regular expression", "show", str(run), "--match", "(")
    fails_with(2, "Missing argument", "show")
    with open(run / "run.db", "r+b") as file:
        file.truncate(5000)
    fails_with(2, "run.db", "show", str(run))


def test_a_run_of_a_newer_version_is_refused_by_name(run: Path) -> None:
    import sqlite3

    with sqlite3.connect(run / "run.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    fails_with(2, "99", "show", str(run))


def test_metrics_lists_the_catalogue_and_explains_one() -> None:
    listed = json.loads(gradiometer("metrics", "--json").stdout)["metrics"]
    assert [metric["name"] for metric in listed] == list(CATALOGUE)
    assert "clip" in gradiometer("metrics", "grad/actor/clip/ratio").stdout
    assert "opposite sign" in gradiometer("metrics", "train/entropy_loss").stdout
    assert "estimator k2" in gradiometer("metrics", "policy/approxkl_avg").stdout
    assert json.loads(gradiometer("metrics", "grad/all/norm/raw", "--json").stdout)["name"] == "grad/<block>/norm/raw"
    fails_with(2, "did you mean 'entropy'", "metrics", "entropi")


def test_prune_keeps_the_last_sketches(run: Path) -> None:
    assert json.loads(gradiometer("prune", str(run), "--keep", "1", "--json").stdout)["removed"] == 2
    assert list(load(run).vector_steps("sketch/all")) == [2]
    fails_with(2, "no run", "prune", "nowhere")


def test_env_says_what_is_missing_and_how_to_get_it() -> None:
    found = json.loads(gradiometer("env", "--json").stdout)
    assert found["extras"]["core"]["numpy"]
    for extra, line in found["install"].items():
        assert "missing" in found["extras"][extra].values()
        assert line == f'pip install "gradiometer[{extra}]"'


def test_labs_lists_labs_and_faults() -> None:
    found = {lab["name"]: lab for lab in json.loads(gradiometer("labs", "--json").stdout)["labs"]}
    assert {"cartpole", "sokoban", "tsp"} <= set(found)
    assert (found["sokoban"]["length"], found["tsp"]["length"]) == ("trainer.total_training_steps", "steps")
    faults = {fault["name"]: fault for fault in found["cartpole"]["faults"]}
    assert faults["entropy_no_grad"]["expected"] == ["dead-term"]
    assert set(faults["lr_high"]["doses"]) == {"mild", "usual", "severe"}
    assert "entropy_no_grad" in gradiometer("labs").stdout


def test_train_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    fails_with(2, "did you mean 'cartpole'", "train", "cartpol")
    fails_with(2, "did you mean 'seed'", "train", "cartpole", "sed=2")
    fails_with(2, "expected int", "train", "cartpole", "seed=two")
    fails_with(2, "did you mean 'entropy_no_grad'", "train", "cartpole", "fault=entropy_nograd")
    fails_with(2, "write key=value", "train", "cartpole", "seed")
    assert not list(tmp_path.iterdir())


def test_train_keeps_a_run_and_says_where(tmp_path: Path) -> None:
    done = gradiometer("train", "cartpole", "total_steps=2000", "num_steps=32", "seed=3")
    assert done.returncode == 0, done.stderr
    assert "cartpole: 1024/2000 steps" in done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"gradiometer show runs/{folder.name}" in done.stdout
    assert load(folder).facts["config"]["seed"] == 3


def test_train_again_in_the_same_folder_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    arguments = ("train", "cartpole", "total_steps=1000", "run=here")
    assert gradiometer(*arguments).returncode == 0
    before = (tmp_path / "here" / "run.db").read_bytes()
    fails_with(2, "here", *arguments)
    assert (tmp_path / "here" / "run.db").read_bytes() == before


def test_an_interrupted_training_leaves_a_run_that_opens(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "gradiometer", "train", "cartpole", "run=cut", "total_steps=10000000"]
    with subprocess.Popen(call, env=PLAIN, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 60
            while not (tmp_path / "cut" / "run.db").exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            time.sleep(2.0)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert [event.kind for event in load(tmp_path / "cut").events()] == ["exception"]
    assert os.listdir(tmp_path / "cut") == ["run.db"]


def test_the_demo_names_the_dead_term_and_only_in_the_broken_run(tmp_path: Path) -> None:
    done = gradiometer("demo", "--no-serve", "--total-steps", "4000", "--out", "demo")
    assert done.returncode == 0, done.stderr
    assert re.search(r"gradient of the entropy term on the actor +[\d.e-]+ +no path", done.stdout)
    assert re.search(r"healthy: Nothing wrong was found: \d+ rules", done.stdout)
    assert re.search(r"broken: The loss term 'entropy' has no gradient", done.stdout)
    assert "CRITICAL dead-term · proved · since step 0" in done.stdout
    assert done.stdout.count("CRITICAL") == 1
    assert load(tmp_path / "demo" / "broken").events("dead-term")
    assert not load(tmp_path / "demo" / "healthy").events("dead-term")


def test_the_demo_replaces_only_runs_of_a_demo(tmp_path: Path) -> None:
    (tmp_path / "mine" / "healthy").mkdir(parents=True)
    (tmp_path / "mine" / "healthy" / "thesis.tex").write_text("")
    fails_with(2, "holds more than a run", "demo", "--out", "mine")
    assert (tmp_path / "mine" / "healthy" / "thesis.tex").exists()
