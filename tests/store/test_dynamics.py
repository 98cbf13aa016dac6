"""The wide table of experts: the view in a run, files of the source's schema, and the way from one
to the other."""

from __future__ import annotations

import math
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradiometer.errors import (
    GradiometerWarning,
    NotARun,
    RunDamaged,
    RunExists,
    RunLocked,
    RunNotFound,
    UsageError,
)
from gradiometer.metrics import CATALOGUE
from gradiometer.records import Event, Row, Vector
from gradiometer.store import database
from gradiometer.store.batches import Batches, prune
from gradiometer.store.dynamics import MOST_COLUMNS, columns_of, experts_of, fitting, series_of
from gradiometer.store.exporters import export_dynamics
from gradiometer.store.formats.dynamics_db import read_dynamics_db
from gradiometer.store.import_log import import_log
from gradiometer.store.importers import identify, open_log
from gradiometer.store.locks import WriterLock
from gradiometer.store.logs import Log
from gradiometer.store.reader import Run, load
from gradiometer.store.writer import Writer

# As the source gives them, word for word.
FULL = """CREATE TABLE dynamics (
    step INTEGER PRIMARY KEY,
    expert_0_top_norm REAL, expert_0_bottom_norm REAL, expert_0_middle_norm REAL, expert_0_clean_norm REAL,
    expert_1_top_norm REAL, expert_1_bottom_norm REAL, expert_1_middle_norm REAL, expert_1_perturbed_norm REAL,
    expert_1_divergence REAL,
    expert_2_top_norm REAL, expert_2_bottom_norm REAL, expert_2_middle_norm REAL, expert_2_perturbed_norm REAL,
    expert_2_divergence REAL)"""
SHORT = """CREATE TABLE dynamics (
    step INTEGER PRIMARY KEY,
    expert_0_top_norm REAL, expert_0_bottom_norm REAL, expert_0_middle_norm REAL,
    expert_1_top_norm REAL, expert_1_bottom_norm REAL, expert_1_middle_norm REAL, expert_1_divergence REAL)"""
WIDE = [
    line.split()[0] for line in FULL.partition("(")[2].rstrip(")").replace("\n", " ").split(",")
]
LONG = {
    "expert_0_top_norm": "grad/expert/0/top_norm",
    "expert_0_clean_norm": "grad/expert/0/norm",
    "expert_1_middle_norm": "grad/expert/1/middle_norm",
    "expert_2_perturbed_norm": "grad/expert/2/norm",
    "expert_2_divergence": "grad/expert/2/divergence",
}


def measured(experts: Iterable[int], step: int = 0) -> dict[str, float]:
    """Distinct values of every column of some experts."""
    names = [series for expert in experts for series in columns_of(expert).values()]
    return {name: step + place / 7 for place, name in enumerate(names, 1)}


def row(step: int, values: Mapping[str, float]) -> Row:
    return Row(step=step, wall_time=0.0, values=values)


def keep(folder: Path, rows: Mapping[int, Mapping[str, float]]) -> Path:
    with Writer(folder) as writer:
        for step, values in rows.items():
            writer.put(row(step, values))
    return folder


