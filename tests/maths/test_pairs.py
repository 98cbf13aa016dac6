"""Seed against host: the ratio by hand, and one history for every verdict."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradiometer.maths.pairs import PairReading, ratio, read_pair

STEPS = 41


def wander(level: float, seed: int = 0) -> np.ndarray:
    """Intensities around a level, with a tenth of a decade of noise."""
    return level * 10 ** np.random.default_rng(seed).normal(0.0, 0.1, STEPS)


def read(seed: np.ndarray, host: np.ndarray, *, seed_reached: bool = True) -> PairReading:
    return read_pair(seed, host, seed_reached=seed_reached)


def test_the_ratio_is_that_of_rms_gradients() -> None:
    # (3/√9)/(8/√16 + 1e-8) = 1/2
    assert ratio(3.0, 9, 8.0, 16) == pytest.approx(0.5)
    assert ratio(1e-8, 1, 1e-8, 1) == pytest.approx(0.5)  # the 1e-8 is as large as the host


def test_the_ratio_is_clamped_at_ten() -> None:
    assert ratio(1.0, 1, 0.0, 1) == 10.0
    assert ratio(11.0, 1, 1.0, 1) == 10.0


def test_a_module_without_parameters_has_no_ratio() -> None:
    with pytest.raises(ValueError, match="the host has 0 parameters"):
        ratio(1.0, 4, 1.0, 0)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 10**9), st.integers(1, 10**9))
def test_the_ratio_is_never_negative_or_above_ten(a: float, b: float, p: int, q: int) -> None:
    assert 0.0 <= ratio(a, p, b, q) <= 10.0


def test_comparable_intensities_are_balanced() -> None:
    reading = read(wander(1e-3), wander(2e-3, 1))
    assert reading.verdict == "balanced"
    assert reading.ratio == pytest.approx(reading.seed_intensity / (reading.host_intensity + 1e-8))  # type: ignore[operator]


def test_no_path_from_the_loss_comes_before_everything_in_history() -> None:
    decayed = wander(1e-3)
    decayed[20:] = 0.0
    assert read(decayed, wander(1e-3, 1), seed_reached=False).verdict == "loss-not-reaching"
    assert read(np.zeros(STEPS), np.zeros(STEPS), seed_reached=False).verdict == "loss-not-reaching"


def test_a_seed_without_a_path_needs_no_gradient_to_be_told() -> None:
    reading = read(np.full(STEPS, math.nan), wander(1e-3), seed_reached=False)
    assert (reading.verdict, reading.ratio, reading.seed_intensity) == (
        "loss-not-reaching",
        None,
        None,
    )


def test_a_gradient_that_is_there_reaches_whatever_the_graph_says() -> None:
    assert read(wander(1e-3), wander(1e-3, 1), seed_reached=False).verdict == "balanced"


@pytest.mark.parametrize("level", [0.0, 1e-9, 1e-5])
def test_a_seed_that_never_was_active_is_dormant(level: float) -> None:
    assert read(wander(level), wander(1e-3, 1)).verdict == "dormant"


def test_a_small_steady_seed_is_told_from_a_silent_one_in_words() -> None:
    assert "less than a tenth of" in read(wander(5e-5), wander(1e-3, 1)).reason
    assert "next to nothing beside" in read(wander(1e-7), wander(1e-3, 1)).reason


@pytest.mark.parametrize("active_steps", [6, 20, 40])
@pytest.mark.parametrize("now", [0.0, 5e-5])
def test_a_seed_that_was_active_and_fell_is_saturated(active_steps: int, now: float) -> None:
    seed = wander(1e-3)
    seed[active_steps:] = now
    reading = read(seed, wander(1e-3, 1))
    assert reading.verdict == "saturated"
    assert ("to 0" in reading.reason) == (now == 0.0)


def test_a_slow_decay_is_saturation_too() -> None:
    assert read(wander(1e-3) * np.logspace(0, -3, STEPS), wander(1e-3, 1)).verdict == "saturated"


def test_one_spike_does_not_make_a_seed_active() -> None:
    seed = wander(1e-9)
    seed[5:7] = 1e-3
    assert read(seed, wander(1e-3, 1)).verdict == "dormant"


@pytest.mark.parametrize("rise", [30.0, 1e3])
def test_a_host_that_leaps_beside_a_usual_seed_learns_fast(rise: float) -> None:
    host = wander(1e-3, 1)
    host[-1] = rise * 1e-3
    assert read(wander(1e-3), host).verdict == "host-learning-fast"


def test_five_sigma_are_enough_where_a_decade_is_not_reached() -> None:
    seed, host = np.full(STEPS, 0.3e-3), np.full(STEPS, 1e-3)
    host[-1] = 4e-3  # 0.6 decades, 6 of the smallest σ: the ratio falls from 0.3 to 0.075
    assert read(seed, host).verdict == "host-learning-fast"


def test_a_host_that_rises_slowly_learns_fast_as_well() -> None:
    assert (
        read(wander(1e-3), wander(1e-3, 1) * np.logspace(0, 2, STEPS)).verdict
        == "host-learning-fast"
    )


def test_a_dormant_seed_stays_dormant_while_the_host_leaps() -> None:
    host = wander(1e-3, 1)
    host[-1] = 1.0
    assert read(wander(1e-8), host).verdict == "dormant"


def test_a_saturated_seed_stays_saturated_while_the_host_leaps() -> None:
    seed, host = wander(1e-3), wander(1e-3, 1)
    seed[25:] = 1e-6
    host[-1] = 1.0
    assert read(seed, host).verdict == "saturated"


def test_when_both_moved_the_larger_move_decides() -> None:
    seed, host = np.full(STEPS, 1e-3), np.full(STEPS, 1e-3)
    seed[-1], host[-1] = 1e-3 * 10**-0.8, 1e-3 * 10**0.4
    assert read(seed, host).verdict == "saturated"
    seed[-1], host[-1] = 1e-3 * 10**-0.4, 1e-3 * 10**0.8
    assert read(seed, host).verdict == "host-learning-fast"


def test_a_ratio_that_dips_just_below_its_usual_level_is_no_verdict_on_the_seed() -> None:
    seed = np.full(STEPS, 0.12e-3)
    seed[-1] = 0.09e-3
    reading = read(seed, np.full(STEPS, 1e-3))
    assert reading.verdict == "balanced"
    assert "a little low" in reading.reason


@pytest.mark.parametrize(
    ("seed", "host"),
    [
        ([], []),
        ([math.nan], [math.nan]),
        ([math.nan], [1.0]),
        ([1.0], [math.nan]),
        ([1.0], [math.inf]),
    ],
)
def test_what_is_not_measured_now_has_no_ratio(seed: list[float], host: list[float]) -> None:
    reading = read_pair(seed, host, seed_reached=True)
    assert (reading.verdict, reading.ratio) == ("not-measured", None)


def test_two_zeros_are_nothing_to_compare() -> None:
    seed, host = wander(1e-3), wander(1e-3, 1)
    seed[-1] = host[-1] = 0.0
    reading = read(seed, host)
    assert (reading.verdict, reading.ratio) == ("not-measured", None)


def test_steps_without_a_measurement_are_skipped() -> None:
    seed, host = wander(1e-3), wander(1e-3, 1)
    seed[::2] = math.nan
    seed[-1] = 1e-6
    assert read(seed, host).verdict == "saturated"


def test_a_first_measurement_is_dormant_so_far() -> None:
    assert read_pair([1e-9], [1e-3], seed_reached=True).reason.endswith(
        "at the first measured step."
    )


def test_histories_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="Put NaN where a module was not measured"):
        read_pair([1.0, 2.0], [1.0], seed_reached=True)


@given(
    st.lists(
        st.tuples(st.floats(0, 1e3) | st.just(math.nan), st.floats(0, 1e3) | st.just(math.nan)),
        max_size=40,
    ),
    st.booleans(),
)
def test_every_history_gets_a_verdict_in_words(
    pairs: list[tuple[float, float]], seed_reached: bool
) -> None:
    reading = read_pair([s for s, _ in pairs], [h for _, h in pairs], seed_reached=seed_reached)
    assert reading.reason.endswith(".")
    assert (reading.ratio is None) == (
        reading.verdict == "not-measured" or reading.seed_intensity is None
    )
