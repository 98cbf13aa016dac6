"""A long series in few points: no spike is lost, and SQLite and numpy agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradiometer.errors import UnknownName
from gradiometer.records import Row
from gradiometer.store import reader
from gradiometer.store.logs import Log
from gradiometer.store.thinning import bucket_edges, thin
from gradiometer.store.writer import Writer

LONG = 30_000


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More points than are thinned in Python, with a spike, a NaN, an Inf, a hole, and a second
    series."""
    folder = tmp_path_factory.mktemp("long") / "run"
    rng = np.random.default_rng(3)
    values = rng.normal(size=LONG)
    values[17_321], values[20_000], values[25_000], values[25_001] = (
        1e6,
        math.nan,
        math.inf,
        -math.inf,
    )
    with Writer(folder) as writer:
        for step in range(LONG):
            if 9_000 <= step < 9_500:
                continue
            own = {"v": float(values[step])} | ({"rare": float(step)} if step % 100 == 0 else {})
            writer.put(Row(step=step, wall_time=1000.0 + step / 2, values=own, epoch=step // 1000))
            if step % 5_000 == 0:
                writer.flush()
    return folder


def test_a_bucket_has_the_mean_and_the_extremes_of_its_finite_values() -> None:
    steps = np.arange(6)
    found = thin(steps, np.array([1.0, 5.0, 3.0, math.nan, math.inf, 2.0]), bucket_edges(0, 5, 2))
    assert found.steps.tolist() == [2, 5]
    assert found.mean.tolist() == [3.0, 2.0]
    assert found.low.tolist() == [1.0, 2.0]
    assert found.high.tolist() == [5.0, 2.0]
    assert found.broken.tolist() == [False, True]


def test_a_bucket_of_nothing_but_nan_is_nan() -> None:
    found = thin(np.arange(4), np.array([1.0, 1.0, math.nan, math.nan]), bucket_edges(0, 3, 2))
    assert math.isnan(found.mean[1])
    assert math.isnan(found.low[1])
    assert found.broken.tolist() == [False, True]


@settings(max_examples=60)
@given(
    steps=st.sets(st.integers(-1000, 5000), min_size=1, max_size=200),
    most=st.integers(1, 50),
    seed=st.integers(0, 100),
)
def test_thinning_keeps_every_extreme_and_counts_every_point(
    steps: set[int], most: int, seed: int
) -> None:
    own = np.array(sorted(steps), dtype=np.int64)
    values = np.random.default_rng(seed).normal(size=len(own))
    found = thin(own, values, bucket_edges(int(own[0]), int(own[-1]), most))
    assert len(found.steps) <= most
    assert found.low.min() == values.min()
    assert found.high.max() == values.max()
    assert found.steps[-1] == own[-1]
    assert set(found.steps.tolist()) <= steps
    assert (found.low <= found.mean + 1e-12).all()
    assert (found.mean <= found.high + 1e-12).all()


@pytest.mark.slow
def test_sqlite_and_numpy_thin_alike(long_run: Path) -> None:
    with reader.load(long_run) as run:
        steps, values = run.series("v")
        assert len(steps) == LONG - 500 > reader.IN_PYTHON
        by_sql = run.thinned("v", 100)
        by_numpy = thin(steps, values, bucket_edges(0, LONG - 1, 100))
    np.testing.assert_array_equal(by_sql.steps, by_numpy.steps)
    np.testing.assert_allclose(by_sql.mean, by_numpy.mean, rtol=1e-9)
    np.testing.assert_array_equal(by_sql.low, by_numpy.low)
    np.testing.assert_array_equal(by_sql.high, by_numpy.high)
    np.testing.assert_array_equal(by_sql.broken, by_numpy.broken)
    assert by_sql.high.max() == 1e6
    assert not by_sql.whole


def test_what_is_short_enough_comes_as_it_is(long_run: Path) -> None:
    with reader.load(long_run) as run:
        found = run.thinned("rare", 1000)
        steps, values = run.series("rare")
    assert found.whole
    np.testing.assert_array_equal(found.steps, steps)
    np.testing.assert_array_equal(found.mean, values)


def test_a_window_is_read_at_full_resolution(long_run: Path) -> None:
    with reader.load(long_run) as run:
        window = run.thinned("v", 1000, first=17_000, last=17_500)
        steps, values = run.part("v", 17_000, 17_500)
        assert run.part("v", 9_000, 9_499)[0].tolist() == []
        assert run.thinned("v", 100, first=9_000, last=9_499).steps.tolist() == []
    assert window.whole
    assert window.steps.tolist() == steps.tolist() == list(range(17_000, 17_501))
    assert values[321] == 1e6


def test_a_log_answers_the_same_questions_as_a_run(long_run: Path, tmp_path: Path) -> None:
    with reader.load(long_run) as run:
        steps, values = run.series("v")
        rows = [(int(step), {"v": float(value)}) for step, value in zip(steps, values, strict=True)]
        log = Log(tmp_path / "x.csv", name="x", run_id="x", rows=rows)
        for mine, theirs in zip(run.part("v", 100, 120), log.part("v", 100, 120), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        mine, theirs = run.thinned("v", 50), log.thinned("v", 50)
        np.testing.assert_array_equal(mine.high, theirs.high)
        np.testing.assert_array_equal(mine.steps, theirs.steps)
        asked = np.array([-5, 0, 9_200, 29_999])
        np.testing.assert_array_equal(run.latest("v", asked), log.latest("v", asked))
        assert run.first_step == log.first_step == 0


def test_latest_is_the_last_value_at_or_before_a_step(long_run: Path) -> None:
    with reader.load(long_run) as run:
        found = run.latest("rare", np.array([-1, 0, 99, 100, 150]))
    assert math.isnan(found[0])
    assert found[1:].tolist() == [0.0, 0.0, 100.0, 100.0]


def test_where_gives_a_column_of_the_steps(long_run: Path) -> None:
    with reader.load(long_run) as run:
        assert run.where("wall_time", np.array([0, 10])).tolist() == [1000.0, 1005.0]
        assert run.where("epoch", np.array([2_500])).tolist() == [2.0]
        assert math.isnan(run.where("rollout", np.array([0]))[0])
        assert math.isnan(run.where("wall_time", np.array([9_100]))[0])
        with pytest.raises(ValueError, match="not in tuple"):
            run.where("value; DROP TABLE points", np.array([0]))


def test_an_unknown_series_is_an_error_in_every_question(long_run: Path) -> None:
    with reader.load(long_run) as run:
        for ask in (
            lambda: run.part("w"),
            lambda: run.thinned("w", 5),
            lambda: run.latest("w", np.array([1])),
        ):
            with pytest.raises(UnknownName):
                ask()


LAST = 2**63 - 1


@pytest.mark.parametrize(
    "steps",
    [
        range(LAST - 25_000, LAST + 1),
        [*range(-LAST - 1, -LAST + 12_000), *range(LAST - 12_000, LAST + 1)],
    ],
)
def test_steps_at_the_ends_of_the_integers_are_thinned_alike(
    tmp_path: Path, steps: Sequence[int]
) -> None:
    with Writer(tmp_path / "run") as writer:
        for step in steps:
            writer.put(Row(step=step, wall_time=0.0, values={"v": float(step % 101)}))
    with reader.load(tmp_path / "run") as run:
        own, values = run.series("v")
        assert len(own) == len(steps) > reader.IN_PYTHON
        by_sql, by_numpy = (
            run.thinned("v", 50),
            thin(own, values, bucket_edges(int(own[0]), int(own[-1]), 50)),
        )
    for found in (by_sql, by_numpy):
        assert found.steps[-1] == LAST
        assert len(found.steps) <= 50
        assert (found.low.min(), found.high.max()) == (0.0, 100.0)
    np.testing.assert_array_equal(by_sql.steps, by_numpy.steps)
    np.testing.assert_array_equal(by_sql.high, by_numpy.high)


def test_a_mean_of_the_largest_numbers_is_no_infinity(tmp_path: Path) -> None:
    with Writer(tmp_path / "run") as writer:
        for step in range(25_000):
            writer.put(Row(step=step, wall_time=0.0, values={"v": 1.7e308}))
    with reader.load(tmp_path / "run") as run:
        by_sql, by_numpy = run.thinned("v", 50), thin(*run.series("v"), bucket_edges(0, 24_999, 50))
    assert by_sql.mean.tolist() == by_numpy.mean.tolist() == [1.7e308] * 50
