"""The file of a run that was damaged, changed or made by somebody else."""

from __future__ import annotations

import errno
import io
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradiometer.cli.main import run as run_command
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.errors import GradiometerWarning, RunDamaged, RunLocked, UsageError
from gradiometer.records import Row
from gradiometer.store import checksums, database
from gradiometer.store import writer as writing
from gradiometer.store.batches import Batches, prune
from gradiometer.store.reader import Run, load
from gradiometer.store.writer import RecordQueue, Writer

pytestmark = pytest.mark.filterwarnings("ignore::gradiometer.errors.GradiometerWarning")


def contents(run: Run) -> dict[str, Any]:
    """All that a reader gives, by place."""
    found: dict[str, Any] = {}
    for name in run.names():
        for step, value in zip(*run.series(name), strict=True):
            found[f"{name} {step}"] = value
    columns = run.steps()
    for row in zip(*columns.values(), strict=True):
        found[f"step {row[0]}"] = tuple(None if cell != cell else cell for cell in row)
    found |= {f"fact {key}": value for key, value in run.facts.items()}
    found |= {f"event {event.step}": event for event in run.events()}
    if "states" in run.table_names():
        found |= {f"table {table.step}": table for table in run.tables("states")}
    for name in run.vector_names():
        for step in run.vector_steps(name):
            if step in range(0, 1500, 100):
                try:
                    found[f"{name} {step}"] = run.vector(name, int(step)).values.tobytes()
                except UsageError:
                    continue
    return found


def test_no_flipped_bit_is_read_as_truth(written: Path, tmp_path: Path) -> None:
    with load(written) as run:
        truth = contents(run)
    whole = (written / "run.db").read_bytes()
    rng = np.random.default_rng(1)
    silent, told = [], 0
    for number in range(40):
        place, bit = int(rng.integers(100, len(whole))), int(rng.integers(8))
        flipped = bytearray(whole)
        flipped[place] ^= 1 << bit
        file = tmp_path / f"flipped-{number}.db"
        file.write_bytes(flipped)
        try:
            with load(file) as run:
                read = contents(run)
                told += bool(run.damage)
        except UsageError:
            told += 1
            continue
        silent += [
            (place, key)
            for key, value in read.items()
            if key not in truth
            or not np.array_equal(value, truth[key], equal_nan=isinstance(value, float))
        ]
    assert not silent
    assert told > 12


def test_a_damaged_span_is_named_and_left_out(written: Path) -> None:
    with closing(sqlite3.connect(written / "run.db")) as db, db:
        db.execute(
            "UPDATE points SET value = value + 1e-9 WHERE step = 600"
            " AND series_id = (SELECT id FROM series WHERE name = 'loss')"
        )
    with load(written) as run, pytest.warns(GradiometerWarning, match="points 'loss', steps 512"):
        steps, _ = run.series("loss")
        assert len(run.series("reward")[0]) == 1500
    assert list(steps) == [*range(512), *range(1024, 1500)]
    done = command("check", str(written), "--json")
    assert done.returncode == 1
    (damage,) = json.loads(done.stdout)["damage"]
    assert (damage["name"], damage["first_step"], damage["last_step"]) == ("loss", 512, 1023)
    assert "loss" in command("check", str(written)).stdout