def query(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(statement).fetchall()


def view_columns(folder: Path) -> list[str]:
    return [
        name
        for (name,) in query(folder / "run.db", "SELECT name FROM pragma_table_info('dynamics')")
    ]


def made(path: Path, schema: str, *rows: tuple[Any, ...], also: str = "") -> Path:
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(f"{schema};{also}")
        for cells in rows:
            db.execute(f"INSERT INTO dynamics VALUES ({', '.join('?' * len(cells))})", cells)
    return path


def all_series(run: Run | Log) -> dict[str, list[tuple[int, float]]]:
    return {
        name: list(zip(*(part.tolist() for part in run.series(name)), strict=True))
        for name in run.names()
    }


# The mapping


def test_the_columns_are_the_sources_in_its_order() -> None:
    assert ["step", *columns_of(0), *columns_of(1), *columns_of(2)] == WIDE
    for column, series in LONG.items():
        assert series_of(column) == series
    for expert in (0, 1, 17, 399_999_999):
        for column, series in columns_of(expert).items():
            assert series_of(column) == series
            assert experts_of([series]) == {expert}


@pytest.mark.parametrize(
    "column",
    [
        "step",
        "expert_1_clean_norm",
        "expert_0_perturbed_norm",
        "expert_0_divergence",
        "expert_01_top_norm",
        "expert_-1_top_norm",
        "expert_1_top_rms",
        "expert_1_",
        "xexpert_1_top_norm",
        f"expert_{'9' * 5000}_top_norm",
    ],
)
def test_what_is_no_column_of_the_source_has_no_series(column: str) -> None:
    assert series_of(column) is None


def test_series_outside_the_table_name_no_expert() -> None:
    outside = [
        "grad/expert/3/top_rms",
        "grad/expert/3/routing_weight",
        "grad/layer.a/expert/3/top_norm",
        "loss",
        "grad/expert/0/divergence",
        "grad/expert/math/top_norm",
        "grad/expert/03/top_norm",
        f"grad/expert/{'9' * 5000}/norm",
        "grad/expert/'; DROP TABLE points; --/norm",
    ]
    assert experts_of(outside) == set()


# The view


def test_the_view_shows_the_series_under_the_sources_names(folder: Path) -> None:
    rows = {
        step: measured((0, 1, 2), step) | {"loss": 1.0, "grad/layer.a/expert/0/norm": 9.0}
        for step in (0, 10, 20)
    }
    keep(folder, rows)
    assert view_columns(folder) == WIDE
    found = query(folder / "run.db", "SELECT * FROM dynamics")
    assert found == [(step, *measured((0, 1, 2), step).values()) for step in (0, 10, 20)]


def test_a_run_without_experts_has_no_view(folder: Path) -> None:
    values = {
        "loss": 1.0,
        "grad/all/norm/raw": 1.0,
        "grad/expert/0/routing_weight": 0.5,
        "router/all/grad": 1.0,
    }
    keep(folder, {0: values})
    assert query(folder / "run.db", "SELECT name FROM sqlite_master WHERE type = 'view'") == []


def test_a_step_without_experts_has_no_row_and_a_missing_value_is_null(folder: Path) -> None:
    routed = {"grad/expert/1/routing_weight": 0.5}
    keep(
        folder,
        {
            0: {"loss": 1.0},
            1: {"grad/expert/0/top_norm": 2.0},
            2: routed,
            3: {"grad/expert/1/norm": math.nan},
            4: {"grad/expert/1/norm": math.inf},
        },
    )
    columns = "step, expert_0_top_norm, expert_0_clean_norm, expert_1_perturbed_norm"
    found = query(folder / "run.db", f"SELECT {columns} FROM dynamics")
    assert found == [(1, 2.0, None, None), (3, None, None, None), (4, None, None, math.inf)]


def test_experts_added_during_training_are_new_columns_and_null_before(folder: Path) -> None:
    with Writer(folder) as writer:
        writer.put(row(0, measured((0, 1))))
        writer.flush()
        assert view_columns(folder) == WIDE[:10]
        writer.put(row(10, measured((0, 1, 12, 2))))
        writer.put(row(20, measured((0, 1))))
    assert view_columns(folder) == [*WIDE, *columns_of(12)]
    found = query(
        folder / "run.db", "SELECT step, expert_1_divergence, expert_2_divergence FROM dynamics"
    )
    values = measured((0, 1, 12, 2))
    at = values["grad/expert/1/divergence"]
    assert found == [(0, at, None), (10, at, values["grad/expert/2/divergence"]), (20, at, None)]


def test_a_reader_that_is_open_when_experts_come_sees_them_at_once(folder: Path) -> None:
    with Writer(folder) as writer:
        writer.put(row(0, measured((0,))))
        writer.flush()
        with closing(sqlite3.connect(folder / "run.db", isolation_level=None)) as db:
            assert len(db.execute("SELECT * FROM dynamics").fetchone()) == 5
            db.execute("BEGIN")
            db.execute("SELECT count(*) FROM series").fetchone()
            writer.put(row(1, measured((0, 1))))
            writer.flush()
            assert (
                len(db.execute("SELECT * FROM dynamics").fetchone()) == 5
            )  # of the moment its transaction began
            assert db.execute("SELECT count(*) FROM series").fetchone() == (4,)
            db.execute("COMMIT")
            assert [len(found) for found in db.execute("SELECT * FROM dynamics")] == [10, 10]


def test_a_batch_that_fails_leaves_neither_series_nor_view(folder: Path) -> None:
    folder.mkdir()
    with closing(database.open_for_writing(folder / "run.db")) as db:
        batches = Batches(db)
        with pytest.raises(ValueError, match="could not convert"):
            batches.write([row(0, measured((0,)) | {"bad": "words"})])  # type: ignore[dict-item]
        assert db.execute("SELECT count(*) FROM series").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE type = 'view'").fetchone() == (
            0,
        )
        batches.write([row(0, measured((0,)))])
        assert len(db.execute("SELECT * FROM dynamics").fetchall()) == 1


