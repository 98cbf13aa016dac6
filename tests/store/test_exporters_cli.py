"""`gradiometer export` as a user types it, in a process of its own."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from forkserver import Done, python

from gradiometer.cli.main import run as run_command
from gradiometer.records import Event, Row, Table
from gradiometer.store.importers import load
from gradiometer.store.writer import Writer

PLAIN = {
    **os.environ,
    "NO_COLOR": "1",
    "TERM": "dumb",
    "COLUMNS": "200",
    "TERMINAL_WIDTH": "200",
    "WANDB_SILENT": "true",
}


def gradiometer(*arguments: str) -> Done:
    return python("-m", "gradiometer", *arguments, env=PLAIN)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Writer(tmp_path / "ppo") as writer:
        for step in range(5):
            writer.put(
                Row(
                    step=step,
                    wall_time=1.0,
                    values={"loss": math.nan if step == 3 else step / 3, "kl": 1.0},
                )
            )
        writer.put(Table(step=0, name="states", content={"a": "finite"}))
        writer.put(Event(step=0, kind="experts", message="none"))
    return tmp_path / "ppo"


@pytest.mark.slow
@pytest.mark.parametrize("to", ["csv", "parquet", "jsonl", "tensorboard", "wandb"])
def test_each_format_says_what_was_written_and_what_it_cannot_hold(
    run: Path,
    tmp_path: Path,
    to: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = gradiometer("export", "ppo", "--to", to, "-o", f"out/x.{to}")
    assert done.returncode == 0, done.stderr
    progress = re.compile(
        r"exporting ppo: \d+/5 steps"
    )  # only where the machine is so busy that it takes seconds
    assert [line for line in done.stderr.splitlines() if not progress.fullmatch(line)] == []
    lines = done.stdout.splitlines()
    assert lines[0] == "ppo: 2 series at 5 steps, 10 values, 1 of them NaN"
    cannot = [line for line in lines if "cannot hold" in line]
    assert cannot == {
        "csv": ["csv cannot hold 1 tables, 1 events: they stay in the run"],
        "parquet": ["parquet cannot hold 1 tables, 1 events: they stay in the run"],
        "wandb": ["wandb cannot hold 1 events: they stay in the run"],
    }.get(to, [])
    assert f"kept in out/x.{to}" in lines
    assert (f"to upload it: wandb sync out/x.{to}" in lines) == (to == "wandb")
    # In this process: a second one would only import the format's library once more.
    monkeypatch.setenv("WANDB_SILENT", "true")
    again = ["export", "ppo", "--to", to, "-o", f"out/x.{to}", "--overwrite", "--json"]
    assert run_command(again) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["run"], told["to"], told["file"]) == ("ppo", to, f"out/x.{to}")
    assert (told["series"], told["steps"], told["values"], told["nans"]) == (2, 5, 10, 1)
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == [f"x.{to}"]
    if to != "parquet":
        assert load(tmp_path / "out" / f"x.{to}").series("kl")[1].tolist() == [1.0] * 5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere", "--to", "csv", "-o", "x.csv"), "no run at"),
        (
            ("ppo", "--to", "excel", "-o", "x"),
            r"unknown format 'excel'.*csv, jsonl.*dynamics-db",
        ),
        (("ppo", "--to", "parqet", "-o", "x"), "did you mean 'parquet'"),
        (("ppo", "--to", "csv", "-o", ""), "-o must name a file"),
        (("ppo", "--to", "csv", "-o", "taken.csv"), "already exists.*--overwrite"),
        (("ppo", "--to", "csv", "-o", "ppo/run.db", "--overwrite"), "the place of a run"),
        (("ppo", "--to", "tensorboard", "-o", "ppo", "--overwrite"), "holds other files"),
        (("ppo", "--to", "wandb", "-o", "ppo", "--overwrite"), "holds other files"),
        (("ppo", "--to", "csv", "-o", "taken.csv/x.csv"), "cannot be made"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    run: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    (tmp_path / "taken.csv").write_text("mine")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    done = gradiometer("export", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(says, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_no_tracker_is_imported_for_a_csv(run: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from gradiometer.cli.main import run;"
        "run(['export', 'ppo', '--to', 'csv', '-o', 'x.csv', '--json']);"
        "print({m.partition('.')[0] for m in sys.modules}, file=sys.stderr)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stderr
    for name in ("torch", "wandb", "tensorboard", "pyarrow", "pandas"):
        assert repr(name) not in loaded