def test_a_whole_run_is_said_to_be_whole(written: Path) -> None:
    done = command("check", str(written), "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["whole"], said["checksums"]) == (0, True, True)


@pytest.mark.parametrize(
    "change",
    [
        'UPDATE tables SET json = \'{"net.0": "frozen"}\' WHERE step = 300',
        "UPDATE events SET message = 'all is well' WHERE step = 300",
        "UPDATE vectors SET step = 301 WHERE step = 300",
        "UPDATE run SET value = '8' WHERE key = 'seed'",
        "UPDATE steps SET env_steps = 5 WHERE step = 300",
        "DELETE FROM points WHERE step = 300",
        "INSERT INTO points VALUES (1, 99999, 1.0)",
        "UPDATE series SET name = 'lost' WHERE name = 'loss'",
        "UPDATE checks SET crc = crc + 1 WHERE first_step = 0",
    ],
)
def test_every_table_has_its_checksums(written: Path, change: str) -> None:
    with load(written) as run:
        truth = contents(run)
    with closing(sqlite3.connect(written / "run.db")) as db, db:
        db.execute(change)
    with load(written) as run:
        assert run.verify()
        assert contents(run).items() <= truth.items()


def test_points_that_come_late_again_or_out_of_order_keep_their_checksums(folder: Path) -> None:
    rng = np.random.default_rng(3)
    with Writer(folder) as writer:
        for step in rng.integers(0, 3000, size=4000).tolist():
            names = ["a", "b", "c"][: int(rng.integers(1, 4))]
            values = {name: float(rng.choice([np.nan, -0.0, np.inf, 1.5, step])) for name in names}
            writer.put(Row(step=step, wall_time=1.0, values=values, epoch=int(rng.integers(3))))
            if rng.random() < 0.01:
                writer.flush()
    with load(folder) as run:
        assert run.verify() == []
    with Writer(folder, resume=1234) as writer:
        writer.put(Row(step=1235, wall_time=1.0, values={"a": 1.0, "d": 2.0}))
    with load(folder) as run:
        assert run.verify() == []
        assert run.newest_step == 1235


def as_version_1(folder: Path) -> None:
    """The same file as 1.x wrote it."""
    with closing(sqlite3.connect(folder / "run.db", isolation_level=None)) as db:
        db.execute("DROP TABLE checks")
        for table in checksums.DOCUMENTS:
            db.execute(f"ALTER TABLE {table} DROP COLUMN crc")
        db.execute("UPDATE run SET value = '1' WHERE key = 'schema_version'")
        db.execute("PRAGMA user_version = 1")


def test_an_older_file_without_checksums_opens_in_place_and_gets_them_when_it_is_resumed(
    written: Path,
) -> None:
    with load(written) as run:
        truth = contents(run)
    as_version_1(written)
    before = (written / "run.db").read_bytes()
    with load(written) as run:
        assert not run.has_checksums
        assert contents(run) == truth | {"fact schema_version": 1}
    assert "before there were checksums" in command("check", str(written)).stdout
    assert (written / "run.db").read_bytes() == before
    Writer(written, resume=1499).close()
    with load(written) as run:
        assert run.has_checksums
        assert run.verify() == []
        assert truth.items() <= contents(run).items()


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i"


@pytest.mark.parametrize(
    "change",
    [
        "DROP TABLE steps; CREATE VIEW steps AS " + ENDLESS + " AS step, 0 AS wall_time, 0 AS"
        " env_steps, 0 AS rollout, 0 AS epoch FROM n;",
        "CREATE TRIGGER more AFTER INSERT ON points BEGIN DELETE FROM points; END;",
        "DROP TABLE events; CREATE TABLE events (id INTEGER PRIMARY KEY, step, wall_time, kind,"
        " detail, crc, message TEXT AS (hex(zeroblob(100000000))));",
        "DROP TABLE series; CREATE VIRTUAL TABLE series USING fts5(id, name);",
        "DROP TABLE findings;",
        "PRAGMA user_version = 0;",
        "PRAGMA user_version = -5;",
    ],
)
def test_a_file_whose_tables_are_not_ours_is_refused(written: Path, change: str) -> None:
    with closing(sqlite3.connect(written / "run.db")) as db:
        db.executescript(change)
    for opened in (load, lambda path: Writer(path, resume=10)):
        with pytest.raises(RunDamaged):
            opened(written)
    done = command("show", str(written))
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_a_statement_on_a_foreign_file_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "STATEMENT_SECONDS", 0.1)
    with closing(sqlite3.connect(tmp_path / "dynamics.db")) as db:
        db.execute(f"CREATE VIEW dynamics AS {ENDLESS} AS step, 1.0 AS expert_0_clean_norm FROM n")
    from gradiometer.store.importers import open_log

    with pytest.raises(UsageError, match="is a view"):
        open_log(tmp_path / "dynamics.db")
    with (
        closing(database.open_in_place(tmp_path / "dynamics.db")) as db,
        pytest.raises(UsageError, match="takes too long"),
        database.translated(tmp_path),
    ):
        db.execute(f"{ENDLESS} FROM n").fetchall()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE points SET value = 'abc' WHERE step = 3",
        "UPDATE points SET value = x'00' WHERE step = 3",
        "INSERT INTO points VALUES (1, 'late', 1.0)",
        "UPDATE series SET name = x'ff' WHERE id = 1",
        "UPDATE series SET name = 5.5 WHERE id = 1",
        "UPDATE steps SET env_steps = 'many' WHERE step = 3",
        "UPDATE run SET value = '{' WHERE key = 'config'",
        "UPDATE run SET value = '5' WHERE key = 'config'",
        "INSERT INTO run VALUES ('imported', '[]', NULL)",
        "UPDATE tables SET json = '[[[' WHERE step = 100",
        "UPDATE tables SET json = '7'",
        "UPDATE events SET detail = '[]' WHERE step = 100",
        "UPDATE events SET kind = 3, message = x'00' WHERE step = 100",
        "UPDATE vectors SET dtype = 'O' WHERE step = 100",
        "UPDATE vectors SET shape = '[-1]' WHERE step = 100",
        "UPDATE vectors SET shape = '[9999999999]', dtype = '|V4'",
        "INSERT INTO findings VALUES (1, 'x', '', 1, '{}', NULL)",
        "INSERT INTO steps VALUES (9223372036854775807, 1.0, 1, 1, 1)",
        "INSERT INTO steps VALUES (-9223372036854775808, 1.0, 1, 1, 1)",
        "INSERT INTO points VALUES (2, 9223372036854775807, 1.0),"
        " (2, -9223372036854775808, 1.0), (1, 9223372036854775807, 1.0)",
        "UPDATE steps SET wall_time = 9e999, env_steps = -9223372036854775808",
    ],
)
@pytest.mark.parametrize("checked", [True, False])
def test_no_cell_of_a_foreign_file_ends_in_a_raw_error(
    written: Path, change: str, checked: bool
) -> None:
    if not checked:
        as_version_1(written)
        change = change.replace(", NULL)", ")")
    with closing(sqlite3.connect(written / "run.db")) as db, db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(change)
    for read in (contents, Run.verify, Run.summaries, Run.findings, diagnose, thinned):
        try:
            with load(written) as run:
                read(run)
        except UsageError:
            continue


