"""Trends: golden numbers, brute-force oracles, and how often each verdict is wrong on noise that
only wanders."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from itertools import combinations
from statistics import median

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gradiometer.maths import trends

SERIES = 300
"""Noise series per false-alarm rate: at a true rate of 0.01, more than 3 % happens once in some
hundred tries."""


def red_noise(phi: float, length: int, *, count: int = SERIES, seed: int = 0) -> np.ndarray:
    """AR(1) series of unit variance [count, length], begun in their stationary law."""
    shocks = np.random.default_rng([seed, length, round(100 * phi)]).standard_normal(
        (count, length)
    )
    x = np.empty_like(shocks)
    x[:, 0] = shocks[:, 0]
    for i in range(1, length):
        x[:, i] = phi * x[:, i - 1] + math.sqrt(1 - phi**2) * shocks[:, i]
    return x


def every_ten(length: int) -> np.ndarray:
    return 10.0 * np.arange(length)


def stretched(length: int) -> np.ndarray:
    """A cadence of 1, then 4, then 10 steps."""
    return np.cumsum(np.repeat([1, 4, 10], [length // 3, length // 3, length - 2 * (length // 3)]))


# Moving average


def ema(values: npt.ArrayLike, beta: float) -> list[float]:
    """The average after each value; NaN until the first finite one."""
    states = itertools.accumulate(
        np.asarray(values, float).tolist(),
        lambda state, value: trends.ema_update(state, value, beta),
        initial=trends.EMA_START,
    )
    return [mean if weight > 0.0 else math.nan for mean, weight in states][1:]


def test_the_average_is_corrected_for_its_start() -> None:
    # β = 0.5: weights (1), (1, 2)/3, (1, 2, 4)/7
    assert ema([3.0, 6.0, 0.0], 0.5) == pytest.approx([3.0, 5.0, 15 / 7])


def test_the_average_of_a_constant_is_that_constant_from_the_first_value() -> None:
    assert ema(np.full(50, 7.0), 0.99) == pytest.approx(np.full(50, 7.0))


def test_values_that_are_not_finite_do_not_stay_in_the_average() -> None:
    assert ema([math.nan, 1.0, math.inf, 1.0], 0.9) == pytest.approx(
        [math.nan, 1.0, 1.0, 1.0], nan_ok=True
    )


# Autocorrelation time and slope


@pytest.mark.parametrize(("phi", "tolerance"), [(0.0, 0.1), (0.5, 0.15), (0.9, 0.25)])
def test_the_autocorrelation_time_of_ar1_is_known(phi: float, tolerance: float) -> None:
    times = [trends.autocorrelation_time(x) for x in red_noise(phi, 4000, count=20)]
    assert np.mean(times) == pytest.approx((1 + phi) / (1 - phi), rel=tolerance)


@pytest.mark.parametrize("x", [[], [1.0], [0.1] * 30, [math.nan] * 5, (-1.0) ** np.arange(50)])
def test_the_autocorrelation_time_is_at_least_one(x: list[float]) -> None:
    assert trends.autocorrelation_time(x) == 1.0


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.floats(-100, 100)),
        min_size=2,
        max_size=25,
        unique_by=lambda p: p[0],
    )
)
def test_the_slope_is_the_median_of_all_slopes(points: list[tuple[int, float]]) -> None:
    slopes = [(b - a) / (t - s) for (s, a), (t, b) in combinations(points, 2)]
    steps, y = zip(*points, strict=True)
    assert trends.theil_sen(steps, y) == pytest.approx(median(slopes), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("length", [101, trends.MAX_PAIRWISE + 1, 2000])
def test_the_slope_does_not_see_spikes_and_nans(length: int) -> None:
    steps = every_ten(length)
    y = 0.3 * steps + 2.0
    y[::7] = 1e6
    y[::11] = math.nan
    assert trends.theil_sen(steps, y) == pytest.approx(0.3)


def test_one_point_has_no_slope() -> None:
    assert math.isnan(trends.theil_sen([1.0], [1.0]))


def test_a_step_measured_twice_counts_with_its_later_value() -> None:
    assert trends.theil_sen([0, 1, 2, 1], [0.0, 9.0, 2.0, 1.0]) == pytest.approx(1.0)


# Drift


@pytest.mark.slow
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_noise_that_only_wanders_is_rarely_called_a_drift(phi: float) -> None:
    # At 2τ neighbouring blocks still correlate by 1/7 or so: 1500 series a case measured 0.007 to
    # 0.025.
    verdicts = [
        trends.drift(every_ten(n), x, min_effect=0.0)
        for n in (200, 300, 400)
        for x in red_noise(phi, n)
    ]
    assert np.mean([v is not None and v.significant for v in verdicts]) <= 0.03


def test_mann_kendall_on_the_raw_series_is_wrong_half_of_the_time() -> None:
    wrong = [trends._mann_kendall(x) < 0.01 for x in red_noise(0.9, 200)]
    assert 0.45 < np.mean(wrong) < 0.65


SHAPES = {
    "line": lambda u: u,
    "arc": lambda u: u**2,
    "saturating": lambda u: 1 - np.exp(-5 * u),
    "sigmoid": lambda u: 1 / (1 + np.exp(-15 * (u - 0.5))),
    "step": lambda u: (u > 0.5) * 1.0,
}


@pytest.mark.parametrize("decades", [0.7, -0.7, 3.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_drift_of_any_monotone_shape_is_found_in_noise(shape: str, decades: float) -> None:
    steps = every_ten(200)
    signal = decades * SHAPES[shape](np.linspace(0, 1, 200))
    found = [trends.drift(steps, signal + 0.15 * x) for x in red_noise(0.5, 200, count=60)]
    assert (
        np.mean([v is not None and v.significant and v.slope * decades > 0 for v in found]) >= 0.85
    )


def test_a_decade_is_mostly_found_in_very_red_noise() -> None:
    trend = np.linspace(0, -1, 400)
    found = [trends.drift(every_ten(400), trend + 0.15 * x) for x in red_noise(0.9, 400, count=60)]
    assert np.mean([v is not None and v.significant for v in found]) >= 0.85


def test_a_slope_is_in_decades_per_thousand_steps() -> None:
    verdict = trends.drift(every_ten(200), -0.001 * every_ten(200))
    assert verdict is not None
    assert (verdict.slope, verdict.change, verdict.num_blocks) == pytest.approx((-1.0, -1.99, 100))
    assert verdict.significant


def test_a_sure_drift_of_less_than_a_factor_of_two_is_not_significant() -> None:
    steps = every_ten(200)
    small = trends.drift(steps, 0.2 * steps / steps[-1])
    assert small is not None
    assert small.p_value is not None
    assert small.p_value < 1e-6
    assert not small.significant


def test_too_few_independent_blocks_give_no_verdict() -> None:
    verdict = trends.drift(np.arange(100), red_noise(0.99, 100)[0])
    assert verdict is not None
    assert verdict.num_blocks < 8
    assert (verdict.p_value, verdict.significant) == (None, False)


def test_fewer_than_eight_points_have_no_drift() -> None:
    assert (
        trends.drift(np.arange(9), [1.0, 2.0, 3.0, 4.0, math.nan, -math.inf, 5.0, 6.0, 7.0]) is None
    )


def test_a_constant_does_not_drift() -> None:
    verdict = trends.drift(np.arange(100), np.full(100, 0.1))
    assert verdict is not None
    assert (verdict.slope, verdict.p_value, verdict.significant) == (0.0, 1.0, False)


@given(st.lists(st.integers(-5, 5), min_size=8, max_size=40))
def test_mann_kendall_is_kendalls_tau_against_time(x: list[int]) -> None:
    series = np.array(x, dtype=np.float64)
    score = sum(np.sign(b - a) for a, b in combinations(x, 2))
    _, counts = np.unique(series, return_counts=True)
    n = len(x)
    variance = (
        n * (n - 1) * (2 * n + 5) - sum(c * (c - 1) * (2 * c + 5) for c in counts.tolist())
    ) / 18
    expected = 1.0 if abs(score) <= 1 else 2 * stats.norm.sf((abs(score) - 1) / math.sqrt(variance))
    assert trends._mann_kendall(series) == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30))
def test_the_monotone_fit_is_that_of_the_min_max_formula(y: list[float]) -> None:
    series = np.array(y)
    n = len(y)
    expected = [
        max(min(series[a : b + 1].mean() for b in range(i, n)) for a in range(i + 1))
        for i in range(n)
    ]
    assert trends.monotone(series) == pytest.approx(expected, abs=1e-9)


def test_a_long_series_is_judged_on_no_more_than_512_blocks() -> None:
    verdict = trends.drift(
        np.arange(20_000), np.linspace(0, 1, 20_000) + 0.1 * red_noise(0.0, 20_000, count=1)[0]
    )
    assert verdict is not None
    assert verdict.num_blocks == 500
    assert verdict.significant


# Period


@pytest.mark.parametrize("length", [32, 200])
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_red_noise_is_rarely_called_periodic(phi: float, length: int) -> None:
    found = [trends.dominant_period(every_ten(length), x) for x in red_noise(phi, length, seed=1)]
    assert np.mean([p is not None and p.significant for p in found]) <= 0.03


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_red_noise_seen_at_a_stretched_cadence_is_rarely_called_periodic(phi: float) -> None:
    steps = stretched(200)
    found = [
        trends.dominant_period(steps, x[steps])
        for x in red_noise(phi, int(steps[-1]) + 1, count=200)
    ]
    assert np.mean([p is not None and p.significant for p in found]) <= 0.03


def test_slow_wandering_under_white_noise_is_rarely_called_periodic() -> None:
    noise = red_noise(0.95, 400) + red_noise(0.0, 400, seed=2)
    found = [trends.dominant_period(every_ten(400), x) for x in noise]
    assert np.mean([p is not None and p.significant for p in found]) <= 0.03


@pytest.mark.parametrize("shape", SHAPES)
def test_a_bent_trend_is_rarely_called_periodic(shape: str) -> None:
    signal = 2.0 * SHAPES[shape](np.linspace(0, 1, 200))
    found = [trends.dominant_period(every_ten(200), signal + 0.15 * x) for x in red_noise(0.0, 200)]
    assert np.mean([p is not None and p.significant for p in found]) <= 0.04


@pytest.mark.parametrize("period", [2.0, 5.0, 12.0])
@pytest.mark.parametrize("phi", [0.0, 0.5])
def test_a_sine_in_noise_is_found_with_its_period_and_amplitude(phi: float, period: float) -> None:
    steps = every_ten(200)
    signal = 0.2 * np.cos(2 * np.pi * np.arange(200) / period) + 1e-4 * steps
    found = [
        trends.dominant_period(steps, signal + 0.15 * x) for x in red_noise(phi, 200, count=40)
    ]
    hits = [p for p in found if p is not None and p.significant]
    assert len(hits) >= 36
    assert median(p.steps for p in hits) == pytest.approx(10 * period, rel=0.02)
    assert median(p.amplitude for p in hits) == pytest.approx(0.2, rel=0.15)


def test_a_sine_is_found_at_a_stretched_cadence() -> None:
    steps = stretched(200)
    signal = 0.3 * np.sin(2 * np.pi * steps / 48)
    found = [
        trends.dominant_period(steps, signal + 0.15 * x) for x in red_noise(0.0, 200, count=40)
    ]
    hits = [p for p in found if p is not None and p.significant]
    assert len(hits) >= 36
    assert median(p.steps for p in hits) == pytest.approx(48, rel=0.02)


def test_exact_to_and_fro_has_period_two() -> None:
    found = trends.dominant_period(np.arange(64), (-1.0) ** np.arange(64))
    assert found is not None
    assert found.significant
    assert (found.steps, found.amplitude) == pytest.approx((2.0, 1.0), rel=0.01)


def test_few_points_and_straight_lines_have_no_period() -> None:
    assert trends.dominant_period(np.arange(31), np.random.default_rng(0).normal(size=31)) is None
    assert trends.dominant_period(np.arange(100), 0.1 * np.arange(100)) is None
    assert trends.dominant_period(np.arange(100), np.full(100, 0.1)) is None
    assert trends.dominant_period([], []) is None


def test_long_pauses_and_long_series_stay_affordable() -> None:
    bursts = np.concatenate([np.arange(60), 10_000 + 1000 * np.arange(60)])
    assert trends.dominant_period(bursts, red_noise(0.5, 120)[0]) is not None
    assert trends.dominant_period(np.arange(20_000), red_noise(0.5, 20_000, count=1)[0]) is not None


@given(
    st.lists(st.floats(0.01, 1e4), min_size=32, max_size=60),
    st.integers(0, 2**32 - 1),
    st.floats(1e-6, 1e6),
)
def test_any_spacing_and_any_scale_has_a_period_with_a_probability(
    gaps: list[float], seed: int, scale: float
) -> None:
    y = scale * np.random.default_rng(seed).normal(size=len(gaps))
    found = trends.dominant_period(np.cumsum(gaps), y)
    assert found is not None
    assert 0.0 <= found.p_value <= 1.0
    assert 0.0 < found.steps <= (sum(gaps) - gaps[0]) / 3 * (1 + 1e-9)
    assert math.isfinite(found.amplitude)


# Correlation


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=8, max_size=40))
def test_rho_is_spearmans(pairs: list[tuple[int, int]]) -> None:
    x, y = np.array(pairs, dtype=np.float64).T
    found = trends.correlation(x, y)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert found is None
    else:
        assert found is not None
        assert found.rho == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
        assert 0.0 < found.num_effective <= x.size


def test_the_probability_of_independent_pairs_is_near_that_of_scipy() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 100))
    found = trends.correlation(x, y + 0.3 * x)
    assert found is not None
    assert found.num_effective == pytest.approx(100, rel=0.2)
    assert found.p_value == pytest.approx(stats.spearmanr(x, y + 0.3 * x).pvalue, rel=0.5)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_two_series_that_wander_apart_are_rarely_called_correlated(phi: float) -> None:
    found = [
        trends.correlation(x, y)
        for x, y in zip(red_noise(phi, 200), red_noise(phi, 200, seed=1), strict=True)
    ]
    assert np.mean([c is not None and c.significant for c in found]) <= 0.03


def test_scipy_on_the_raw_series_calls_a_third_of_them_correlated() -> None:
    pairs = zip(red_noise(0.9, 200), red_noise(0.9, 200, seed=1), strict=True)
    assert np.mean([stats.spearmanr(x, y).pvalue < 0.01 for x, y in pairs]) > 0.25


def test_an_update_norm_that_follows_a_warm_restarted_rate_is_correlated_with_it() -> None:
    rate = 1e-3 * 0.5 * (1 + np.cos(np.pi * (np.arange(200) % 25) / 25))
    update = rate * 10 ** (0.1 * red_noise(0.5, 200)[0])
    found = trends.correlation(rate, update)
    assert found is not None
    assert found.significant
    assert found.rho > 0.8


def test_two_straight_trends_correlate_without_a_verdict() -> None:
    found = trends.correlation(np.arange(100), np.arange(100) ** 2)
    assert found is not None
    assert found.rho == pytest.approx(1.0)
    assert (found.p_value, found.significant) == (None, False)


def test_a_constant_or_a_short_series_has_no_correlation() -> None:
    assert trends.correlation(np.ones(20), np.arange(20)) is None
    assert trends.correlation(np.arange(7), np.arange(7)) is None
    assert trends.correlation([*range(7), math.nan], range(8)) is None


# Shape of the module


def test_series_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got shapes \(3,\) and \(2,\)"):
        trends.theil_sen([1, 2, 3], [1, 2])


def test_the_modules_import_neither_torch_nor_scipy() -> None:
    code = (
        "import sys; from gradiometer.maths import health, pairs, trends; "
        "sys.exit(len({'torch', 'scipy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_verdict_does_not_depend_on_the_steps_of_the_series_before() -> None:
    rng = np.random.default_rng(3)
    y = rng.standard_normal(120) + np.sin(np.arange(120) / 2.0)
    even, uneven = np.arange(120.0), np.cumsum(rng.integers(1, 5, 120)).astype(float)

    def judged(steps: np.ndarray) -> tuple[object, object]:
        return trends.drift(steps, y), trends.dominant_period(steps, y)

    alone = []
    for steps in (even, uneven):
        trends._gaps.cache_clear()
        trends._waves.cache_clear()
        alone.append(judged(steps))
    assert [judged(even), judged(uneven), judged(even)] == [*alone, alone[0]]
    assert alone[0] != alone[1]
