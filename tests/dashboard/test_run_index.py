from __future__ import annotations

from gradiometer.charts.model import Points
from gradiometer.dashboard.run_index import PointCache


def read(number: int) -> Points:
    return Points(steps=list(range(number)), values=[1.0] * number)


def test_a_series_is_read_once_for_each_state_of_its_file() -> None:
    cache, reads = PointCache(), []
    for state in ("a", "a", "b", "b"):
        points = cache.get("reward", state, lambda: reads.append(state) or read(3))  # noqa: B023
        assert points.steps == [0, 1, 2]
    assert reads == ["a", "b"]


def test_a_run_that_is_being_written_takes_no_more_memory_than_its_last_state() -> None:
    cache = PointCache()
    for state in range(1000):
        cache.get("reward", state, lambda: read(10))
        cache.get("loss", state, lambda: read(10))
    assert cache._held == 2 * (1 + 2 * 10)
    assert len(cache._points) == 2


def test_beyond_its_capacity_what_was_not_asked_for_longest_goes() -> None:
    cache = PointCache(capacity=3 * 21)
    for name in ("a", "b", "c", "a", "d"):
        cache.get(name, 0, lambda: read(10))
    assert list(cache._points) == ["c", "a", "d"]
