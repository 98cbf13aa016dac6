from __future__ import annotations

import os
from pathlib import Path

import pytest

from gradiometer.errors import RunLocked
from gradiometer.store.locks import LOCK_NAME, WriterLock
from gradiometer.store.writer import Writer

HOLD = """
with Writer(folder) as writer:
    print("open", flush=True)
    sys.stdin.readline()
"""


def test_a_second_writer_in_the_same_process_is_refused(folder: Path) -> None:
    with Writer(folder), pytest.raises(RunLocked, match=f"this process.*{os.getpid()}"):
        Writer(folder, overwrite=True)
    Writer(folder).close()


def test_the_same_folder_under_another_name_is_the_same_run(folder: Path, tmp_path: Path) -> None:
    with Writer(folder):
        (tmp_path / "link").symlink_to(folder)
        with pytest.raises(RunLocked):
            Writer(tmp_path / "link")


def test_a_second_process_is_refused_and_told_which_process_writes(folder: Path, start) -> None:
    holder = start(HOLD, folder)
    assert holder.stdout.readline() == "open\n"
    with pytest.raises(RunLocked, match=f"another process.*{holder.pid}"):
        Writer(folder)
    holder.communicate("\n")
    Writer(folder).close()


def test_the_lock_of_a_killed_process_does_not_outlive_it(folder: Path, start) -> None:
    holder = start(HOLD, folder)
    holder.stdout.readline()
    holder.kill()
    holder.wait()
    assert (folder / LOCK_NAME).exists()
    Writer(folder).close()
    assert not (folder / LOCK_NAME).exists()


def test_reading_a_run_in_the_process_that_writes_it_does_not_open_it_to_others(
    folder: Path, execute
) -> None:
    from gradiometer.store.reader import load

    with Writer(folder) as writer:
        writer.flush()
        load(folder).close()
        assert "RunLocked" in execute("Writer(folder)", folder).stderr
        # SQLite's own lock is still there too: without it, it would let go of the log under the
        # writer's feet.
        script = (
            "import sqlite3; sqlite3.connect(folder / 'run.db', timeout=0).execute('PRAGMA"
            " journal_mode = DELETE')"
        )
        assert "database is locked" in execute(script, folder).stderr


def test_a_lock_file_replaced_by_another_is_not_removed_on_release(tmp_path: Path) -> None:
    lock = WriterLock(tmp_path)
    (tmp_path / LOCK_NAME).unlink()
    (tmp_path / LOCK_NAME).write_text("somebody else's")
    lock.release()
    lock.release()
    assert (tmp_path / LOCK_NAME).exists()
