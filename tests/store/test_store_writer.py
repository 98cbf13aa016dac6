from __future__ import annotations

import math
import sqlite3
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradiometer.errors import GradiometerWarning, NotARun, RunExists, UsageError
from gradiometer.records import Event, Evidence, Finding, Row, Table, Vector
from gradiometer.store import database
from gradiometer.store import writer as writer_module
from gradiometer.store.batches import Batches
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer


def row(step: int, **values: float) -> Row:
    return Row(step=step, wall_time=100.0 + step, values=values or {"loss": float(step)})


def bits(values: list[float]) -> list[bytes]:
    """SQLite keeps a whole number as an integer, and so drops the sign of zero."""
    return [b"nan" if math.isnan(value) else struct.pack("d", value or 0.0) for value in values]


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.floats(), min_size=1, max_size=30))
def test_every_float_comes_back_to_the_bit(tmp_path: Path, values: list[float]) -> None:
    with Writer(tmp_path / "run", overwrite=True) as writer:
        for step, value in enumerate(values):
            writer.put(row(step, x=value))
    with load(tmp_path / "run") as run:
        steps, read = run.series("x")
    assert steps.tolist() == list(range(len(values)))
    assert bits(read.tolist()) == bits(values)


def test_a_nan_is_null_and_an_infinity_is_a_number_in_the_file(folder: Path) -> None:
    with Writer(folder) as writer:
        writer.put(row(1, a=math.nan, b=math.inf, c=-math.inf))
    db = sqlite3.connect(folder / "run.db")
    assert db.execute("SELECT value FROM points ORDER BY series_id").fetchall() == [
        (None,),
        (math.inf,),
        (-math.inf,),
    ]
    db.close()


def test_numpy_numbers_are_kept_like_floats(folder: Path) -> None:
    with Writer(folder) as writer:
        writer.put(row(1, a=np.float32(0.5), b=np.int64(3), c=True))
    with load(folder) as run:
        assert [run.series(name)[1].tolist() for name in "abc"] == [[0.5], [3.0], [1.0]]


def test_a_closed_run_is_one_file(written: Path) -> None:
    assert [file.name for file in written.iterdir()] == ["run.db"]


def test_a_run_being_written_uses_a_write_ahead_log(folder: Path) -> None:
    with Writer(folder) as writer:
        writer.put(row(1))
        writer.flush()
        assert (folder / "run.db-wal").stat().st_size > 0


def test_flush_returns_when_everything_put_before_is_on_disk(folder: Path) -> None:
    with Writer(folder) as writer:
        for step in range(100):
            writer.put(row(step))
            if step % 25 == 0:
                writer.flush()
                with load(folder) as run:
                    assert run.newest_step == step


def test_records_reach_the_disk_without_a_flush(folder: Path) -> None:
    with Writer(folder) as writer:
        writer.put(row(1))
        deadline = time.monotonic() + 30
        with load(folder) as run:
            while run.newest_step is None and time.monotonic() < deadline:
                time.sleep(0.05)
            assert run.newest_step == 1


