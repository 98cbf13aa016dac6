"""The commands of the labs as a user types them: every call is a real process."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from forkserver import Done, python

from gradiometer.store.reader import load

pytestmark = pytest.mark.slow

PLAIN = {
    **os.environ,
    "NO_COLOR": "1",
    "TERM": "dumb",
    "COLUMNS": "200",
    "TERMINAL_WIDTH": "200",
    "OMP_NUM_THREADS": "1",
}


def gradiometer(*arguments: str) -> Done:
    return python("-m", "gradiometer", *arguments, env=PLAIN)


def fails_with(code: int, says: str, *arguments: str) -> None:
    done = gradiometer(*arguments)
    assert done.returncode == code
    assert re.search(says, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_labs_lists_labs_and_faults() -> None:
    found = {lab["name"]: lab for lab in json.loads(gradiometer("labs", "--json").stdout)["labs"]}
    assert {"cartpole", "sokoban", "tsp"} <= set(found)
    assert (found["sokoban"]["length"], found["tsp"]["length"]) == (
        "trainer.total_training_steps",
        "steps",
    )
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
    call = [
        sys.executable,
        "-m",
        "gradiometer",
        "train",
        "cartpole",
        "run=cut",
        "total_steps=10000000",
    ]
    with subprocess.Popen(call, env=PLAIN, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 60
            while not _has_points(tmp_path / "cut") and time.monotonic() < deadline:
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert [event.kind for event in load(tmp_path / "cut").events()] == ["exception"]
    assert os.listdir(tmp_path / "cut") == ["run.db"]


def _has_points(run: Path) -> bool:
    """Whether a training is under way, and not only starting."""
    try:
        with closing(sqlite3.connect(f"file:{run / 'run.db'}?mode=ro", uri=True)) as db:
            return bool(db.execute("SELECT 1 FROM points LIMIT 1").fetchall())
    except sqlite3.OperationalError:  # no file yet, or no tables
        return False