def test_a_resumed_run_shows_the_experts_it_still_has(folder: Path) -> None:
    keep(
        folder,
        {0: {"loss": 1.0}, 10: measured((0, 1)), 20: measured((0, 1, 2)), 30: measured((0, 1, 2))},
    )
    Writer(folder, resume=20).close()
    assert [step for (step,) in query(folder / "run.db", "SELECT step FROM dynamics")] == [10, 20]
    Writer(folder, resume=10).close()
    assert view_columns(folder) == WIDE[:10]
    Writer(folder, resume=9).close()
    assert view_columns(folder) == []
    with Writer(
        folder, resume=9
    ) as writer:  # the numbers of the removed series are given to others
        writer.put(row(10, {"reward": 5.0, "entropy": 6.0} | measured((0,))))
    assert query(folder / "run.db", "SELECT * FROM dynamics") == [(10, *measured((0,)).values())]


def test_an_old_run_without_the_view_opens_and_gets_it_when_it_is_resumed(folder: Path) -> None:
    keep(folder, {0: measured((0, 1))})
    with closing(sqlite3.connect(folder / "run.db")) as db:
        db.execute("DROP VIEW dynamics")
    with load(folder) as run:
        assert run.names() == sorted(measured((0, 1)))
        assert export_dynamics(run, folder / "dynamics.db").steps == 1
    Writer(folder, resume=0).close()
    assert view_columns(folder) == WIDE[:10]


def test_pruning_keeps_the_view(folder: Path) -> None:
    with Writer(folder) as writer:
        for step in range(5):
            writer.put(row(step, measured((0, 1), step)))
            writer.put(Vector(step=step, name="histogram/expert/0", values=np.arange(37)))
    before = query(folder / "run.db", "SELECT * FROM dynamics")
    assert prune(folder, keep=1) == 4
    assert query(folder / "run.db", "SELECT * FROM dynamics") == before


@pytest.mark.slow
def test_as_many_experts_as_sqlite_has_columns_for_are_shown_and_the_rest_is_said(
    folder: Path, tmp_path: Path
) -> None:
    assert fitting(range(400)) == (list(range(400)), [])
    assert fitting(range(402)) == (list(range(400)), [400, 401])
    assert fitting(range(1, 401)) == (list(range(1, 400)), [400])
    with Writer(folder) as writer:
        writer.put(row(0, measured(range(400))))
        writer.flush()
        assert len(view_columns(folder)) == MOST_COLUMNS
        writer.put(row(1, measured(range(402))))
        writer.flush()
        writer.put(row(2, measured(range(403))))
    with load(folder) as run:
        (event,) = run.events()
        assert (event.step, event.kind) == (1, "dynamics-full")
        assert len(run.names()) == len(measured(range(403)))
        with pytest.warns(
            GradiometerWarning, match="3 experts are not exported: the 2000 columns .* hold 400"
        ):
            done = export_dynamics(run, tmp_path / "x.db")
    (shown,) = query(folder / "run.db", "SELECT * FROM dynamics WHERE step = 1")
    assert shown == (1, *list(measured(range(402)).values())[: MOST_COLUMNS - 1])
    assert (len(done.experts), done.columns, done.left_out) == (400, 1999, (400, 401, 402))
    assert query(tmp_path / "x.db", "SELECT * FROM dynamics")[1] == shown


