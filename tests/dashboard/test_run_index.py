"""The runs of a folder: caches within bytes, logs that grow, files that are never read to an end."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradiometer.charts.model import Points
from gradiometer.dashboard import run_index
from gradiometer.dashboard.answer import answer
from gradiometer.dashboard.byte_cache import ByteCache
from gradiometer.dashboard.diagnoses import Diagnoses
from gradiometer.dashboard.query import Query
from gradiometer.dashboard.replaceable_threads import ReplaceableThreads, TookTooLong
from gradiometer.dashboard.run_index import RunIndex
from gradiometer.errors import UsageError
from gradiometer.records import Row
from gradiometer.store.importers import open_log
from gradiometer.store.writer import Writer


def read(number: int) -> Points:
    return Points(steps=list(range(number)), values=[1.0] * number)


def points_cache(capacity: int = 1 << 20) -> ByteCache[Points]:
    return ByteCache(capacity, run_index._weight)


def test_a_series_is_read_once_for_each_state_of_its_file() -> None:
    cache, reads = points_cache(), []
    for state in ("a", "a", "b", "b"):
        points = cache.get("reward", state, lambda: reads.append(state) or read(3))  # noqa: B023
        assert points.steps == [0, 1, 2]
    assert reads == ["a", "b"]


def test_a_run_that_is_being_written_takes_no_more_memory_than_its_last_state() -> None:
    cache = points_cache()
    for state in range(1000):
        cache.get("reward", state, lambda: read(10))
        cache.get("loss", state, lambda: read(10))
    assert cache.held == 2 * run_index._weight(read(10))
    assert len(cache) == 2


def test_beyond_its_bytes_what_was_not_asked_for_longest_goes() -> None:
    cache = points_cache(3 * run_index._weight(read(10)))
    for name in ("a", "b", "c", "a", "d"):
        cache.get(name, 0, lambda: read(10))
    assert [name for name in "abcd" if cache.peek(name) is not None] == ["a", "c", "d"]


def test_what_is_held_is_weighed_about_as_heavy_as_it_is() -> None:
    import tracemalloc

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    rng = np.random.default_rng(0)
    made = [
        Points(steps=list(range(300, 2300)), values=rng.normal(size=2000).tolist())
        for _ in range(50)
    ]
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    weighed = sum(map(run_index._weight, made))
    assert 0.8 < weighed / taken < 1.3


@pytest.mark.slow
def test_the_memory_of_a_live_run_with_ten_readers_is_flat(tmp_path: Path) -> None:
    """Every reader has a question of its own, so that none is answered for another."""
    import gc
    import tracemalloc

    index = RunIndex(tmp_path)
    diagnoses = Diagnoses(index, patience=60.0)
    cursors = [""] * 10
    sizes = []

    def tick() -> None:
        for reader, after in enumerate(cursors):
            query = Query(runs=("live",), most=40 + reader, after=after)
            cursors[reader] = answer(index, diagnoses, "overview", query).cursor

    with Writer(tmp_path / "live") as writer:
        tracemalloc.start()
        for round in range(3):
            for step in range(20 * round, 20 * round + 20):
                values = {"reward": float(step), "grad/all/norm/raw": 1.0}
                writer.put(Row(step=step, wall_time=1e9 + step, values=values))
            writer.flush()
            cursors[:] = [""] * 10 if round % 2 else cursors
            tick()
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    diagnoses.close()
    assert index.points.held <= run_index.POINT_BYTES
    # Twenty more points in each of two series of ten readers: some kilobytes, not megabytes.
    assert sizes[-1] - sizes[1] < 1_000_000


def lines(first: int, last: int) -> str:
    rows = ({"step": step, "loss": 1.0 / (step + 1), "reward": step} for step in range(first, last))
    return "".join(json.dumps(row) + "\n" for row in rows)


def opened(index: RunIndex, id: str) -> dict[str, Any]:
    with index.open(id) as log:
        return {name: [list(part) for part in log.series(name)] for name in log.names()}


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_of_a_log_that_grew_only_the_new_lines_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    file = tmp_path / "run" / f"metrics.{kind}"
    file.parent.mkdir()
    write = {
        "jsonl": lines,
        "csv": lambda first, last: "".join(f"{s},{1 / (s + 1)},{s}\n" for s in range(first, last)),
    }[kind]
    file.write_text(("" if kind == "jsonl" else "step,loss,reward\n") + write(0, 3000))
    whole: list[Path] = []
    monkeypatch.setattr(run_index, "open_log", lambda path: whole.append(path) or open_log(path))
    index = RunIndex(tmp_path)
    opened(index, "run")
    for first in (3000, 3001):
        with file.open("a") as out:
            out.write(write(first, first + 1))
        assert len(opened(index, "run")["loss"][0]) == first + 1
    assert len(whole) == 1
    assert opened(index, "run") == opened(RunIndex(tmp_path), "run")


@pytest.mark.parametrize("change", ["rewritten", "resumed", "half a line"])
def test_a_log_that_did_more_than_grow_is_read_whole(tmp_path: Path, change: str) -> None:
    file = tmp_path / "run" / "metrics.jsonl"
    file.parent.mkdir()
    half = '{"step": 50, "loss": 0.'
    file.write_text(lines(0, 50) + (half if change == "half a line" else ""))
    index = RunIndex(tmp_path)
    opened(index, "run")
    if change == "rewritten":
        file.write_text(lines(0, 50).replace("0.5", "0.7") + lines(50, 60))
    elif change == "resumed":
        file.write_text(lines(0, 50) + lines(40, 60))
    else:
        file.write_text(lines(0, 50) + half + '25, "reward": 1}\n' + lines(51, 60))
    assert opened(index, "run") == opened(RunIndex(tmp_path), "run")


def test_the_list_of_runs_does_not_wait_for_a_log_that_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run" / "metrics.jsonl"
    file.parent.mkdir()
    file.write_text(lines(0, 50))
    index = RunIndex(tmp_path)
    assert [card.newest_step for card in index.cards()] == [49]
    release = threading.Event()
    monkeypatch.setattr(run_index, "open_log", lambda path: release.wait(60) or open_log(path))
    file.write_text(lines(0, 80)[5:])  # no tail
    began = time.monotonic()
    assert [card.newest_step for card in index.cards()] == [49]
    assert time.monotonic() - began < run_index.PARSE_SECONDS / 2
    release.set()


def test_a_stray_file_in_the_root_hides_no_run(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text(lines(0, 5))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.jsonl").write_text(lines(0, 9))
    os.mkfifo(tmp_path / "b" / "pipe.jsonl")
    assert RunIndex(tmp_path).ids() == sorted([tmp_path.name, "a", "b"])


def test_threads_that_are_stuck_are_replaced_and_their_files_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def slowly(path: Path) -> Any:
        if path.name.startswith("stuck"):
            release.wait(60)
        return open_log(path)

    monkeypatch.setattr(run_index, "open_log", slowly)
    monkeypatch.setattr(run_index, "GIVEN_UP_SECONDS", 1.5)
    for name in (*(f"stuck-{n}" for n in range(run_index.PARSERS)), "fine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "progress.csv").write_text("step,loss\n1,2\n2,3\n")
    index = RunIndex(tmp_path)
    for number in range(run_index.PARSERS):
        with pytest.raises(UsageError, match="not read within"), index.open(f"stuck-{number}"):
            pass
    assert opened(index, "fine") == {"loss": [[1, 2], [2.0, 3.0]]}
    began = time.monotonic()
    with pytest.raises(UsageError, match="not read within"), index.open("stuck-0"):
        pass
    assert time.monotonic() - began < 1.0  # it is not tried again
    release.set()


def test_work_that_fails_or_is_late_says_so_and_other_work_goes_on() -> None:
    threads, release = ReplaceableThreads(1, seconds=0.2, name="test"), threading.Event()
    late = threads.submit(release.wait, 60)
    after = threads.submit(lambda: 1)
    failed = threads.submit(lambda: 1 // 0)
    with pytest.raises(TookTooLong):
        late.result(30)
    assert after.result(30) == 1
    with pytest.raises(ZeroDivisionError):
        failed.result(30)
    release.set()
    threads.close()
    assert threads.submit(lambda: 1).cancelled()
