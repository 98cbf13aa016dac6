"""Whether a series rose: how often flat noise is called a rise, and clear learning none.

The families are those of docs/mathematics.md; `flat` and `learned` are also what the long form
(marked proof) measures.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from curves import NOISE, SHAPES, Noise, averaged, independent
from scipy.signal import lfilter

from gradiometer.maths.gains import CERTAIN, MIN_VALUES, gain, stands_apart, without_tails

CLEAR = 30.0
"""Spreads of the noise between start and end."""


def flat_called_rise(noise: Noise, n: int, runs: int) -> float:
    rng = np.random.default_rng(n)
    found = [gain(noise(rng, np.zeros(n))) for _ in range(runs)]
    return sum(each is not None and each.certain for each in found) / runs


@pytest.mark.parametrize("n", [8, 25, 100, 300])
@pytest.mark.parametrize("noise", NOISE)
def test_flat_noise_is_no_rise(noise: str, n: int) -> None:
    """20 series each: at a rate of 2 % more than two of them rise once in 140 such tests."""
    assert flat_called_rise(NOISE[noise], n, 20) <= 0.1


@pytest.mark.proof
@pytest.mark.parametrize("n", [8, 12, 17, 25, 50, 100, 200, 500, 2000, 100_000])
@pytest.mark.parametrize("noise", NOISE)
def test_flat_noise_is_called_a_rise_in_at_most_one_of_fifty(noise: str, n: int) -> None:
    runs = 400 if n <= 2000 else 40
    assert flat_called_rise(NOISE[noise], n, runs) <= 0.02 + 2.0 * math.sqrt(0.02 / runs)


@pytest.mark.parametrize("n", [100, 400])
@pytest.mark.parametrize("shape", SHAPES)
def test_clear_learning_rises_whatever_its_shape(shape: str, n: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        found = gain(independent(rng, CLEAR * SHAPES[shape](n)))
        assert found is not None
        assert found.certain
        assert found.end > found.start


def test_the_mean_of_a_hundred_episodes_rises_where_its_thirds_have_no_blocks() -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        found = gain(averaged(100)(rng, CLEAR * SHAPES["saturating"](600)))
        assert found is not None
        assert found.certain
        assert 60 <= found.memory <= 160


def test_few_evaluations_that_rise_are_enough_where_each_is_measured_anew() -> None:
    rng = np.random.default_rng(0)
    values = [independent(rng, CLEAR * SHAPES["linear"](17)) for _ in range(20)]
    found = [gain(each, independent=True) for each in values]
    assert all(each is not None and each.certain for each in found)


def test_a_fall_is_the_gain_of_the_mirrored_series() -> None:
    values = independent(np.random.default_rng(0), -CLEAR * SHAPES["linear"](100))
    up, down = gain(values), gain(-values)
    assert up is not None
    assert down is not None
    assert not up.certain
    assert down.score > CERTAIN


def test_scale_and_offset_change_nothing() -> None:
    values = independent(np.random.default_rng(0), 2.0 * SHAPES["linear"](200))
    first = gain(values)
    assert first is not None
    for scale, offset in ((1e-200, 0.0), (1e200, 0.0), (3.0, 5.0)):
        again = gain(scale * values + offset)
        assert again is not None
        assert again.score == pytest.approx(first.score, rel=1e-6)
        assert again.end == pytest.approx(scale * first.end + offset, rel=1e-6)


def test_a_constant_does_not_rise_and_seven_values_are_too_few() -> None:
    found = gain(np.full(50, 3.0))
    assert found is not None
    assert (found.score, found.error) == (0.0, 0.0)
    assert gain(np.arange(MIN_VALUES - 1)) is None
    assert gain([math.nan] * 20) is None


def test_a_rise_without_noise_is_one() -> None:
    found = gain(np.concatenate([np.linspace(0.0, 10.0, 6), np.full(194, 10.0)]))
    assert found is not None
    assert found.certain


def test_tails_are_moved_in() -> None:
    values = np.concatenate([np.arange(100.0), [1e6]])
    assert without_tails(values).max() < 400.0
    assert without_tails(np.zeros(5)).tolist() == [0.0] * 5


def saturating(n: int, seed: int, share: float = 1 / 8) -> np.ndarray[Any, Any]:
    time = np.arange(n) / n
    return 168 * (1 - np.exp(-time / share)) + np.random.default_rng(seed).normal(0.0, 5.0, n)


def test_a_reward_that_leapt_and_stands_is_told_apart_from_its_noise() -> None:
    """A random walk with such first differences could do it; the noise of the standing half not."""
    for n in (40, 60, 100):
        assert sum(stands_apart(saturating(n, seed)) for seed in range(40)) >= 36, n
        assert sum(stands_apart(saturating(n, seed)[::-1] * -1) for seed in range(40)) >= 36, n


def test_flat_noise_does_not_stand_apart() -> None:
    random = np.random.default_rng(1)
    for n in (25, 40, 100):
        flat = [random.normal(size=n) for _ in range(200)]
        slow = [lfilter([1.0], [1.0, -0.9], random.normal(size=n + 100))[100:] for _ in range(200)]
        assert sum(map(stands_apart, flat)) == 0
        assert sum(map(stands_apart, slow)) <= 8, n
    assert not stands_apart([0.0, 1.0] * 8)
    assert not stands_apart([0.0] * 30 + [1.0] * 30)


def returns_of_few_episodes(seed: int, final: float, n: int = 98) -> npt.NDArray[np.float64]:
    """Mean returns of three episodes each, whose length is random: spread in proportion to size."""
    rng = np.random.default_rng(seed)
    level = 25.0 * (final / 25.0) ** np.minimum(np.arange(n) / (0.2 * n), 1.0)
    values: npt.NDArray[np.float64] = (level[:, None] * rng.gamma(2.0, 0.5, (n, 3))).mean(1)
    return values


def test_a_return_whose_noise_grows_with_it_rises_and_a_flat_one_does_not() -> None:
    risen = [gain(returns_of_few_episodes(seed, 250.0)) for seed in range(50)]
    flat = [gain(returns_of_few_episodes(seed, 25.0)) for seed in range(200)]
    assert sum(found is not None and found.certain for found in risen) == 50
    assert sum(found is not None and found.certain for found in flat) <= 4
    fallen = [gain(-returns_of_few_episodes(seed, 250.0)) for seed in range(50)]
    assert not any(found is None or found.certain for found in fallen)
