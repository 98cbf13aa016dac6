"""Runs on NFS, Lustre and the like, where SQLite's WAL cannot work and locks may be missing."""

from __future__ import annotations

import errno
import fcntl
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradiometer.errors import GradiometerWarning, RunLocked
from gradiometer.records import Row
from gradiometer.store import database, locks
from gradiometer.store.batches import prune
from gradiometer.store.locks import WriterLock, filesystem_of, is_network
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer

LOCAL = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
NFS = LOCAL + "31 22 0:40 / {place} rw,relatime shared:2 - nfs4 server:/home rw,vers=4.2\n"

# What a process must do to believe that its folder is on NFS: the rest is real.
ON_NFS = """
from gradiometer.store import locks
locks.MOUNTS = folder.parent / "mounts"
warnings.simplefilter("ignore", GradiometerWarning)
"""


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_said", set())
    monkeypatch.setattr(locks, "_without_locks", set())


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def mount(text: str) -> None:
        (tmp_path / "mounts").write_text(text.format(place=tmp_path))
        monkeypatch.setattr(locks, "MOUNTS", tmp_path / "mounts")

    return mount


def row(step: int, value: float | None = None) -> Row:
    return Row(step=step, wall_time=0.0, values={"loss": float(step) if value is None else value})


def steps_of(folder: Path) -> list[int]:
    with load(folder) as run:
        steps, values = run.series("loss")
        assert steps.tolist() == values.tolist()
        return [int(step) for step in steps]


def test_the_kind_of_a_file_system_is_that_of_the_innermost_mount(
    mount: Callable[[str], None], tmp_path: Path
) -> None:
    lines = [
        "22 1 254:0 / / rw - ext4 /dev/vda rw",
        r"30 22 0:40 / {place}/with\040space rw,relatime shared:2 master:3 - nfs4 server:/home rw",
        "31 22 0:41 / {place}/a rw - lustre mgs:/fs rw",
        "32 31 0:42 / {place}/a/b rw - tmpfs tmpfs rw",
        "33 22 0:43 / {place}/c rw - ext4 x rw",
        "34 22 0:44 / {place}/c rw - fuse.sshfs host: rw",  # mounted over the other
        "half a line",
    ]
    mount("\n".join(lines))
    (tmp_path / "a" / "link").parent.mkdir()
    (tmp_path / "a" / "link").symlink_to(tmp_path / "c")
    found = {
        name: filesystem_of(tmp_path / name)
        for name in ("x", "with space/run", "a", "a/b/run", "ab", "c/d", "a/link")
    }
    assert found == {
        "x": "ext4",
        "with space/run": "nfs4",
        "a": "lustre",
        "a/b/run": "tmpfs",
        "ab": "ext4",
        "c/d": "fuse.sshfs",
        "a/link": "fuse.sshfs",
    }
    shared = (
        "nfs",
        "nfs4",
        "lustre",
        "cifs",
        "smb3",
        "beegfs",
        "gpfs",
        "ceph",
        "fuse.sshfs",
        "fuse.glusterfs",
        "9p",
    )
    assert all(map(is_network, shared))
    assert not any(
        map(is_network, ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "apfs", "fuseblk", ""))
    )


def test_where_nobody_says_what_is_mounted_sqlite_decides(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "MOUNTS", folder / "none")
    assert filesystem_of(folder) == ""
    with Writer(folder) as writer:
        writer.put(row(0))
        writer.flush()
        assert (folder / "run.db-wal").exists()


def test_on_a_local_disk_nothing_changes(folder: Path) -> None:
    with Writer(folder) as writer:
        writer.put(row(0))
        writer.flush()
        assert (folder / "run.db-wal").exists()
        with load(folder) as run:
            assert "journal" not in run.facts


def test_on_nfs_a_run_has_a_rollback_journal_says_so_once_and_ends_as_one_file(
    folder: Path, tmp_path: Path, mount: Callable[[str], None]
) -> None:
    mount(NFS)
    with pytest.warns(GradiometerWarning) as said:
        writer = Writer(folder)
        Writer(tmp_path / "second").close()
    assert [str(one.message) for one in said] == [
        f"{folder}: SQLite's WAL does not work on nfs4, so the run is kept with a rollback journal:"
        " safe, but slower to read"
    ]
    with writer:
        for step in range(100):
            writer.put(row(step))
        writer.flush()
        assert not (folder / "run.db-wal").exists()
        with load(folder) as run:
            assert run.newest_step == 99
            assert run.facts["journal"] == {
                "mode": "truncate",
                "synchronous": "full",
                "locks": True,
                "why": "SQLite's WAL does not work on nfs4",
            }
    assert [file.name for file in folder.iterdir()] == ["run.db"]
    assert steps_of(folder) == list(range(100))


