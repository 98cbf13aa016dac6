from __future__ import annotations

import math
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from gradiometer.errors import NotARun, RunDamaged, RunNotFound, SchemaTooNew, UnknownName
from gradiometer.records import Row, Summary, Table, Vector
from gradiometer.store import database
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer


def test_a_run_is_opened_by_its_folder_or_its_file(written: Path) -> None:
    for path in (written, str(written), written / "run.db"):
        with load(path) as run:
            assert run.names() == ["loss", "reward"]
            assert run.name == "run"


def test_a_series_is_two_arrays_in_order_of_step(written: Path) -> None:
    with load(written) as run:
        steps, values = run.series("loss")
    assert (steps.dtype, values.dtype) == (np.int64, np.float64)
    assert values.tolist() == (steps / 2).tolist()


def test_an_unknown_series_names_the_ones_close_to_it(written: Path) -> None:
    with load(written) as run, pytest.raises(UnknownName, match="did you mean 'reward'"):
        run.series("rewrd")


def test_an_empty_run_reads_as_empty(folder: Path) -> None:
    Writer(folder).close()
    with load(folder) as run:
        assert (run.names(), run.events(), run.findings(), run.summaries(), run.newest_step) == (
            [],
            [],
            [],
            [],
            None,
        )
        assert {name: len(column) for name, column in run.steps().items()} == dict.fromkeys(
            run.steps(), 0
        )


def test_coordinates_nobody_gave_are_nan(written: Path) -> None:
    with load(written) as run:
        columns = run.steps()
    assert columns["step"].tolist() == list(range(10))
    assert np.isnan(columns["env_steps"]).all()


def test_summaries_agree_with_the_series(folder: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(200, 3))
    values[rng.random(values.shape) < 0.2] = np.nan
    values[-5:, 0] = np.nan
    values[:, 2] = np.nan
    with Writer(folder) as writer:
        for step, (a, b, c) in enumerate(values):
            writer.put(Row(step=step, wall_time=0.0, values={"a": a, "b": b, "c": c}))
    with load(folder) as run:
        a, b, c = run.summaries()
    for summary, column in ((a, values[:, 0]), (b, values[:, 1])):
        known = np.flatnonzero(~np.isnan(column))
        assert (summary.count, summary.nan_count) == (200, 200 - len(known))
        assert summary.last_step == 199
        assert np.array_equal(
            summary.last, column[-1], equal_nan=True
        )  # a NaN at the end is not hidden
        assert (summary.min, summary.max) == (np.nanmin(column), np.nanmax(column))
        assert summary.mean == pytest.approx(np.nanmean(column))
    assert (c.count, c.nan_count, c.last_step) == (200, 200, 199)
    assert all(math.isnan(number) for number in (c.last, c.mean, c.min, c.max))


def test_infinities_show_in_the_summary(folder: Path) -> None:
    with Writer(folder) as writer:
        for step, value in enumerate((1.0, math.inf)):
            writer.put(Row(step=step, wall_time=0.0, values={"a": value, "b": -value}))
    with load(folder) as run:
        a, b = run.summaries()
    inf = math.inf
    assert a == Summary(
        name="a", count=2, nan_count=0, last_step=1, last=inf, mean=inf, min=1.0, max=inf
    )
    assert (b.mean, b.min, b.max) == (-inf, -inf, -1.0)


def test_tables_and_vectors_are_found_by_name_and_step(folder: Path) -> None:
    with Writer(folder) as writer:
        for step in (10, 20, 30):
            writer.put(Table(step=step, name="layers", content={"at": step}))
            writer.put(Vector(step=step, name="sketch", values=np.full(2, step)))
    with load(folder) as run:
        assert (run.table_names(), run.vector_names()) == (["layers"], ["sketch"])
        assert run.table("layers").step == 30
        assert run.table("layers", 20).content == {"at": 20}
        assert run.vector("sketch", 10).values.tolist() == [10, 10]
        for wrong in (
            lambda: run.table("layer"),
            lambda: run.tables("layer"),
            lambda: run.table("layer", 20),
        ):
            with pytest.raises(UnknownName, match="did you mean 'layers'"):
                wrong()
        for wrong in (lambda: run.vector("sketch", 21), lambda: run.table("layers", 21)):
            with pytest.raises(UnknownName, match="nearest: 20, 30, 10"):
                wrong()
        with pytest.raises(UnknownName, match="did you mean 'sketch'"):
            run.vector_steps("sketches")


