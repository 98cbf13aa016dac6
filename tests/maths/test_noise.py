"""Noise scale: numbers by hand, brute force over pairs, and synthetic gradients of known signal and
covariance."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradiometer.maths.noise import (
    MIN_UPDATES,
    CosineBand,
    NoiseScale,
    NoiseState,
    cosine_band,
    from_parts,
    from_ranks,
    noise_scale,
    student_95,
    two_point,
    update,
)

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def after(pairs: list[tuple[float, float]], beta: float = 0.9) -> NoiseState:
    state = NoiseState()
    for signal, noise in pairs:
        state = update(state, signal, noise, beta)
    return state


def test_two_point_by_hand() -> None:
    # |G|² = 4 and tr Σ = 48: at B = 8 the square is 4 + 6 = 10, at B = 32 it is 4 + 1.5 = 5.5
    assert two_point(10.0, 5.5, 8, 32) == pytest.approx((4.0, 48.0))


def test_parts_by_hand() -> None:
    # g = (3, 0), (1, 2): <g1, g2> = 3, mean (2, 1), deviations (±1, ∓1), tr Σ of a mean over 5 =
    # 4/1
    assert from_parts([9.0, 5.0], 5.0, 5) == pytest.approx((3.0, 20.0))


def test_opposite_parts_have_a_negative_signal() -> None:
    assert from_parts([1.0, 1.0], 0.0, 1) == pytest.approx((-1.0, 2.0))


@given(st.integers(2, 6), st.integers(1, 5), st.integers(1, 100), st.integers(0, 10**6))
def test_parts_equal_the_mean_over_pairs_and_the_sample_covariance(
    m: int, size: int, batch: int, seed: int
) -> None:
    parts = np.random.default_rng(seed).normal(0.5, 1.0, (m, size))
    mean = parts.mean(0)
    signal, noise = from_parts(np.square(parts).sum(1).tolist(), float(mean @ mean), batch)
    pairs = [float(a @ b) for a, b in itertools.combinations(parts, 2)]
    assert signal == pytest.approx(np.mean(pairs), abs=1e-9)
    assert noise == pytest.approx(batch * np.var(parts, axis=0, ddof=1).sum(), abs=1e-7)


def part_means(
    rng: np.random.Generator, draws: int, m: int, batch: int, mean: Array, root: Array
) -> Array:
    """[draws, m, P] gradients, each the mean over a batch of samples with covariance root·rootᵀ."""
    shape = (draws, m, len(mean))
    return mean + rng.normal(size=shape) @ root.T / math.sqrt(batch)


def estimates(parts: Array, batch: int) -> Array:
    """[draws, 2] of signal and noise."""
    squares, means = np.square(parts).sum(2), np.square(parts.mean(1)).sum(1)
    return np.array(
        [from_parts(s.tolist(), float(q), batch) for s, q in zip(squares, means, strict=True)]
    )


def test_both_terms_are_unbiased_on_correlated_noise() -> None:
    rng = np.random.default_rng(0)
    mean, root = rng.normal(size=20) * 0.3, rng.normal(size=(20, 20))
    found = estimates(part_means(rng, 20_000, 4, 16, mean, root), 16)
    error = found.std(0) / math.sqrt(len(found))
    truth = np.array([mean @ mean, np.square(root).sum()])
    assert np.all(np.abs(found.mean(0) - truth) < 4 * error)
    assert np.all(error < 0.02 * truth)


def test_the_ratio_of_means_finds_the_noise_scale() -> None:
    rng = np.random.default_rng(1)
    mean, root = np.full(50, 0.2), np.eye(50)
    found = noise_scale(
        after([tuple(p) for p in estimates(part_means(rng, 2000, 8, 4, mean, root), 4)], beta=0.998)
    )
    assert found.value == pytest.approx(50 / 2.0, rel=0.1)
    assert found.lower_bound is not None
    assert found.lower_bound < 25 < 2 * found.lower_bound
    assert found.updates == 2000


def test_value_by_hand_is_a_ratio_of_weighted_means() -> None:
    pairs = [(float(i), 10.0 * i * i) for i in range(1, 10)]
    weights = 0.5 ** np.arange(8, -1, -1)
    expected = sum(w * n for w, (_, n) in zip(weights, pairs, strict=True)) / sum(
        w * s for w, (s, _) in zip(weights, pairs, strict=True)
    )
    assert noise_scale(after(pairs, beta=0.5)).value == pytest.approx(expected)


def test_bound_by_hand() -> None:
    # weights fall so slowly that all are 1/8; signals ±1 have mean 0 and variance 8/7, t(7, 0.95) =
    # 1.8946
    pairs = [((-1.0) ** i, 10.0) for i in range(8)]
    found = noise_scale(after(pairs, beta=1 - 1e-9))
    assert found.lower_bound == pytest.approx(
        10 / (1.8946 * math.sqrt(8 / 7 / 8)), rel=3e-4
    )  # t is expanded


def test_no_value_before_eight_updates() -> None:
    assert noise_scale(after([(1.0, 2.0)] * (MIN_UPDATES - 1))) == NoiseScale(
        value=None, lower_bound=None, updates=7
    )
    assert noise_scale(after([(1.0, 2.0)] * MIN_UPDATES)).value == pytest.approx(2.0)
    assert noise_scale(NoiseState()) == NoiseScale(value=None, lower_bound=None, updates=0)


def test_a_signal_below_zero_gives_a_bound_and_no_value() -> None:
    found = noise_scale(after([(-1.0, 10.0), (-3.0, 10.0)] * 6))
    assert found.value is None
    assert found.lower_bound is not None
    assert found.lower_bound > 0


def test_an_even_more_negative_signal_is_not_evidence_of_more_noise() -> None:
    near, far = (
        noise_scale(after([(x, 10.0), (x - 2.0, 10.0)] * 6)).lower_bound for x in (-1.0, -9.0)
    )
    assert near == pytest.approx(far)


def test_noise_below_zero_gives_neither() -> None:
    found = noise_scale(after([(1.0, -1.0)] * 10))
    assert (found.value, found.lower_bound) == (None, None)


def test_a_memory_of_one_update_has_a_value_and_a_bound_of_zero() -> None:
    found = noise_scale(after([(2.0, 6.0)] * 10, beta=0.0))
    assert (found.value, found.lower_bound) == (3.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("signal", [0.0005, 0.01, 0.05, 0.3])
@pytest.mark.parametrize("beta", [0.8, 0.95])
def test_the_bound_is_wrong_in_about_one_run_of_twenty_or_fewer(signal: float, beta: float) -> None:
    rng = np.random.default_rng(2)
    runs, updates, size = 1000, 40, 30
    mean, root = np.full(size, math.sqrt(signal / size)), np.eye(size)
    pairs = estimates(part_means(rng, runs * updates, 2, 8, mean, root), 8).reshape(
        runs, updates, 2
    )
    bounds = [
        noise_scale(after([tuple(p) for p in run], beta=beta)).lower_bound or 0.0 for run in pairs
    ]
    wrong = np.mean([bound > size / signal for bound in bounds])
    # 1,000 runs know 5 % to ±0.7 %
    assert wrong < 0.05 + 3 * 0.007


@given(st.floats(1e-6, 1e6), st.integers(0, 10**6))
def test_scaling_the_loss_changes_nothing(factor: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = part_means(rng, 12, 3, 4, np.ones(5), np.eye(5))
    plain, scaled = (
        noise_scale(after([tuple(p) for p in estimates(x, 4)])) for x in (parts, parts * factor)
    )
    assert plain.value == pytest.approx(scaled.value, rel=1e-6)
    assert plain.lower_bound == pytest.approx(scaled.lower_bound, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_is_left_out(bad: float) -> None:
    state = after([(1.0, 2.0)] * 9)
    assert update(state, bad, 2.0) == state
    assert update(state, 1.0, bad) == state


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="small < big"):
        two_point(1.0, 1.0, 32, 8)
    with pytest.raises(ValueError, match="at least 2 parts"):
        from_parts([1.0], 1.0, 8)


@pytest.mark.parametrize("freedom", [6.0, 7.0, 12.5, 40.0, 1000.0])
def test_the_quantile_of_t_is_scipys(freedom: float) -> None:
    from scipy.special import stdtrit

    assert student_95(freedom) == pytest.approx(float(stdtrit(freedom, 0.95)), rel=2e-3)


@pytest.mark.parametrize(("parts", "averaged"), [(1, 0), (4, 0), (4, 3), (5, 2)])
def test_a_ranks_own_gradient_beside_the_average_gives_signal_and_noise(
    parts: int, averaged: int
) -> None:
    """Drawn, not derived: parts of every rank around one signal, put together as the ranks do."""
    ranks, batch, draws, size = 3, 8.0, 40_000, 5
    rng = np.random.default_rng(0)
    signal, spread = np.full(size, 0.2), np.linspace(0.2, 1.0, size)
    g = signal + spread * rng.standard_normal((draws, ranks, parts, size))
    average = g.mean(1).sum(1)
    own = g.mean(1)[:, :averaged].sum(1) + g[:, 0, averaged:].sum(1)
    pairs = [
        from_ranks(a, b, ranks=ranks, parts=parts, averaged=averaged, part_batch=batch)
        for a, b in zip((own**2).sum(1), (average**2).sum(1), strict=True)
    ]
    found = np.mean(pairs, axis=0)
    assert found[0] == pytest.approx((signal**2).sum(), rel=0.08)
    assert found[1] == pytest.approx(batch * (spread**2).sum(), rel=0.08)


@pytest.mark.parametrize(("ranks", "parts", "averaged"), [(1, 1, 0), (2, 2, 2), (2, 1, -1)])
def test_ranks_that_say_nothing_about_noise_are_refused(
    ranks: int, parts: int, averaged: int
) -> None:
    with pytest.raises(ValueError, match="needs another rank"):
        from_ranks(2.0, 1.0, ranks=ranks, parts=parts, averaged=averaged, part_batch=1.0)


@pytest.mark.parametrize("count", [20, 100])
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_band_holds_95_percent_whatever_the_effective_dimension(
    power: float, count: int
) -> None:
    """Gaussian noise in 300 dimensions, λ_i = i^−power: effective dimensions of 300 down to 2.5."""
    rng = np.random.default_rng(1)
    g = rng.standard_normal((3000, 300)) * np.arange(1, 301) ** (-power / 2)
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    cosines = (g[1:] * g[:-1]).sum(1)
    bands = [cosine_band(cosines[t - count : t]) for t in range(count, len(cosines))]
    assert 0.93 <= np.mean(np.abs(cosines[count:]) <= np.array(bands, float)) <= 0.97


def test_a_steady_signal_and_its_slow_change_stay_out_of_the_band() -> None:
    """Noise of 200 dimensions reads ±0.14 alone; the signal takes cosines from 0.9 down to 0.1."""
    rng = np.random.default_rng(2)
    g = rng.standard_normal((400, 200))
    g[:, 0] += np.linspace(40.0, 5.0, 400)
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    cosines = (g[1:] * g[:-1]).sum(1)
    assert cosines[:50].mean() > 0.8
    assert abs(cosines[-50:].mean()) < 0.3
    bands = [cosine_band(cosines[t - 100 : t]) for t in range(100, 399)]
    np.testing.assert_allclose(np.array(bands, float), 1.96 / math.sqrt(200), rtol=0.4)


def test_few_cosines_give_no_band_and_those_of_one_direction_all_of_it() -> None:
    assert cosine_band([0.1] * 19) is None
    assert cosine_band([1.0, -1.0] * 30) == pytest.approx(1.0)
    assert cosine_band([0.5] * 20) == 0.0


def test_a_band_that_is_kept_in_order_is_that_of_the_last_cosines() -> None:
    cosines = np.random.default_rng(3).uniform(-1, 1, 90).tolist()
    cosines[40:44] = [1.0, 1.0, -1.0, math.nan]
    band = CosineBand(30)
    for count, cosine in enumerate(cosines, 1):
        band.add(cosine)
        last = cosines[max(0, count - 30) : count]
        assert band.half_width() == cosine_band(last)
        assert list(band.cosines) == pytest.approx(last, nan_ok=True)
