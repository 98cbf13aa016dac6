"""Severities, bands and health by hand, and what must hold for all of them."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradiometer.maths import health as h

USUAL = np.array([1e-5, 1e-3, 1e-2, 1e-1, 1.0, 1e-5, 1e-3, 1e-2, 1e-1, 1.0])
"""Norms of ten tensors of a healthy PPO: the first layer is five decades below the head."""

LAYER_RMS = np.array([1e-4, 1e-3, 1e-2, 1e-1, 1e-1])
"""RMS of five layers, three decades from the first to the last: all of the allowance, none of the
cost."""

norms = st.floats(1e-30, 1e30)


def history(usual: np.ndarray, rows: int = 40) -> np.ndarray:
    """Log-norms [T, P] that alternate by ±0.02 decades: MAD 0.02, so σ is at its floor and the band
    is ± half a decade."""
    wobble: np.ndarray = 0.02 * (-1.0) ** np.arange(rows)[:, None]
    return np.asarray(np.log10(usual) + wobble)


def glance(now: np.ndarray, layer_rms: np.ndarray = LAYER_RMS) -> float | None:
    low, high = h.band(history(USUAL), np.full(USUAL.size, 40))
    vanishing, exploding = h.vanishing_severity(now, low), h.exploding_severity(now, high)
    nonfinite = not bool(np.all(np.isfinite(now)))
    return h.health(
        vanishing,
        exploding,
        h.depth_imbalance(layer_rms),
        any_nonfinite=nonfinite,
        any_gradient=now.size > 0,
    )


# Six situations


def test_healthy_ppo_with_a_small_early_layer_is_healthy() -> None:
    assert glance(USUAL * 1.5) == pytest.approx(1.0)


def test_one_of_ten_tensors_dead_costs_a_tenth() -> None:
    now = USUAL.copy()
    now[4] = 0.0
    assert glance(now) == pytest.approx(0.9)


def test_a_dead_layer_is_an_imbalance_too() -> None:
    now = USUAL.copy()
    now[4] = 0.0
    assert glance(now, np.append(LAYER_RMS, 0.0)) == pytest.approx(0.9 - 0.3)


def test_all_tensors_a_decade_below_their_band_lose_a_sixth() -> None:
    # The band ends half a decade below the median; a decade further is a severity of 1/6.
    assert glance(USUAL * 10**-1.5) == pytest.approx(5 / 6)


def test_all_tensors_three_decades_above_their_band_leave_a_fifth() -> None:
    assert glance(USUAL * 10**3.5) == pytest.approx(1 - 1.6 * 0.5)


def test_a_nan_leaves_no_health() -> None:
    now = USUAL.copy()
    now[0] = math.nan
    assert glance(now) == 0.0


def test_no_gradients_have_no_health() -> None:
    assert h.health([], [], 0.0, any_nonfinite=False, any_gradient=False) is None
    assert h.health([0.0], [0.0], 0.0, any_nonfinite=False, any_gradient=False) is None


# Severity


def test_severity_counts_decades_beyond_the_threshold() -> None:
    assert h.vanishing_severity([1e-7, 1e-10, 1e-13, 1e-20, 0.0], 1e-7) == pytest.approx(
        [0, 0.5, 1, 1, 1]
    )
    assert h.exploding_severity([1.0, 1e2, 1e5, 1e8, 1e20], 1e2) == pytest.approx([0, 0, 0.5, 1, 1])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_explodes_and_does_not_vanish(bad: float) -> None:
    assert h.exploding_severity([bad], 1.0).tolist() == [1.0]
    assert h.vanishing_severity([bad], 1.0).tolist() == [0.0]


@given(norms, norms, norms)
def test_severities_are_monotone_bounded_and_never_both_positive(
    a: float, b: float, threshold: float
) -> None:
    low, high = sorted((a, b))
    vanishing = h.vanishing_severity([low, high], threshold)
    exploding = h.exploding_severity([low, high], threshold)
    assert 0.0 <= vanishing[1] <= vanishing[0] <= 1.0
    assert 0.0 <= exploding[0] <= exploding[1] <= 1.0
    assert not np.any((vanishing > 0) & (exploding > 0))


# Band


def test_the_band_is_the_median_and_five_robust_sigma() -> None:
    # 0, 0.5, …, 10: median 5, MAD 2.5 (|x − 5| is 0 once and 0.5 … 5 twice each; the 11th of 21 is
    # 2.5).
    low, high = h.band(np.arange(0.0, 10.5, 0.5)[:, None], [21])
    assert np.log10(low) == pytest.approx([5 - 5 * 1.4826 * 2.5])
    assert np.log10(high) == pytest.approx([5 + 5 * 1.4826 * 2.5])


def test_a_still_tensor_has_a_band_of_half_a_decade() -> None:
    low, high = h.band(np.full((30, 1), -4.0), [30])
    assert (np.log10(low[0]), np.log10(high[0])) == pytest.approx((-4.5, -3.5))


def test_until_twenty_observations_the_band_is_absolute() -> None:
    log10_norms = np.full((20, 2), -4.0)
    log10_norms[7, 1] = -math.inf  # a norm of 0 is no observation of the scale
    low, high = h.band(log10_norms, [20, 20])
    assert low == pytest.approx([10**-4.5, h.FALLBACK_LOW])
    assert high == pytest.approx([10**-3.5, h.FALLBACK_HIGH])
    assert h.band(log10_norms, [19, 19]).low.tolist() == [h.FALLBACK_LOW] * 2


def test_rows_beyond_the_count_and_nans_are_left_out() -> None:
    log10_norms = np.zeros((64, 2))
    log10_norms[:25] = -3.0
    log10_norms[:5, 1] = math.nan
    low, _ = h.band(log10_norms, [25, 25])
    assert low == pytest.approx([10**-3.5] * 2)


def test_an_empty_history_has_the_fall_backs() -> None:
    assert h.band(np.empty((0, 3)), [0, 0, 0]).high.tolist() == [h.FALLBACK_HIGH] * 3
    assert h.band(np.full((4, 1), math.nan), [4]).low.tolist() == [h.FALLBACK_LOW]


@given(st.integers(0, 2**32 - 1), st.integers(1, 45), st.integers(1, 4))
def test_the_robust_level_equals_that_of_numpy(seed: int, rows: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.where(rng.random((rows, columns)) < 0.2, math.nan, rng.normal(size=(rows, columns)))
    values[0] = 0.5
    median, sigma, seen = h.robust_level(values)
    mad = np.nanmedian(np.abs(values - np.nanmedian(values, axis=0)), axis=0)
    assert median == pytest.approx(np.nanmedian(values, axis=0))
    assert sigma == pytest.approx(np.maximum(1.4826 * mad, 0.1))
    assert seen.tolist() == np.isfinite(values).sum(axis=0).tolist()


@given(st.integers(0, 2**32 - 1), st.floats(-8, 8), st.floats(-6, 6))
def test_scaling_history_and_norm_together_changes_nothing(
    seed: int, shift: float, away: float
) -> None:
    log10_norms = np.random.default_rng(seed).normal(-3.0, 0.4, size=(30, 3))
    now = log10_norms[-1] + away
    plain, scaled = h.band(log10_norms, [30] * 3), h.band(log10_norms + shift, [30] * 3)
    for severity, edge in ((h.vanishing_severity, 0), (h.exploding_severity, 1)):
        assert severity(10**now, plain[edge]) == pytest.approx(
            severity(10 ** (now + shift), scaled[edge]), abs=1e-9
        )


# Depth, health, states, concentration


def test_imbalance_is_free_for_three_decades_and_full_after_six() -> None:
    assert h.depth_imbalance([1e-3, 1.0]) == pytest.approx(0.0)
    assert h.depth_imbalance([10**-4.5, 1.0, 0.1]) == pytest.approx(0.5)
    assert h.depth_imbalance([1e-9, 1.0]) == 1.0
    assert h.depth_imbalance([0.0, 1.0]) == 1.0
    assert h.depth_imbalance([0.0, 0.0]) == 0.0
    assert (
        h.depth_imbalance([1.0])
        == h.depth_imbalance([])
        == h.depth_imbalance([1.0, math.nan])
        == 0.0
    )


severities = st.lists(st.floats(0, 1), min_size=3, max_size=3)


@given(severities, severities, st.floats(0, 1), st.integers(0, 6), st.floats(0, 1))
def test_health_is_bounded_and_falls_with_every_severity(
    vanishing: list[float], exploding: list[float], imbalance: float, which: int, more: float
) -> None:
    def value(x: list[float]) -> float:
        result = h.health(x[:3], x[3:6], x[6], any_nonfinite=False, any_gradient=True)
        assert result is not None
        return result

    before = [*vanishing, *exploding, imbalance]
    after = before.copy()
    after[which] = max(after[which], more)
    assert 0.0 <= value(after) <= value(before) <= 1.0


def test_a_block_is_as_ill_as_its_worst_member() -> None:
    states: list[h.State] = ["nonfinite", "finite", "missing", "frozen"]
    for worst in range(4):
        for members in permutations(states[worst:]):
            assert h.state_of(members) == states[worst]
    assert h.state_of([]) == "frozen"


def test_concentration_is_the_entropy_of_the_energies() -> None:
    assert h.concentration([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert h.concentration([5.0, 0.0, 0.0]) == 0.0
    # p = 3/4, 1/4: (0.75 ln(4/3) + 0.25 ln 4)/ln 2
    assert h.concentration([3.0, 1.0]) == pytest.approx(0.811278, abs=1e-6)
    assert h.concentration([1.5e308, 0.5e308]) == pytest.approx(0.811278, abs=1e-6)


@pytest.mark.parametrize("energies", [[], [1.0], [0.0, 0.0], [1.0, math.inf], [1.0, math.nan]])
def test_there_is_no_concentration_of_one_block_or_of_nothing(energies: list[float]) -> None:
    assert h.concentration(energies) is None


def test_the_flags_say_whether_there_is_any_severity() -> None:
    assert not h.has_vanishing([1e-10, 1.0])
    assert h.has_vanishing([0.99e-10, 1.0])
    assert not h.has_exploding([1e4])
    assert h.has_exploding([1.01e4, 1.0])
    assert h.has_exploding([math.inf])
    assert not h.has_exploding([500.0, 700.0], [600.0, 700.0])
    assert h.has_exploding([500.0, 701.0], [600.0, 700.0])
    assert not h.has_vanishing([])
    assert not h.has_exploding([])