@pytest.mark.slow
def test_expert_series_take_no_more_than_30_bytes_a_value(folder: Path) -> None:
    quantities = [
        name.rpartition("/")[2] for name in CATALOGUE if name.startswith("grad/<layer>/expert/")
    ]
    assert len(quantities) == 16
    names = [
        f"grad/layer.blocks.{layer}.moe/expert/{expert}/{quantity}"
        for layer in range(8)
        for expert in range(8)
        for quantity in quantities
    ]
    drawn = np.random.default_rng(0).lognormal(size=(200, len(names)))
    with Writer(folder) as writer:
        for number, values in enumerate(drawn):
            writer.put(row(number * 10, dict(zip(names, values.tolist(), strict=True))))
            if number % 10 == 9:
                writer.flush()
    assert writer.dropped == 0
    assert (folder / "run.db").stat().st_size / drawn.size <= 30


# Reading a file of the source


def test_a_file_of_the_source_reads_like_a_run(tmp_path: Path) -> None:
    cells = tuple(range(1, 15))
    folder = tmp_path / "c0ffee"
    folder.mkdir()
    path = made(folder / "dynamics.db", FULL, (20, *[None] * 13, 7.5), (10, *cells))
    for opened in (read_dynamics_db(path), open_log(path), open_log(folder)):
        assert isinstance(opened, Log)
        assert (opened.name, opened.newest_step) == ("c0ffee", 20)
        assert opened.names() == sorted(measured((0, 1, 2)))
        assert opened.series("grad/expert/0/norm")[1].tolist() == [4.0]
        steps, values = opened.series("grad/expert/2/divergence")
        assert (steps.tolist(), values.tolist()) == ([10, 20], [14.0, 7.5])
        assert opened.facts["imported"]["format"] == "dynamics-db"
        assert opened.left_out == ()


def test_the_short_table_of_the_sources_own_logger_has_no_norms_of_whole_experts(
    tmp_path: Path,
) -> None:
    log = read_dynamics_db(made(tmp_path / "dynamics.db", SHORT, (0, 1, 2, 3, 4, 5, 6, 7)))
    expected = set(measured((0, 1))) - {"grad/expert/0/norm", "grad/expert/1/norm"}
    assert set(log.names()) == expected


def test_the_id_of_a_dynamics_db_stays_while_it_grows(tmp_path: Path) -> None:
    path = made(tmp_path / "a.db", SHORT, (0, 1, 2, 3, 4, 5, 6, 7))
    before = identify(read_dynamics_db(path))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("ALTER TABLE dynamics ADD COLUMN expert_2_top_norm REAL")
        db.execute("INSERT INTO dynamics (step) VALUES (1)")
    assert identify(read_dynamics_db(path)) == before


def test_columns_and_tables_the_source_does_not_have_are_named_in_a_warning(tmp_path: Path) -> None:
    schema = SHORT[:-1] + ', Loss REAL, note TEXT, "expert_1_clean_norm" REAL, "odd "" name" REAL)'
    path = made(
        tmp_path / "dynamics.db",
        schema,
        (0, 1, 2, 3, 4, 5, 6, 7, 0.5, "words", 8, 9),
        also="CREATE TABLE meta (x)",
    )
    with pytest.warns(GradiometerWarning) as said:
        log = read_dynamics_db(path)
    messages = [str(warning.message) for warning in said]
    assert (
        'kept under their own names: loss, note, expert_1_clean_norm, odd " name'
        in messages[0].lower()
    )
    assert "other tables in it are not read: meta" in messages[1]
    assert log.series("Loss")[1].tolist() == [0.5]
    assert log.series('odd " name')[1].tolist() == [9.0]
    assert "grad/expert/1/norm" not in log.names()
    assert log.left_out == ("note",)