def test_what_the_writer_promises_sqlite_does(folder: Path, mount: Callable[[str], None]) -> None:
    mount(NFS)
    with pytest.warns(GradiometerWarning):
        db = database.open_for_writing(folder.parent / "x.db")
    assert db.execute("PRAGMA journal_mode").fetchone() == ("truncate",)
    assert db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert db.execute("PRAGMA busy_timeout").fetchone() == (60_000,)
    db.close()


def without_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own file layer with locks and without shared memory: WAL is refused for real."""
    connect = database._connect
    monkeypatch.setattr(
        database, "_connect", lambda path, query: connect(path, f"{query}&vfs=unix-dotfile")
    )


def test_where_sqlite_itself_refuses_wal_a_run_is_kept_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_shared_memory(monkeypatch)
    with pytest.warns(GradiometerWarning, match=r"does not work here \(it chose 'delete'\)"):
        writer = Writer(folder)
    with writer:
        for step in range(10):
            writer.put(row(step))
        writer.flush()
        with load(folder) as run:
            assert (
                run.facts["journal"]["why"] == "SQLite's WAL does not work here (it chose 'delete')"
            )
            assert run.newest_step == 9
    assert steps_of(folder) == list(range(10))


class Refusing(sqlite3.Connection):
    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        if statement == "PRAGMA journal_mode = WAL":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMMAP
            raise error
        return super().execute(statement, *parameters)


def _refusing(more: dict[str, Any]) -> dict[str, Any]:
    """Those who write refuse; readers keep the connection that bounds their statements."""
    writes = more.get("factory") is sqlite3.Connection
    return {**more, "factory": Refusing} if writes else more


def test_where_the_pragma_raises_a_run_is_kept_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(
        database.sqlite3,
        "connect",
        lambda *given, **more: connect(*given, **_refusing(more)),
    )
    with pytest.warns(GradiometerWarning, match=r"does not work here \(disk I/O error\)"):
        writer = Writer(folder)
    with writer:
        writer.put(row(0))
    assert steps_of(folder) == [0]


def test_a_run_that_moves_between_disks_changes_its_journal(
    folder: Path, mount: Callable[[str], None]
) -> None:
    with Writer(folder) as writer:
        writer.put(row(0))
    mount(NFS)
    with pytest.warns(GradiometerWarning), Writer(folder, resume=0) as writer:
        writer.put(row(1))
    with load(folder) as run:
        assert run.facts["journal"]["mode"] == "truncate"
    mount(LOCAL)
    with Writer(folder, resume=1) as writer:
        writer.put(row(2))
        writer.flush()
        assert (folder / "run.db-wal").exists()
    with load(folder) as run:
        assert "journal" not in run.facts
    assert steps_of(folder) == [0, 1, 2]
    prune(folder, keep=0)


WRITE_UNTIL_KILLED = (
    ON_NFS
    + """
writer = Writer(folder)
print("open", flush=True)
step = 0
while True:
    writer.put(row(step, **{f"x{n}": float(step) for n in range(200)}, loss=float(step)))
    step += 1
    if step % 50 == 0:
        writer.flush()
        print(step, flush=True)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["read", "resumed"])
def test_a_process_killed_in_the_middle_of_a_commit_leaves_a_run_that_opens(
    folder: Path, start: Any, mount: Callable[[str], None], how: str
) -> None:
    mount(NFS)
    process = start(WRITE_UNTIL_KILLED, folder)
    assert process.stdout.readline() == "open\n"
    flushed = 0
    while flushed < 200:
        flushed = int(process.stdout.readline())
    journal, deadline = folder / "run.db-journal", time.monotonic() + 30
    while not journal.stat().st_size and time.monotonic() < deadline:  # a commit is under way
        pass
    process.kill()
    process.wait()
    if how == "resumed":
        with pytest.warns(GradiometerWarning), Writer(folder, resume=100) as writer:
            writer.put(row(101))
        assert steps_of(folder) == list(range(102))
    else:
        found = steps_of(folder)
        assert found == list(range(len(found)))  # whole batches
        assert len(found) >= flushed