def thinned(run: Run) -> None:
    for name in run.names():
        run.thinned(name, 100)
        run.latest(name, np.array([5]))


def test_a_second_writer_is_refused_when_the_lock_file_was_deleted(folder: Path) -> None:
    with Writer(folder) as writer:
        (folder / "run.lock").unlink()
        code = "import sys; from gradiometer.store.writer import Writer; Writer(sys.argv[1])"
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False
        )
        assert "RunLocked" in done.stderr
        writer.put(Row(step=1, wall_time=1.0, values={"loss": 1.0}))
        writer.flush()
        assert (folder / "run.lock").exists()
    with load(folder) as run:
        assert run.newest_step == 1


def test_a_forked_child_does_not_keep_the_folder_locked(folder: Path) -> None:
    writer = Writer(folder)
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    writer.close()
    Writer(folder, overwrite=True).close()
    os.write(done[1], b"x")
    os.waitpid(child, 0)


def test_a_writer_whose_lock_another_has_taken_stops_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(folder)

    def taken() -> None:
        raise RunLocked("another process writes")

    monkeypatch.setattr(writer._lock, "hold", taken)
    writer.put(Row(step=1, wall_time=1.0, values={"loss": 1.0}))
    with pytest.warns(GradiometerWarning, match="not recorded any more.*another process"):
        writer.close()
    assert writer.dropped == 1


def full(*_: object) -> None:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    raise error


