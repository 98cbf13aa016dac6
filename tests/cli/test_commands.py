"""The command line as a user types it: every call is a real process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from forkserver import Done, python

from gradiometer.cli.main import run as run_command
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


def gradiometer(*arguments: str) -> Done:
    return python("-m", "gradiometer", *arguments, env=PLAIN)


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
    for verb in ("demo", "train", "labs", "clinic", "show", "metrics", "prune", "env"):
        assert re.search(rf"^  {verb} +\w", shown, re.MULTILINE)
    assert gradiometer("--version").stdout.startswith("gradiometer 0.")


def test_a_verb_has_its_options_after_the_verbs_were_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The list is shown without them, for their types take as long to read as all the rest."""
    assert run_command(["--help"]) == 0
    listed = capsys.readouterr().out
    assert run_command(["doctor", "--help"]) == 0
    assert "--fail-on" in capsys.readouterr().out
    assert run_command(["-h"]) == 0
    assert capsys.readouterr().out == listed


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
    assert (
        json.loads(gradiometer("metrics", "grad/all/norm/raw", "--json").stdout)["name"]
        == "grad/<block>/norm/raw"
    )
    fails_with(2, "did you mean 'entropy'", "metrics", "entropi")


def test_prune_keeps_the_last_sketches(run: Path) -> None:
    assert (
        json.loads(gradiometer("prune", str(run), "--keep", "1", "--json").stdout)["removed"] == 2
    )
    assert list(load(run).vector_steps("sketch/all")) == [2]
    fails_with(2, "no run", "prune", "nowhere")


def test_env_says_what_is_missing_and_how_to_get_it() -> None:
    found = json.loads(gradiometer("env", "--json").stdout)
    assert found["extras"]["core"]["numpy"]
    for extra, line in found["install"].items():
        assert "missing" in found["extras"][extra].values()
        assert line == f'pip install "gradiometer[{extra}]"'


# Each call in turn, as where `gradiometer-labs` is not installed: a module that is None is absent.
WITHOUT_LABS = """
import contextlib, io, json, sys
sys.modules["gradiometer_labs"] = None
from gradiometer.cli.main import run
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def without_labs(*calls: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each call."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LABS, json.dumps(calls)],
        capture_output=True,
        text=True,
        env=PLAIN,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_a_command_of_the_labs_says_in_a_line_that_they_are_not_installed() -> None:
    calls = [
        ("train", "cartpole", "seed=2", "--config", "x.yaml"),
        ("train", "--help"),
        ("labs", "--json"),
        ("clinic", "--quick"),
        ("analyze", "sokoban"),
    ]
    for call, found in zip(calls, without_labs(*calls), strict=True):
        said = (
            f"error: `gradiometer {call[0]}` needs gradiometer-labs, which is not installed:"
            ' pip install "gradiometer[labs]"\n'
        )
        assert found == (2, "", said)


@pytest.mark.slow
def test_without_the_labs_the_instrument_is_whole(run: Path) -> None:
    calls = [("--help",), ("show", str(run)), ("doctor", str(run)), ("serve", "--help")]
    (code, shown, _), *others = without_labs(*calls)
    assert code == 0
    assert re.search(r"^  doctor +\w", shown, re.MULTILINE)
    assert not re.search(r"^  (train|labs|clinic) +\w", shown, re.MULTILINE)
    for call, found in zip(calls[1:], others, strict=True):
        assert found[:2] == (0, gradiometer(*call).stdout)


@pytest.mark.slow
def test_without_the_labs_only_a_checkpoint_of_theirs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").write_bytes(b"")
    theirs, nowhere = without_labs(
        ("variance", "--ckpt_path", "last.ckpt"), ("variance", "--ckpt_path", "no.ckpt")
    )
    assert theirs[0] == nowhere[0] == 2
    assert "last.ckpt, unless rl4co wrote it, needs gradiometer-labs" in theirs[2]
    assert "there is no checkpoint no.ckpt" in nowhere[2]