WRITE = (
    ON_NFS
    + """
warnings.simplefilter("error", GradiometerWarning)  # a lost batch is a warning
from gradiometer.store import database
database.say_once = lambda *_: None  # that it is NFS is expected
writer = Writer(folder)
print("open", flush=True)
for step in range(1500):
    writer.put(row(step, **{f"x{n}": float(step) for n in range(40)}, loss=float(step)))
    if step % 5 == 4:
        writer.flush()
print(writer.dropped, flush=True)
writer.close()
"""
)
READ = (
    ON_NFS
    + """
import random, sqlite3
looks = 0
newest = -1
while newest < 1499:
    with load(folder) as run:
        with run.still():
            steps, values = run.series("loss") if "loss" in run.names() else (np.zeros(0), np.zeros(0))
            time.sleep(random.random() / 50)  # the writer has to wait for us
            again = run.newest_step
        assert steps.tolist() == values.tolist() == list(range(len(steps)))
        assert (again if again is not None else -1) == len(steps) - 1, (again, len(steps))
        newest = len(steps) - 1
    looks += 1
print(looks, flush=True)
"""
)


@pytest.mark.slow
def test_readers_and_the_writer_wait_for_each_other_and_nobody_hears_of_locks(
    folder: Path, start: Any, mount: Callable[[str], None]
) -> None:
    mount(NFS)
    writer = start(WRITE, folder)
    assert writer.stdout.readline() == "open\n", writer.stderr.read()
    readers = [start(READ, folder) for _ in range(3)]
    out, err = writer.communicate(timeout=120)
    assert (writer.returncode, err, out) == (0, "", "0\n")
    for reader in readers:
        looks, err = reader.communicate(timeout=120)
        assert (reader.returncode, err) == (0, "")
        assert int(looks) > 1
    assert steps_of(folder) == list(range(1500))


def refuse_locks(number: int) -> Callable[..., None]:
    def lockf(*_: object) -> None:
        raise OSError(number, "as the mount says")

    return lockf


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_mount_without_locks_is_told_of_once_and_the_run_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(fcntl, "lockf", refuse_locks(number))
    with pytest.warns(GradiometerWarning) as said:
        with Writer(folder) as writer:
            for step in range(10):
                writer.put(row(step))
            writer.flush()
            with load(folder) as run:
                assert run.newest_step == 9
                assert run.facts["journal"]["locks"] is False
            with pytest.raises(RunLocked, match="this process"):  # of ourselves we know
                Writer(folder)
        Writer(tmp_path / "second").close()
    assert [str(one.message).partition(": ")[0].partition(" is on")[0] for one in said] == [
        str(folder),
        str(folder),
    ]
    assert "without file locks, so nothing keeps a second process" in str(said[0].message)
    assert [file.name for file in folder.iterdir()] == ["run.db"]
    assert steps_of(folder) == list(range(10))


def test_another_error_of_the_lock_is_not_taken_for_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "lockf", refuse_locks(errno.EIO))
    with pytest.raises(OSError, match="as the mount says"):
        WriterLock(tmp_path)


@pytest.fixture
def locked(written: Path) -> Iterator[Path]:
    db = sqlite3.connect(written / "run.db", isolation_level=None)
    db.execute("BEGIN EXCLUSIVE")
    yield written
    db.close()


@pytest.mark.parametrize("text", [LOCAL, NFS])
def test_a_run_that_is_locked_says_so_and_is_not_taken_for_one_without_locks(
    locked: Path, mount: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(database, "WAIT_SECONDS", 0.1)
    mount(text)
    with pytest.raises(RunLocked, match="is busy"):
        load(locked)
    assert not locks.has_no_locks(locked)
    assert sorted(file.name for file in locked.iterdir()) == ["run.db"]


def test_a_reader_that_finds_no_locks_reads_without_them(
    locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(fcntl, "lockf", refuse_locks(errno.ENOLCK))
    with pytest.warns(GradiometerWarning, match="without file locks"), load(locked) as run:
        assert len(run.series("loss")[0]) == 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(locked).close()  # known from here on, and said once
