"""`export` and `import` as a user types them: every call is a real process."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from forkserver import Done, python

from gradiometer.records import Row
from gradiometer.store.dynamics import columns_of
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer

PLAIN = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200", "TERMINAL_WIDTH": "200"}
NAMES = [name for expert in (0, 1) for name in columns_of(expert).values()]


def gradiometer(*arguments: str) -> Done:
    return python("-m", "gradiometer", *arguments, env=PLAIN)


def fails_with(says: str, *arguments: str) -> None:
    done = gradiometer(*arguments)
    assert done.returncode == 2
    assert re.search(says, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Writer(tmp_path / "runs" / "prism") as writer:
        for step in (0, 10):
            values = {name: step + place / 3 for place, name in enumerate(NAMES)}
            values["grad/expert/1/norm"] = float("nan") if step else 1.0
            writer.put(Row(step=step, wall_time=0.0, values={**values, "loss": 1.0}))
    return tmp_path / "runs" / "prism"


def test_export_writes_a_dynamics_db_and_says_what_is_in_it(run: Path, tmp_path: Path) -> None:
    done = gradiometer("export", str(run), "--to", "dynamics-db", "-o", "dynamics.db")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 experts at 2 steps, 9 columns, 17 values\n" in done.stdout
    assert "1 recorded NaN are NULL" in done.stdout
    assert "kept in dynamics.db" in done.stdout
    with closing(sqlite3.connect(tmp_path / "dynamics.db")) as db:
        assert db.execute(
            "SELECT step, expert_0_clean_norm, expert_1_perturbed_norm FROM dynamics"
        ).fetchall() == [
            (0, 1.0, 1.0),
            (10, 11.0, None),
        ]


def test_export_overwrites_only_when_told(run: Path, tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("mine")
    call = ("export", str(run), "--to", "dynamics-db", "-o", "x.db")
    fails_with(r"x\.db already exists", *call)
    assert (tmp_path / "x.db").read_text() == "mine"
    told = json.loads(gradiometer(*call, "--overwrite", "--json").stdout)
    assert told["file"] == "x.db"
    assert (told["experts"], told["steps"], told["columns"], told["nans"], told["left_out"]) == (
        [0, 1],
        2,
        9,
        1,
        [],
    )


@pytest.mark.slow
def test_export_refuses_what_it_cannot_write(run: Path, tmp_path: Path) -> None:
    with Writer(tmp_path / "plain") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"loss": 1.0}))
    fails_with(
        "plain.* holds no experts.*experts=", "export", "plain", "--to", "dynamics-db", "-o", "x.db"
    )
    fails_with("no run at", "export", "nowhere", "--to", "dynamics-db", "-o", "x.db")
    fails_with(
        "unknown format 'dynamics'; did you mean 'dynamics-db'",
        "export",
        str(run),
        "--to",
        "dynamics",
        "-o",
        "x",
    )
    fails_with("Missing option", "export", str(run), "--to", "dynamics-db")
    fails_with("-o must name a file", "export", str(run), "--to", "dynamics-db", "-o", "")
    fails_with(
        "the place of a run",
        "export",
        str(run),
        "--to",
        "dynamics-db",
        "-o",
        str(run / "run.db"),
        "--overwrite",
    )
    assert [path.name for path in tmp_path.glob("x*")] == []


def test_import_makes_a_run_that_is_the_exported_one(run: Path, tmp_path: Path) -> None:
    gradiometer("export", str(run), "--to", "dynamics-db", "-o", "dynamics.db")
    done = gradiometer("import", "dynamics.db", "-o", "runs/back")
    assert (done.returncode, done.stderr) == (0, "")
    assert "dynamics.db: dynamics-db, 9 series at 2 steps (0 to 10), 17 values\n" in done.stdout
    with load(run) as before, load(tmp_path / "runs" / "back") as after:
        assert set(after.names()) == set(NAMES)
        for name in set(NAMES) - {"grad/expert/1/norm"}:
            assert [part.tolist() for part in after.series(name)] == [
                part.tolist() for part in before.series(name)
            ]
        assert after.series("grad/expert/1/norm")[0].tolist() == [0]
    fails_with("holds a run already", "import", "dynamics.db", "-o", "runs/back")


def test_import_of_a_jsonl_names_what_the_catalogue_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"step": 1, "actor/entropy": 0.5, "my/own": 2, "note": "words"}\n'
    )
    done = gradiometer("import", "a.jsonl", "-o", "runs/a")
    assert "not in the catalogue, kept under their own names: my/own\n" in done.stdout
    assert "left out, being neither numbers nor tables: note\n" in done.stdout
    told = json.loads(gradiometer("import", "a.jsonl", "-o", "runs/b", "--json").stdout)
    assert told["run"] == "runs/b"
    assert (told["format"], told["series"], told["steps"], told["points"]) == ("jsonl", 2, 1, 2)
    assert (told["unknown"], told["left_out"]) == (["my/own"], ["note"])
    shown = gradiometer("show", "runs/a").stdout
    assert (
        "imported from a.jsonl: 2 series; left out, being neither numbers nor tables: note" in shown
    )


def test_import_reports_odd_columns_in_a_line_and_a_wrong_schema_as_an_error(
    tmp_path: Path,
) -> None:
    with closing(sqlite3.connect(tmp_path / "dynamics.db")) as db, db:
        db.execute(
            "CREATE TABLE dynamics (step INTEGER PRIMARY KEY, expert_0_top_norm REAL, mystery REAL)"
        )
        db.execute("INSERT INTO dynamics VALUES (0, 1, 2)")
    with closing(sqlite3.connect(tmp_path / "wrong.db")) as db, db:
        db.execute("CREATE TABLE gradients (step INTEGER, norm REAL)")
    done = gradiometer("import", "dynamics.db", "-o", "runs/a", "--json")
    assert (
        done.stderr
        == "warning: dynamics.db: not in the table of the source, kept under their own names:"
        " mystery\n"
    )
    assert json.loads(done.stdout)["unknown"] == ["mystery"]
    fails_with(
        r"found: table gradients \(step, norm\); expected: table dynamics \(step,",
        "import",
        "wrong.db",
        "-o",
        "b",
    )
    assert not (tmp_path / "b").exists()


def test_import_refuses_what_is_no_log(run: Path, tmp_path: Path) -> None:
    fails_with("is a run already", "import", str(run), "-o", "other")
    fails_with("no run at", "import", "nowhere.jsonl", "-o", "other")
    fails_with("-o must name the folder", "import", str(run), "-o", "")
    (tmp_path / "notes.txt").write_text("hello")
    fails_with("not a run", "import", "notes.txt", "-o", "other")
    assert not (tmp_path / "other").exists()


def test_neither_needs_torch() -> None:
    code = (
        "import sys, gradiometer.cli.export, gradiometer.cli.import_; print('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        == "False\n"
    )