def test_columns_are_found_however_they_are_written(tmp_path: Path) -> None:
    log = read_dynamics_db(
        made(tmp_path / "a.db", "CREATE TABLE dynamics (STEP, Expert_0_Top_Norm)", (3, 1.5))
    )
    assert all_series(log) == {"grad/expert/0/top_norm": [(3, 1.5)]}
    with pytest.raises(UsageError, match="Expert_0_Top_Norm holds 'x'"):
        read_dynamics_db(
            made(tmp_path / "b.db", "CREATE TABLE dynamics (STEP, Expert_0_Top_Norm)", (3, "x"))
        )


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        (
            "CREATE TABLE dynamics (step INTEGER, expert INTEGER, norm REAL)",
            r"table dynamics \(step, expert, norm\)",
        ),
        (
            "CREATE TABLE dynamics (epoch INTEGER, expert_0_top_norm REAL)",
            r"table dynamics \(epoch, expert_0_top_norm\)",
        ),
        (
            "CREATE TABLE metrics (step, loss); CREATE TABLE runs (id)",
            r"table metrics \(step, loss\), table runs \(id\)",
        ),
        ("CREATE TABLE a (x); DROP TABLE a", "found: no table"),
        (
            "; ".join(
                f"CREATE TABLE t{n} ({', '.join(f'c{i}' for i in range(20))})" for n in range(9)
            ),
            r"c11 and 8 more\), table t1 .*table t4 \S+ .* and 4 more",
        ),
    ],
)
def test_a_wrong_schema_is_shown_beside_the_expected_one(
    tmp_path: Path, schema: str, found: str
) -> None:
    path = made(tmp_path / "dynamics.db", schema)
    for opened in (read_dynamics_db, open_log):
        with pytest.raises(
            NotARun,
            match=rf"{found}.*expected: table dynamics \(step, expert_0_top_norm, .*divergence",
        ):
            opened(path)


