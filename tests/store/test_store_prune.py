from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradiometer.errors import NotARun, RunLocked, RunNotFound, UsageError
from gradiometer.records import Row, Vector
from gradiometer.store.batches import prune
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer


@pytest.fixture
def sketched(folder: Path) -> Path:
    with Writer(folder) as writer:
        for step in range(20):
            writer.put(Row(step=step, wall_time=0.0, values={"a": 1.0}))
            writer.put(
                Vector(
                    step=step, name="sketch", values=np.random.default_rng(step).normal(size=1000)
                )
            )
            if step % 10 == 0:
                writer.put(Vector(step=step, name="histogram", values=np.zeros(10)))
    return folder


def test_pruning_keeps_the_last_vectors_of_each_name_and_makes_the_file_smaller(
    sketched: Path,
) -> None:
    before = (sketched / "run.db").stat().st_size
    assert prune(sketched, keep=3) == 17
    assert (sketched / "run.db").stat().st_size < before / 2
    assert [file.name for file in sketched.iterdir()] == ["run.db"]
    with load(sketched) as run:
        assert run.vector_steps("sketch").tolist() == [17, 18, 19]
        assert run.vector_steps("histogram").tolist() == [0, 10]
        assert len(run.series("a")[0]) == 20


def test_pruning_to_nothing_removes_every_vector(sketched: Path) -> None:
    assert prune(sketched / "run.db", keep=0) == 22
    with load(sketched) as run:
        assert run.vector_names() == []


def test_a_run_being_written_is_not_pruned(folder: Path) -> None:
    with Writer(folder), pytest.raises(RunLocked):
        prune(folder, keep=1)


def test_pruning_what_is_no_run_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        prune(tmp_path / "gone", keep=1)
    with pytest.raises(NotARun):
        prune(tmp_path, keep=1)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(NotARun):
        prune(tmp_path / "notes.txt", keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_keeping_fewer_than_none_is_refused(sketched: Path) -> None:
    with pytest.raises(UsageError, match="keep=-1"):
        prune(sketched, keep=-1)
