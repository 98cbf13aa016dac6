"""Means over runs: by hand, against brute force, and as runs grow."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradiometer.maths.ensembles import ensemble


def run(steps: list[int], values: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)


def test_runs_at_the_same_steps_are_averaged_as_they_are() -> None:
    found = ensemble([run([0, 10], [1.0, 4.0]), run([0, 10], [3.0, 8.0]), run([0, 10], [5.0, 6.0])])
    assert found.steps.tolist() == [0, 10]
    assert found.mean.tolist() == [3.0, 6.0]
    assert found.std.tolist() == [2.0, 2.0]
    assert found.low.tolist() == [1.0, 4.0]
    assert found.high.tolist() == [5.0, 8.0]
    assert found.lowest.tolist() == [1.0, 4.0]
    assert (found.count, found.interpolated) == (3, False)


def test_a_run_measured_twice_as_often_is_read_where_both_were_measured() -> None:
    found = ensemble([run([0, 10, 20, 30, 40], [0, 99, 2, 99, 4]), run([0, 20, 40], [10, 10, 10])])
    assert found.steps.tolist() == [0, 20, 40]
    assert found.mean.tolist() == [5.0, 6.0, 7.0]
    assert not found.interpolated


def test_cadences_that_never_meet_are_interpolated_within_the_overlap_only() -> None:
    found = ensemble([run([0, 10, 20], [0, 10, 20]), run([5, 15, 25], [100, 200, 300])])
    assert found.steps.tolist() == [5, 10, 15, 20]
    assert found.mean.tolist() == [(5 + 100) / 2, (10 + 150) / 2, (15 + 200) / 2, (20 + 250) / 2]
    assert found.interpolated


def test_runs_that_never_overlap_have_no_mean() -> None:
    assert not len(ensemble([run([0, 1], [1, 1]), run([5, 6], [1, 1])]).steps)


def test_a_nan_of_one_run_is_a_nan_of_the_mean_at_that_step_only() -> None:
    found = ensemble([run([0, 1, 2], [1.0, math.nan, 3.0]), run([0, 1, 2], [1.0, 1.0, 1.0])])
    assert np.isnan(found.mean).tolist() == [False, True, False]
    between = ensemble([run([0, 10, 20], [1.0, math.nan, 3.0]), run([1, 12, 19], [1.0, 1.0, 1.0])])
    assert between.steps.tolist() == [1, 10, 12, 19]
    assert np.isnan(between.mean).all()


def test_an_infinity_is_kept_where_it_was_measured() -> None:
    found = ensemble([run([0, 1], [math.inf, 1.0]), run([0, 1], [1.0, 1.0])])
    assert found.mean.tolist() == [math.inf, 1.0]


Steps = st.lists(st.integers(0, 60), min_size=1, max_size=25, unique=True).map(sorted)


@given(st.lists(Steps, min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_it_is_the_plain_mean_over_straight_lines_and_never_leaves_what_all_cover(
    all_steps: list[list[int]], random: object
) -> None:
    values = [[random.uniform(-5, 5) for _ in steps] for steps in all_steps]  # type: ignore[attr-defined]
    found = ensemble([run(steps, own) for steps, own in zip(all_steps, values, strict=True)])
    first, last = max(steps[0] for steps in all_steps), min(steps[-1] for steps in all_steps)
    assert all(first <= step <= last for step in found.steps.tolist())
    for place, step in enumerate(found.steps.tolist()):
        at = [np.interp(step, steps, own) for steps, own in zip(all_steps, values, strict=True)]
        assert math.isclose(found.mean[place], np.mean(at), abs_tol=1e-9)
        assert math.isclose(found.std[place], np.std(at, ddof=1), abs_tol=1e-9)


@given(st.lists(Steps, min_size=2, max_size=3), st.integers(1, 20))
def test_steps_that_were_there_stay_as_they_are_while_the_runs_grow(
    all_steps: list[list[int]], more: int
) -> None:
    def made(extra: int) -> list[tuple[np.ndarray, np.ndarray]]:
        grown = [
            [*steps, *range(steps[-1] + 1 + place, steps[-1] + 1 + place + extra)]
            for place, steps in enumerate(all_steps)
        ]
        return [
            run(steps, [math.sin(step + place) for step in steps])
            for place, steps in enumerate(grown)
        ]

    before, after = ensemble(made(0)), ensemble(made(more))
    if before.interpolated != after.interpolated:
        return  # the label of the line says so, and the whole view is sent
    kept = np.isin(after.steps, before.steps)
    assert after.steps[kept].tolist() == before.steps.tolist()
    assert np.allclose(after.mean[kept], before.mean)
    assert (after.steps[~kept] > (before.steps[-1] if len(before.steps) else -1)).all()