LOOSE = "CREATE TABLE dynamics (step, expert_0_top_norm)"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "a table dynamics and no rows in it.*after backward"),
        ([(0, 1.0), (0, 2.0)], "step 0 is there twice"),
        ([(1, 1.0), (1.0, 2.0)], "step 1 is there twice"),
        ([(-3, 1.0)], "step -3 is negative"),
        ([(1.5, 1.0)], "whole number, not 1.5"),
        ([("ten", 1.0)], "whole number, not 'ten'"),
        ([(None, 1.0)], "whole number, not None"),
        ([(math.inf, 1.0)], "whole number, not inf"),
        ([(1e300, 1.0)], "does not fit into 64 bits"),
        (
            [(0, 1.0), (7, "0.5 or so")],
            "step 7: expert_0_top_norm holds '0.5 or so' where a number belongs",
        ),
        ([(7, b"\x00\xff")], "step 7: expert_0_top_norm holds b'"),
        ([(7, "x" * 1000)], "holds 'x{50,60} where"),
    ],
)
def test_a_table_with_wrong_cells_is_an_error_that_says_where(
    tmp_path: Path, rows: list[Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as problem:
        read_dynamics_db(made(tmp_path / "dynamics.db", LOOSE, *rows))
    assert str(tmp_path) in str(problem.value)


def test_text_in_a_real_column_is_an_error_also_when_it_is_not_utf_8(tmp_path: Path) -> None:
    path = made(tmp_path / "dynamics.db", SHORT, (0, "words", 2, 3, 4, 5, 6, 7))
    with pytest.raises(UsageError, match="expert_0_top_norm holds 'words'"):
        read_dynamics_db(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE dynamics SET expert_0_top_norm = CAST(x'ff80' AS TEXT)")
    with pytest.raises(UsageError, match="expert_0_top_norm holds"):
        read_dynamics_db(path)


def test_what_is_no_dynamics_db_is_called_what_it_is(tmp_path: Path) -> None:
    keep(tmp_path / "run", {0: measured((0,))})
    with pytest.raises(UsageError, match=r"is a run and not a dynamics\.db: open it directly"):
        read_dynamics_db(tmp_path / "run" / "run.db")
    shutil.copy(tmp_path / "run" / "run.db", tmp_path / "dynamics.db")
    assert isinstance(open_log(tmp_path / "dynamics.db"), Run)
    with pytest.raises(NotARun, match="is a folder"):
        read_dynamics_db(tmp_path)
    with pytest.raises(RunNotFound, match=r"no dynamics\.db at"):
        read_dynamics_db(tmp_path / "gone.db")
    for name, content in (("notes.txt", "hello " * 100), ("empty.db", "")):
        (tmp_path / name).write_text(content)
        with pytest.raises(
            NotARun, match=rf"{name} is not a dynamics.db: it is (no SQLite database|an empty file)"
        ):
            read_dynamics_db(tmp_path / name)
    (tmp_path / "dynamics.db").write_text("hello")
    with pytest.raises(NotARun, match="it is no SQLite database"):
        open_log(tmp_path / "dynamics.db")


@pytest.mark.parametrize("length", [50, 100, 4096, -1])
def test_a_cut_off_dynamics_db_is_called_damaged_with_something_to_try(
    tmp_path: Path, length: int
) -> None:
    path = made(
        tmp_path / "dynamics.db", SHORT, *[(step, 1, 2, 3, 4, 5, 6, 7) for step in range(500)]
    )
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(RunDamaged, match=r"can no longer be read .*copy it again.*\.recover"):
        open_log(path)


def test_reading_a_dynamics_db_leaves_it_as_it_was(tmp_path: Path) -> None:
    path = made(tmp_path / "dynamics.db", SHORT, (0, 1, 2, 3, 4, 5, 6, 7))
    before = path.read_bytes()
    read_dynamics_db(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["dynamics.db"]


def test_a_dynamics_db_is_read_while_another_program_writes_it(tmp_path: Path) -> None:
    path = made(tmp_path / "dynamics.db", SHORT, (0, 1, 2, 3, 4, 5, 6, 7))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("INSERT INTO dynamics (step, expert_0_top_norm) VALUES (1, 2.5)")
        assert read_dynamics_db(path).newest_step == 1


# Writing one


def test_the_export_has_exactly_the_sources_schema(folder: Path, tmp_path: Path) -> None:
    keep(folder, {step: measured((0, 1, 2), step) | {"loss": 1.0} for step in range(3)})
    with load(folder) as run:
        done = export_dynamics(run, tmp_path / "new" / "dynamics.db")
    assert (done.experts, done.columns, done.steps, done.values, done.nans) == (
        (0, 1, 2),
        14,
        3,
        42,
        0,
    )
    made(tmp_path / "theirs.db", FULL)
    asked = "SELECT name, type, pk, dflt_value FROM pragma_table_info('dynamics')"
    assert query(done.file, asked) == query(tmp_path / "theirs.db", asked)
    assert query(done.file, "SELECT name FROM sqlite_master") == [("dynamics",)]
    assert query(done.file, "PRAGMA integrity_check") == [("ok",)]
    assert query(done.file, "SELECT * FROM dynamics") == query(
        folder / "run.db", "SELECT * FROM dynamics"
    )
    assert [file.name for file in done.file.parent.iterdir()] == ["dynamics.db"]


def test_the_sources_way_of_inserting_goes_on_in_an_exported_file(
    folder: Path, tmp_path: Path
) -> None:
    keep(folder, {0: measured((0, 1))})
    with load(folder) as run:
        path = export_dynamics(run, tmp_path / "dynamics.db").file
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "INSERT OR REPLACE INTO dynamics (step,expert_0_top_norm,expert_1_divergence) VALUES"
            " (?,?,?)",
            (0, 1, 2),
        )
    assert all_series(read_dynamics_db(path)) == {
        "grad/expert/0/top_norm": [(0, 1)],
        "grad/expert/1/divergence": [(0, 2)],
    }


def test_nothing_is_overwritten_unless_told_and_a_run_never(folder: Path, tmp_path: Path) -> None:
    keep(folder, {0: measured((0,))})
    shutil.copy(folder / "run.db", tmp_path / "copy.db")
    target = tmp_path / "dynamics.db"
    target.write_text("mine")
    with load(folder) as run:
        with pytest.raises(UsageError, match=r"dynamics\.db already exists"):
            export_dynamics(run, target)
        assert target.read_text() == "mine"
        (tmp_path / "dynamics.db-journal").write_text("of a crash")
        export_dynamics(run, target, overwrite=True)
        with pytest.raises(UsageError, match="is a folder: name a file in it"):
            export_dynamics(run, tmp_path, overwrite=True)
        for place in (folder / "run.db", tmp_path / "copy.db", tmp_path / "new" / "run.db"):
            with pytest.raises(RunExists, match="the place of a run"):
                export_dynamics(run, place, overwrite=True)
    assert read_dynamics_db(target).newest_step == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["copy.db", "dynamics.db", "run"]


def test_an_export_that_fails_leaves_what_was_there(folder: Path, tmp_path: Path) -> None:
    keep(folder, {step: measured((0,)) for step in range(10)})
    (tmp_path / "x.db").write_text("mine")

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with load(folder) as run, pytest.raises(KeyboardInterrupt):
        export_dynamics(run, tmp_path / "x.db", overwrite=True, progress=interrupt)
    assert (tmp_path / "x.db").read_text() == "mine"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run", "x.db"]


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_leaves_nothing(
    folder: Path, tmp_path: Path, execute: Any
) -> None:
    keep(folder, {step: measured(range(20), step) for step in range(500)})
    done = execute(
        """
        import resource
        from gradiometer.store.exporters import export_dynamics
        from gradiometer.store.importers import open_log
        from gradiometer.store.import_log import import_log
        with load(folder) as run:
            export_dynamics(run, folder.parent / "whole.db")
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            for work in (
                lambda: export_dynamics(run, folder.parent / "half.db"),
                lambda: import_log(open_log(folder.parent / "whole.db"), folder.parent / "a" / "b"),
            ):
                try:
                    work()
                except UsageError as problem:
                    print(problem)
        """,
        folder,
    )
    first, second = done.stdout.splitlines()
    assert "half.db cannot be written (" in first
    assert "a/b cannot be written (" in second
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run", "whole.db"]


def test_an_export_of_a_run_that_is_being_written_is_of_one_moment(
    folder: Path, tmp_path: Path
) -> None:
    with Writer(folder) as writer, load(folder) as run:
        writer.put(row(0, measured((0, 1))))
        writer.flush()
        with run.still():
            names = run.names()
            writer.put(row(1, measured((0, 1, 2))))
            writer.flush()
            assert run.names() == names
            assert run.newest_step == 0
        assert run.newest_step == 1
        assert export_dynamics(run, tmp_path / "x.db").values == len(measured((0, 1))) + len(
            measured((0, 1, 2))
        )


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([], "`watch` found none in the model; name them with"),
        (
            ["experts"],
            "holds no experts, so .* yet: they were found, but not measured before step 0",
        ),
        (
            ["experts", "experts-missing"],
            r"no gradient of theirs was measured \(why: experts-missing\)",
        ),
    ],
)
def test_a_run_without_experts_says_so_and_why(
    folder: Path, tmp_path: Path, events: list[str], says: str
) -> None:
    with Writer(folder) as writer:
        writer.put(row(0, {"loss": 1.0}))
        for kind in events:
            writer.put(Event(step=0, kind=kind, message=f"why: {kind}"))
    with load(folder) as run, pytest.raises(UsageError, match=says):
        export_dynamics(run, tmp_path / "x.db")
    assert not (tmp_path / "x.db").exists()


def test_a_log_without_experts_says_what_it_lacks(tmp_path: Path) -> None:
    log = Log("a.jsonl", name="a", run_id="a", rows=[(0, {"loss": 1})])
    with pytest.raises(UsageError, match="no series like grad/expert/0/top_norm"):
        export_dynamics(log, tmp_path / "x.db")
    log = Log("a.jsonl", name="a", run_id="a", rows=[(-1, measured((0,)))])
    with pytest.raises(UsageError, match="step -1 is negative"):
        export_dynamics(log, tmp_path / "x.db")


def test_a_recorded_nan_becomes_null_and_is_counted(folder: Path, tmp_path: Path) -> None:
    keep(
        folder,
        {
            0: {"grad/expert/0/norm": math.nan, "grad/expert/1/norm": 1.0},
            1: {"grad/expert/0/norm": math.nan},
        },
    )
    with load(folder) as run:
        done = export_dynamics(run, tmp_path / "x.db")
    assert (done.nans, done.values, done.steps) == (2, 1, 2)
    log = read_dynamics_db(tmp_path / "x.db")
    assert all_series(log) == {"grad/expert/1/norm": [(0, 1.0)]}
    assert log.newest_step == 1


# There and back


@st.composite
def trainings(draw: st.DrawFn) -> dict[int, dict[str, float]]:
    """Some experts, some steps, some of their values; floats of every size, infinities, no NaN."""
    experts = draw(
        st.sets(st.integers(0, 30) | st.integers(0, 999_999_999), min_size=1, max_size=4)
    )
    names = [name for expert in experts for name in columns_of(expert).values()]
    values = st.dictionaries(st.sampled_from(names), st.floats(allow_nan=False), min_size=1)
    steps = st.integers(0, 50) | st.integers(0, 2**63 - 1)
    return draw(st.dictionaries(steps, values, min_size=1, max_size=8))


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=trainings())
def test_a_run_that_goes_through_a_dynamics_db_comes_back_the_same(
    rows: dict[int, dict[str, float]],
) -> None:
    with tempfile.TemporaryDirectory() as place:
        first, file, second = (Path(place, name) for name in ("first", "dynamics.db", "second"))
        keep(first, rows)
        with load(first) as run:
            done = export_dynamics(run, file)
            before = all_series(run)
        kept = import_log(open_log(file), second)
        with load(second) as run:
            assert all_series(run) == before
            assert run.steps()["step"].tolist() == sorted(rows)
        assert (kept.steps, kept.points, kept.unknown) == (len(rows), done.values, ())
        wide = [query(folder / "run.db", "SELECT * FROM dynamics") for folder in (first, second)]
        assert wide[0] == wide[1] == query(file, "SELECT * FROM dynamics ORDER BY step")