def test_every_kind_of_record_comes_back_as_it_was(folder: Path) -> None:
    event = Event(
        step=2,
        kind="nonfinite",
        message="NaN in actor",
        detail={"first": "actor.0", "value": math.inf},
    )
    table = Table(step=3, name="layers", content=[{"name": "a", "norm": -math.inf}])
    finding = Finding(
        id="dead-term",
        title="A term is dead",
        severity="critical",
        basis="proved",
        since_step=2,
        block="actor",
        evidence=(Evidence(series="x", reading="0", first_step=1),),
        fix=("detach less",),
        references=("a", "b"),
    )
    with Writer(folder) as writer:
        for item in (event, table, finding):
            writer.put(item)
    with load(folder) as run:
        assert run.events() == [event]
        assert run.table("layers") == table
        assert run.findings() == [finding]


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int8", "uint64", "bool", ">f4"]
)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
def test_a_vector_comes_back_with_its_type_and_shape(
    folder: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    with Writer(folder) as writer:
        writer.put(Vector(step=4, name="sketch", values=values))
    with load(folder) as run:
        read = run.vector("sketch", 4).values
    assert (read.dtype, read.shape) == (values.dtype, shape)
    assert (read == values).all()


def test_a_vector_whose_buffer_is_reused_keeps_the_values_it_was_put_with(folder: Path) -> None:
    buffer = np.zeros(3)
    with Writer(folder) as writer:
        for step in range(3):
            buffer[:] = step
            writer.put(Vector(step=step, name="sketch", values=buffer))
    with load(folder) as run:
        assert [run.vector("sketch", step).values[0] for step in range(3)] == [0, 1, 2]


def test_a_step_logged_twice_keeps_the_later_value(folder: Path) -> None:
    with Writer(folder) as writer:
        writer.put(row(5, a=1.0, b=1.0))
        writer.put(row(5, a=2.0))
        writer.flush()
        writer.put(row(5, c=3.0, b=math.nan))
    with load(folder) as run:
        assert [run.series(name)[1].tolist() for name in "ac"] == [[2.0], [3.0]]
        assert np.isnan(run.series("b")[1]).tolist() == [True]
        assert run.steps()["step"].tolist() == [5]


@pytest.mark.parametrize("between", [lambda writer: None, Writer.flush])
def test_a_later_row_without_coordinates_does_not_erase_the_known_ones(
    folder: Path, between: Callable[[Writer], None]
) -> None:
    with Writer(folder) as writer:
        writer.put(Row(step=5, wall_time=1.0, values={"a": 1.0}, env_steps=640, rollout=2, epoch=0))
        between(writer)
        writer.put(Row(step=5, wall_time=2.0, values={"b": 1.0}, epoch=9))
    with load(folder) as run:
        columns = {name: values.tolist() for name, values in run.steps().items()}
    assert columns == {
        "step": [5],
        "wall_time": [2.0],
        "env_steps": [640],
        "rollout": [2],
        "epoch": [9],
    }


def test_steps_may_come_out_of_order(folder: Path) -> None:
    with Writer(folder) as writer:
        for step in (3, 1, 2):
            writer.put(row(step))
    with load(folder) as run:
        assert run.series("loss")[0].tolist() == [1, 2, 3]


def test_facts_are_merged_key_by_key(folder: Path) -> None:
    with Writer(folder, facts={"seed": 1, "config": {"lr": 0.1}}) as writer:
        writer.set_facts({"seed": 2, "git": {"commit": "abc"}})
    with load(folder) as run:
        assert run.facts == {
            "schema_version": 2,
            "seed": 2,
            "config": {"lr": 0.1},
            "git": {"commit": "abc"},
        }


def test_the_same_finding_in_the_same_block_is_one_row(folder: Path) -> None:
    def finding(title: str, block: str | None) -> Finding:
        return Finding(
            id="over-clipping", title=title, severity="warn", basis="heuristic", block=block
        )

    with Writer(folder) as writer:
        for title, block in (("first", None), ("second", None), ("actor's", "actor")):
            writer.put(finding(title, block))
    with load(folder) as run:
        assert [(found.title, found.block) for found in run.findings()] == [
            ("second", None),
            ("actor's", "actor"),
        ]


def test_a_run_with_steps_is_not_written_over_and_the_ways_out_are_named(written: Path) -> None:
    with pytest.raises(RunExists, match=r"10 steps, up to step 9: resume=9 .* overwrite=True"):
        Writer(written)
    with load(written) as run:
        assert run.newest_step == 9
    assert not (written / "run.lock").exists()


def test_resume_and_overwrite_together_are_refused(written: Path) -> None:
    with pytest.raises(UsageError, match="give one of them"):
        Writer(written, resume=3, overwrite=True)


def test_overwriting_starts_afresh(written: Path) -> None:
    with Writer(written, overwrite=True) as writer:
        writer.put(row(1, other=1.0))
    with load(written) as run:
        assert run.names() == ["other"]
        assert "seed" not in run.facts


def test_overwriting_replaces_a_damaged_run_but_no_stranger_s_file(written: Path) -> None:
    with (written / "run.db").open("r+b") as file:
        file.truncate(5000)
    Writer(written, overwrite=True).close()
    for content in (b"my notes", b"SQLite format 3\0" + bytes(84)):
        (written / "run.db").write_bytes(content)
        with pytest.raises(NotARun, match="not overwritten"):
            Writer(written, overwrite=True)
        assert (written / "run.db").read_bytes() == content


def test_a_run_needs_a_folder_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(NotARun, match="a run is a folder"):
        Writer(tmp_path / "train.py")


def test_resuming_removes_what_lies_beyond_and_records_how_much(folder: Path) -> None:
    def finding(name: str, since: int | None) -> Finding:
        return Finding(id=name, title="t", severity="info", basis="heuristic", since_step=since)

    with Writer(folder) as writer:
        for step in range(1, 7):
            writer.put(row(step, **{"a": 1.0, f"only/{step}": 2.0}))
            writer.put(Event(step=step, kind="k", message="m"))
            writer.put(Table(step=step, name="t", content=step))
            writer.put(Vector(step=step, name="v", values=np.zeros(2)))
        for name, since in (("early", 2), ("late", 5), ("always", None)):
            writer.put(finding(name, since))
    with Writer(folder, resume=4) as writer:
        writer.put(row(5, a=9.0))
    with load(folder) as run:
        assert run.series("a")[1].tolist() == [1, 1, 1, 1, 9]
        assert run.names() == ["a", "only/1", "only/2", "only/3", "only/4"]
        assert [table.content for table in run.tables("t")] == [1, 2, 3, 4]
        assert run.vector_steps("v").tolist() == [1, 2, 3, 4]
        assert len(run.events("k")) == 4
        assert [found.id for found in run.findings()] == ["early", "always"]
        (resumed,) = run.events("resumed")
    removed = {"steps": 2, "points": 4, "tables": 2, "vectors": 2, "events": 2, "findings": 1}
    assert (resumed.step, resumed.detail) == (4, removed)


def test_keep_bounds_the_vectors_of_each_name(folder: Path) -> None:
    with Writer(folder, keep=3) as writer:
        for step in range(10):
            writer.put(Vector(step=step, name="a", values=np.zeros(2)))
            if step < 2:
                writer.put(Vector(step=step, name="b", values=np.zeros(2)))
            if step == 5:
                writer.flush()
    with load(folder) as run:
        assert run.vector_steps("a").tolist() == [7, 8, 9]
        assert run.vector_steps("b").tolist() == [0, 1]


def test_a_full_queue_drops_and_counts_and_records_the_drops(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "CAPACITY", 20)
    write, slow = Batches.write, [True]

    def slow_write(batches: Batches, records: list) -> None:
        while slow[0]:
            time.sleep(0.01)
        write(batches, records)

    monkeypatch.setattr(Batches, "write", slow_write)
    with Writer(folder) as writer:
        for step in range(200):
            writer.put(row(step))
        dropped = writer.dropped
        slow[0] = False
    assert 0 < dropped == writer.dropped < 200
    with load(folder) as run:
        assert len(run.steps()["step"]) == 200 - dropped
        events = run.events("dropped")
    assert sum(event.detail["records"] for event in events) == dropped


def test_a_fast_producer_that_flushes_loses_nothing(folder: Path) -> None:
    with Writer(folder) as writer:
        for step in range(3000):
            writer.put(row(step, **{str(index): float(index) for index in range(50)}))
            if step % 1000 == 999:
                writer.flush()
    with load(folder) as run:
        assert (writer.dropped, len(run.series("49")[0])) == (0, 3000)


def test_closing_twice_is_fine_and_putting_afterwards_warns_once(folder: Path) -> None:
    writer = Writer(folder)
    writer.put(row(1))
    writer.close()
    writer.close()
    writer.flush()
    with pytest.warns(GradiometerWarning, match="closed"):
        writer.put(row(2))
    writer.put(row(3))
    assert writer.dropped == 2


def test_a_removed_run_folder_warns_once_and_the_training_goes_on(
    folder: Path, tmp_path: Path
) -> None:
    writer = Writer(folder)
    writer.put(row(1))
    writer.flush()
    folder.rename(tmp_path / "moved")
    writer.put(row(2))
    with pytest.warns(GradiometerWarning, match="removed, moved or replaced"):
        writer.flush()
    for step in range(3, 10):
        writer.put(row(step))
    writer.close()
    assert writer.dropped == 8
    assert not folder.exists()


def test_a_run_removed_after_the_last_record_is_noticed_on_close(
    folder: Path, tmp_path: Path
) -> None:
    writer = Writer(folder)
    writer.flush()
    folder.rename(tmp_path / "moved")
    with pytest.warns(GradiometerWarning, match="closed cleanly"):
        writer.close()


def test_an_unexpected_error_in_the_thread_warns_once_and_nothing_hangs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Writer(folder) as writer:
        writer.put(row(1))
        writer.flush()
        monkeypatch.setattr(Batches, "_write_rows", lambda self, rows: 1 / 0)
        writer.put(row(2))
        with pytest.warns(GradiometerWarning, match="ZeroDivisionError"):
            writer.flush()
        for step in range(3, 6):
            writer.put(row(step))
        writer.flush()
    assert writer.dropped == 4
    monkeypatch.undo()
    with load(folder) as run:
        assert run.newest_step == 1


def test_a_batch_is_kept_whole_or_not_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Writer(folder) as writer:
        monkeypatch.setattr(Batches, "_write_events", _disk_full)
        writer.put(row(1, lost=1.0))
        with pytest.warns(GradiometerWarning, match="disk is full"):
            writer.flush()
        monkeypatch.undo()
        writer.flush()
        with load(folder) as run:
            assert run.names() == []
        writer.put(row(2, lost=2.0, kept=1.0))
        writer.flush()
        with load(folder) as run:
            assert run.names() == ["kept", "lost"]
            assert run.series("lost")[1].tolist() == [2.0]
            assert run.events("dropped")[0].detail == {"records": 1}


def _disk_full(batches: Batches, events: list[Event]) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_a_reader_that_stays_does_not_keep_the_run_from_closing(folder: Path) -> None:
    writer = Writer(folder)
    writer.put(row(1))
    writer.flush()
    with load(folder) as run:
        assert run.newest_step == 1
        writer.put(row(2))
        writer.close()
        assert run.newest_step == 2
    with load(folder) as run:
        assert run.newest_step == 2


def test_several_threads_may_put(folder: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with Writer(folder) as writer, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda step: writer.put(row(step)), range(400)))
    with load(folder) as run:
        assert run.series("loss")[0].tolist() == list(range(400))


def test_who_looks_while_a_run_is_created_finds_none_and_never_half_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    stamp = database._stamp

    def look() -> str:
        with pytest.raises(NotARun) as none:
            load(tmp_path / "run")
        seen.append(str(none.value))
        return stamp()

    monkeypatch.setattr(database, "_stamp", look)
    Writer(tmp_path / "run").close()
    assert seen == [f"{tmp_path / 'run'} is not a run: no run.db in it"]
    assert not list((tmp_path / "run").glob("*.new*"))
