"""Means of autocorrelated series: how often the interval covers the truth, and where there must be
none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gradiometer.maths import means


def red_noise(phi: float, length: int, *, count: int, seed: int = 0) -> np.ndarray:
    """AR(1) series of unit variance [count, length], begun in their stationary law."""
    shocks = np.random.default_rng([seed, length, round(100 * phi)]).standard_normal(
        (count, length)
    )
    x = np.empty_like(shocks)
    x[:, 0] = shocks[:, 0]
    for i in range(1, length):
        x[:, i] = phi * x[:, i - 1] + math.sqrt(1 - phi**2) * shocks[:, i]
    return x


def covered(phi: float, length: int, count: int) -> tuple[float, float, float]:
    """Share of series with an interval, share of those that cover 0, share of all series with one
    that does not."""
    found = [means.mean_interval(x) for x in red_noise(phi, length, count=count, seed=5)]
    inside = [each.low <= 0.0 <= each.high for each in found if each]
    given = len(inside) / count
    return (
        given,
        (sum(inside) / len(inside) if inside else math.nan),
        (len(inside) - sum(inside)) / count,
    )


@pytest.mark.parametrize(
    ("phi", "length"),
    [
        (0.0, 50),
        (0.5, 50),
        (0.0, 200),
        (0.5, 200),
        (0.0, 1000),
        (0.5, 1000),
        (0.9, 1000),
        (0.95, 1000),
    ],
)
def test_where_blocks_suffice_the_interval_covers_the_mean_as_often_as_it_says(
    phi: float, length: int
) -> None:
    share, coverage, _ = covered(phi, length, 300 if length < 1000 else 150)
    assert share > 0.8
    assert 0.9 <= coverage <= 0.99


@pytest.mark.parametrize(("phi", "length"), [(0.9, 50), (0.95, 50), (0.95, 200)])
def test_where_they_do_not_there_is_hardly_ever_an_interval(phi: float, length: int) -> None:
    share, _, wrong = covered(phi, length, 300)
    assert share < 0.2
    assert wrong < 0.06


def test_between_the_two_wrong_intervals_stay_as_rare_as_promised() -> None:
    share, coverage, wrong = covered(0.9, 200, 300)
    assert 0.3 < share < 0.8
    assert coverage > 0.85
    assert wrong < 0.08


def test_students_own_interval_would_be_wrong_two_times_in_three() -> None:
    noise = red_noise(0.9, 200, count=300, seed=5)
    width = stats.t.ppf(0.975, 199) * noise.std(axis=1, ddof=1) / math.sqrt(200)
    assert float((abs(noise.mean(axis=1)) < width).mean()) < 0.4


def test_independent_values_in_pairs_give_students_interval_of_the_pair_means() -> None:
    x = np.array(
        [1.0, -1.0, 2.0, -2.0, 1.5, -1.0, 1.0, -2.0, 2.5, -1.5, 1.0, -1.0]
    )  # to and fro: τ = 1
    found = means.mean_interval(x)
    pairs = x.reshape(6, 2).mean(axis=1)
    assert found is not None
    assert (found.num_blocks, found.block, found.count) == (6, 2, 12)
    low, high = stats.t.interval(0.95, 5, loc=x.mean(), scale=pairs.std(ddof=1) / math.sqrt(6))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_tests_agree_with_the_interval_and_with_scipy() -> None:
    found = means.mean_interval(red_noise(0.5, 300, count=1)[0] + 0.2)
    assert found is not None
    assert 2.0 * found.p_above(found.low) == pytest.approx(0.05)
    assert 2.0 * found.p_below(found.high) == pytest.approx(0.05)
    t = (found.mean - 0.1) / found.error
    assert found.p_above(0.1) == pytest.approx(stats.t.sf(t, found.num_blocks - 1))
    assert found.p_above(0.1) + found.p_below(0.1) == pytest.approx(1.0)


def test_a_constant_is_known_exactly() -> None:
    found = means.mean_interval(np.full(20, 0.3))
    assert found is not None
    assert (found.low, found.high) == (found.mean, found.mean)
    assert (found.p_above(0.2), found.p_above(0.4), found.p_below(found.mean)) == (0.0, 1.0, 1.0)


def test_a_trend_is_not_taken_for_a_long_memory() -> None:
    level = np.linspace(1.0, 0.0, 200) + 0.05 * red_noise(0.0, 200, count=1)[0]
    found = means.mean_interval(level)
    assert found is not None
    assert found.num_blocks > 20
    assert found.low < 0.5 < found.high


def test_what_is_not_finite_is_left_out_and_too_little_is_nothing() -> None:
    x = red_noise(0.0, 60, count=1)[0]
    spoiled = np.insert(x, [5, 30], [math.nan, math.inf])
    assert means.mean_interval(spoiled) == means.mean_interval(x)
    assert means.mean_interval([math.nan] * 30) is None
    assert means.mean_interval([]) is None
    assert means.mean_interval(x[:6]) is None


def test_a_block_is_twice_the_autocorrelation_time() -> None:
    lengths = [means.block_length(x) for x in red_noise(0.8, 2000, count=20)]
    assert np.mean(lengths) == pytest.approx(2 * 9, rel=0.2)  # τ = (1 + φ)/(1 − φ)
    assert means.block_length([1.0, 2.0]) == 2


def test_holms_steps_by_hand() -> None:
    assert means.holm([0.01, 0.04, 0.03, 0.005]) == [
        True,
        False,
        False,
        True,
    ]  # 0.005·4, 0.01·3, then 0.03·2 stops
    assert means.holm([0.04, 0.03]) == [False, False]
    assert means.holm([0.04]) == [True]
    assert means.holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_is_between_bonferroni_and_nothing(p_values: list[float]) -> None:
    fallen = means.holm(p_values)
    for p_value, falls in zip(p_values, fallen, strict=True):
        assert falls or p_value * len(p_values) >= 0.05
        assert not falls or p_value < 0.05