def test_a_run_is_read_while_it_is_written(folder: Path, start) -> None:
    process = start(
        """
        with Writer(folder) as writer:
            for line, step in zip(sys.stdin, range(100)):
                writer.put(row(step))
                writer.flush()
                print(step, flush=True)
        """,
        folder,
    )
    run = None
    for step in range(5):
        process.stdin.write("next\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{step}\n"
        run = run or load(folder)
        assert run.newest_step == step
        assert run.series("loss")[0].tolist() == list(range(step + 1))
    run.close()


def test_a_closed_run_says_so_and_is_not_called_damaged(written: Path) -> None:
    run = load(written)
    run.close()
    run.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        run.names()


def test_reading_leaves_a_finished_run_untouched(written: Path) -> None:
    before = (written / "run.db").read_bytes()
    with load(written) as run:
        run.summaries()
    assert (written / "run.db").read_bytes() == before
    assert [file.name for file in written.iterdir()] == ["run.db"]


@pytest.fixture
def crashed(folder: Path, execute) -> Path:
    """A run whose process was killed: its last 50 steps are in the log only."""
    execute(
        """
        writer = Writer(folder)
        for step in range(50): writer.put(row(step))
        writer.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        folder,
    )
    assert (folder / "run.db-wal").exists()
    return folder


AS_NOBODY = """
pid = os.fork()
if pid == 0:
    if os.geteuid() == 0: os.seteuid(65534)
    try:
        (folder / "probe").touch()
    except PermissionError:
        with load(folder) as run:
            print(run.newest_step, len(run.summaries()), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.mark.parametrize(
    ("removed", "newest"),
    [([], "49"), (["-shm"], "49"), (["-shm", "-wal"], "None")],
    ids=["log and index", "log without index", "neither"],
)
def test_a_crashed_run_in_a_read_only_folder_of_another_user_opens(
    crashed: Path, execute, removed: list[str], newest: str
) -> None:
    for side in removed:
        (crashed / f"run.db{side}").unlink()
    with world_readable(crashed) as public:
        done = execute(AS_NOBODY, public)
    series = "0" if newest == "None" else "1"
    assert (done.stdout, done.stderr) == (f"{newest} {series}\n", "")


def test_a_finished_run_in_a_read_only_folder_of_another_user_opens(written: Path, execute) -> None:
    with world_readable(written) as public:
        done = execute(AS_NOBODY, public)
        assert [file.name for file in public.iterdir()] == ["run.db"]
    assert (done.stdout, done.stderr) == ("9 2\n", "")


def test_a_run_one_may_not_read_is_not_called_damaged(written: Path, execute) -> None:
    with world_readable(written) as public:
        (public / "run.db").chmod(0o000)
        done = execute("if os.geteuid() == 0: os.seteuid(65534)\nload(folder)", public)
    assert "PermissionError" in done.stderr.splitlines()[-1]


@contextmanager
def world_readable(folder: Path) -> Iterator[Path]:
    """A copy of a run in a folder which everyone may read and nobody change; pytest's own are
    closed to others."""
    with tempfile.TemporaryDirectory(prefix="gradiometer-test-") as parent:
        Path(parent).chmod(0o755)
        copy = shutil.copytree(folder, Path(parent, "run"))
        for file in copy.iterdir():
            file.chmod(0o444)
        copy.chmod(0o555)
        yield copy
        copy.chmod(0o755)


@pytest.fixture
def newer_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "SCHEMA_VERSION", 4)
    monkeypatch.setattr(database, "IN_PLACE", frozenset({4}))
    migrations = {
        2: "ALTER TABLE steps ADD COLUMN lr REAL;",
        3: "UPDATE series SET name = 'new/' || name;",
    }
    monkeypatch.setattr(database, "MIGRATIONS", migrations)


@pytest.mark.usefixtures("written", "newer_schema")
def test_an_old_run_is_read_through_its_migrations_and_the_file_stays_as_it_was(
    folder: Path,
) -> None:
    before = (folder / "run.db").read_bytes()
    with load(folder) as run:
        assert run.names() == ["new/loss", "new/reward"]
        assert run.facts["schema_version"] == 4
    assert (folder / "run.db").read_bytes() == before


@pytest.mark.usefixtures("newer_schema")
def test_an_old_run_that_crashed_is_read_through_its_migrations(crashed: Path) -> None:
    with load(crashed) as run:
        assert (run.names(), run.newest_step) == (["new/loss"], 49)


@pytest.mark.usefixtures("written", "newer_schema")
def test_the_writer_migrates_the_file_itself(folder: Path) -> None:
    Writer(folder, resume=9).close()
    db = sqlite3.connect(folder / "run.db")
    assert db.execute("PRAGMA user_version").fetchone() == (4,)
    assert "new/loss" in {name for (name,) in db.execute("SELECT name FROM series")}
    db.close()


def test_a_run_of_a_later_version_says_to_upgrade(written: Path) -> None:
    db = sqlite3.connect(written / "run.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    for opened in (load, lambda folder: Writer(folder, resume=1)):
        with pytest.raises(SchemaTooNew, match=r"schema 99.*up to 2.*pip install -U"):
            opened(written)


def test_a_path_where_nothing_is_names_the_runs_close_to_it(written: Path, tmp_path: Path) -> None:
    written.rename(tmp_path / "ppo-7")
    with pytest.raises(RunNotFound, match=r"did you mean '.*ppo-7'"):
        load(tmp_path / "ppo-8")
    with pytest.raises(RunNotFound, match=r"no run at \S+: there is no folder \S+/no/such$"):
        load(tmp_path / "no" / "such" / "place")


@pytest.mark.usefixtures("written")
def test_a_folder_of_runs_names_the_runs_inside(tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    with pytest.raises(NotARun, match="folder of runs: open one of other, run"):
        load(tmp_path)


def test_what_is_no_run_is_called_that(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello " * 1000)
    (tmp_path / "short.txt").write_text("hello")
    (tmp_path / "nothing.txt").touch()
    db = sqlite3.connect(tmp_path / "foreign.db")
    db.execute("CREATE TABLE points (x)")
    db.close()
    for name in ("empty", "notes.txt", "short.txt", "nothing.txt", "foreign.db"):
        with pytest.raises(NotARun, match=name):
            load(tmp_path / name)


@pytest.mark.parametrize(
    "length", [0, 1, 16, 50, 99, 100, 1000, 4095, 4096, 4097, 8192, 20_000, -4096, -1]
)
def test_a_truncated_run_is_called_damaged_with_something_to_try(
    written: Path, length: int
) -> None:
    file = written / "run.db"
    whole = file.read_bytes()
    file.write_bytes(whole[:length])
    with pytest.raises(RunDamaged, match=r"copy it again.*\.recover"):
        load(written)


def test_damage_inside_the_file_is_found_when_it_is_read(folder: Path) -> None:
    with Writer(folder) as writer:
        for step in range(5000):
            writer.put(Row(step=step, wall_time=0.0, values={"a": 1.0}))
    content = bytearray((folder / "run.db").read_bytes())
    content[8 * 4096 :] = b"\xff" * (len(content) - 8 * 4096)
    (folder / "run.db").write_bytes(content)
    with load(folder) as run, pytest.raises(RunDamaged, match="malformed"):
        run.series("a")


def test_a_run_in_a_folder_with_a_difficult_name_opens(tmp_path: Path) -> None:
    folder = tmp_path / "lr=3e-4 100%?#é"
    with Writer(folder) as writer:
        writer.put(Row(step=1, wall_time=0.0, values={"a": 1.0}))
    with load(folder) as run:
        assert run.newest_step == 1
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