def test_an_imported_run_says_where_it_comes_from(tmp_path: Path) -> None:
    path = made(tmp_path / "prism.db", SHORT, (5, 1, 2, 3, 4, 5, 6, 7), (9, *[None] * 7))
    log = read_dynamics_db(path)
    kept = import_log(log, tmp_path / "runs" / "prism")
    assert (kept.format, kept.series, kept.steps, kept.points) == ("dynamics-db", 7, 2, 7)
    assert (kept.first_step, kept.last_step, kept.tables) == (5, 9, 0)
    with load(tmp_path / "runs" / "prism") as run:
        assert identify(run) == log.run_id
        assert run.facts["imported"]["log"] == str(path)
        assert run.newest_step == 9
        assert np.isnan(run.steps()["wall_time"]).all()
        (event,) = run.events()
        assert (event.kind, event.step) == ("imported", 5)
    assert [file.name for file in (tmp_path / "runs" / "prism").iterdir()] == ["run.db"]


def test_an_import_goes_only_where_no_run_is_and_only_from_a_log(tmp_path: Path) -> None:
    keep(tmp_path / "run", {})
    log = Log("a.jsonl", name="a", run_id="a", rows=[(0, {"loss": 1})])
    before = (tmp_path / "run" / "run.db").read_bytes()
    with pytest.raises(RunExists, match="holds a run already"):
        import_log(log, tmp_path / "run")
    assert (tmp_path / "run" / "run.db").read_bytes() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(NotARun, match="is a file"):
        import_log(log, tmp_path / "file")
    with (
        load(tmp_path / "run") as run,
        pytest.raises(UsageError, match="is a run already: open it directly"),
    ):
        import_log(run, tmp_path / "other")
    (tmp_path / "busy").mkdir()
    lock = WriterLock(tmp_path / "busy")
    with pytest.raises(RunLocked):
        import_log(log, tmp_path / "busy")
    lock.release()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.tex").write_text("")
    import_log(log, tmp_path / "notes")
    assert sorted(file.name for file in (tmp_path / "notes").iterdir()) == ["run.db", "thesis.tex"]


def test_an_import_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    log = Log("a.jsonl", name="a", run_id="a", rows=[(step, {"loss": 1}) for step in range(10)])
    with pytest.raises(KeyboardInterrupt):
        import_log(log, tmp_path / "runs" / "a", progress=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_large_log_is_imported_in_parts_and_nothing_is_lost(tmp_path: Path) -> None:
    values = {f"x{place}": float(place) for place in range(1000)}
    log = Log("a.jsonl", name="a", run_id="a", rows=[(step, values) for step in range(250)])
    told: list[tuple[int, int]] = []
    kept = import_log(log, tmp_path / "a", progress=lambda done, total: told.append((done, total)))
    assert told == [(100, 250), (200, 250), (250, 250)]
    assert (kept.points, len(kept.unknown)) == (250_000, 1000)
    with load(tmp_path / "a") as run:
        assert all(summary.count == 250 for summary in run.summaries())
