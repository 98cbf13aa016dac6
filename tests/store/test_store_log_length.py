"""SQLite's log beside a run begins anew though somebody reads at every moment, as pages do."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from gradiometer.records import Row
from gradiometer.store import database
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer

STEPS, VALUES = 60, 500
LIMIT = 256 << 10


def relay(path: Path, stop: threading.Event, began: threading.Event) -> None:
    """Readers that hand over: each begins before the one before it ends, so that there is always
    one."""
    held: list[sqlite3.Connection] = []
    while not stop.is_set():
        reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM points").fetchone()
        held.append(reader)
        began.set()
        if len(held) > 1:
            held.pop(0).close()
        stop.wait(0.005)
    for reader in held:
        reader.close()


def longest_log(folder: Path) -> int:
    stop, began, longest = threading.Event(), threading.Event(), 0
    with Writer(folder) as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"a": 0.0}))
        writer.flush()
        thread = threading.Thread(target=relay, args=(folder / "run.db", stop, began))
        thread.start()
        began.wait(10)
        try:
            for step in range(1, STEPS):
                writer.put(
                    Row(
                        step=step,
                        wall_time=0.0,
                        values={f"s{k}": k + step / 7 for k in range(VALUES)},
                    )
                )
                writer.flush()
                longest = max(longest, (folder / "run.db-wal").stat().st_size)
        finally:
            stop.set()
            thread.join()
    return longest


def test_readers_at_every_moment_do_not_let_the_log_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlimited = longest_log(tmp_path / "grows")
    monkeypatch.setattr(database, "LONG_LOG", LIMIT)
    bounded = longest_log(tmp_path / "bounded")
    assert bounded < unlimited / 2
    with load(tmp_path / "bounded") as run:
        assert len(run.series("s0")[0]) == STEPS - 1


def test_one_who_reads_on_and_on_keeps_the_log_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LONG_LOG", 1)
    monkeypatch.setattr(database, "SHORTEN_SECONDS", 0.01)
    with Writer(tmp_path / "run") as writer:
        writer.put(Row(step=0, wall_time=0.0, values={"a": 0.0}))
        writer.flush()
        with closing(sqlite3.connect(tmp_path / "run" / "run.db", isolation_level=None)) as patient:
            patient.execute("BEGIN")
            patient.execute("SELECT count(*) FROM points").fetchone()
            for step in range(1, 20):
                writer.put(Row(step=step, wall_time=0.0, values={"a": float(step)}))
                writer.flush()
        assert writer.dropped == 0
    with load(tmp_path / "run") as run:
        assert run.series("a")[1].tolist() == [float(step) for step in range(20)]
        assert not run.events("dropped")