def read_only(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize(
    ("target", "name", "fault", "words"),
    [
        (database, "_create", full, "disk is full"),
        (database, "migrate", full, "disk is full"),
        (os, "open", read_only, "Read-only file system"),
        (Path, "mkdir", read_only, "Read-only file system"),
    ],
)
def test_a_folder_that_cannot_be_written_is_said_to_be_that(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: Any,
    name: str,
    fault: Callable[..., None],
    words: str,
) -> None:
    monkeypatch.setattr(target, name, fault)
    with pytest.raises(UsageError, match=words) as told:
        Writer(folder)
    assert not isinstance(told.value, RunDamaged)
    assert "copy it again" not in str(told.value)


def test_pruning_in_a_read_only_folder_is_a_usage_error(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(UsageError, match="Read-only"):
        prune(written, keep=1)


def test_the_age_of_what_is_not_on_disk_counts_what_is_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    queue = RecordQueue()
    assert queue.age == 0.0
    queue.put("a", 1)
    now[0] = 2.0
    assert queue.age == 2.0
    queue.take(10)
    assert queue.age == 2.0
    queue.done()
    assert queue.age == 0.0


@pytest.mark.parametrize(
    ("ages", "stuck", "naps"),
    [
        ([0.0], False, 0),
        ([0.9, 0.8, 0.7, 0.5], False, 2),
        ([30.0, 30.0, 0.1], False, 1),  # far behind, and catching up
        ([30.0, 30.0, 30.0], True, 0),
    ],
    ids=["in time", "behind", "far behind", "stuck"],
)
def test_the_training_waits_while_the_writer_is_behind_but_not_for_a_stuck_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ages: list[float], stuck: bool, naps: int
) -> None:
    slept: list[float] = []
    with Writer(folder) as writer:
        monkeypatch.setattr(writing.time, "sleep", slept.append)
        monkeypatch.setattr(RecordQueue, "age", property(lambda _: ages.pop(0)))
        monkeypatch.setattr(RecordQueue, "is_stuck", lambda _: stuck)
        monkeypatch.setattr(RecordQueue, "waiting", writing.LEAST_BATCH)
        writer.put(Row(step=1, wall_time=1.0, values={"loss": 1.0}))
        monkeypatch.undo()
    assert slept.count(writing.FULL_SECONDS) == naps


def test_a_training_that_logs_more_than_can_be_written_goes_at_the_pace_of_the_writer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, waited = Batches.write, list[int]()

    def slowly(self: Batches, records: Any) -> None:
        records = list(records)
        time.sleep(sum(len(row.values) for row in records if isinstance(row, Row)) / 50_000)
        write(self, records)

    monkeypatch.setattr(Batches, "write", slowly)
    monkeypatch.setattr(writing, "BEHIND_SECONDS", 0.0)
    values = {f"v{place}": 1.0 for place in range(4000)}
    with Writer(folder) as writer:
        for step in range(20):  # 80,000 values, as fast as they are made
            writer.put(Row(step=step, wall_time=1.0, values=values))
            waited.append(writer._queue.waiting)
        assert writer.dropped == 0
    assert max(waited) < 40_000  # without waiting it is nearly all of them


def test_a_batch_holds_what_can_be_written_in_a_moment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    write = Batches.write

    def slowly(self: Batches, records: Any) -> None:
        records = list(records)
        values = sum(len(row.values) for row in records if isinstance(row, Row))
        sizes.append(values)
        time.sleep(values / 50_000)  # no disk is that slow: 50,000 values a second
        write(self, records)

    monkeypatch.setattr(Batches, "write", slowly)
    values = {f"v{place}": 1.0 for place in range(1000)}
    with Writer(folder) as writer:
        for step in range(60):
            writer.put(Row(step=step, wall_time=1.0, values=values))
    assert sum(sizes) == 60_000
    later = [size for size in sizes[1:] if size]
    assert later or len(sizes) == 1
    assert all(size <= 21_000 for size in later)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, in this process: a second each is too much for so many."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run_command(list(arguments))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
