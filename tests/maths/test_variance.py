"""Variance of a gradient estimate against planted truths."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradiometer.maths import variance
from gradiometer.maths.variance import Units


def drawn(
    rng: np.random.Generator,
    *,
    units: int = 32,
    replicates: int = 8,
    sampling: float = 3.0,
    instance: float = 0.5,
    dim: int = 30,
    counts: np.ndarray | None = None,
    shared: np.ndarray | None = None,
) -> tuple[Units, np.ndarray]:
    """Units around a mean of length 1; per instance the total sd is `sampling` over samples,
    `instance` over instances.

    Instances differ in how noisy they are, as they do; `shared` makes two estimators see the same
    ones.
    """
    counts = np.full(units, 4.0) if counts is None else counts
    difficulty = rng.gamma(4, 0.25, len(counts)) if shared is None else shared
    mean = np.zeros(dim)
    mean[0] = 1.0
    centre = mean + rng.normal(size=(len(counts), dim)) * instance / np.sqrt(dim * counts)[:, None]
    noise = (
        rng.normal(size=(replicates, len(counts), dim)) * sampling / np.sqrt(dim * counts)[:, None]
    )
    gradients = centre + noise * np.sqrt(difficulty)[:, None]
    totals = (counts[:, None] * gradients).sum(1) / counts.sum()
    means = gradients.mean(0)
    whole = totals.mean(0)
    return (
        Units(
            counts=counts,
            within=((gradients - means) ** 2).sum((0, 2)) / (replicates - 1),
            mean_sq=(means**2).sum(1),
            total_sq=float(whole @ whole),
            replicates=replicates,
        ),
        totals @ totals.T,
    )


def test_by_hand() -> None:
    products = np.array([[4.0, 0.0], [0.0, 4.0]])
    assert variance.signal_sq(products) == 0.0
    assert variance.replicate_trace(products) == 4.0
    assert variance.mean_cosine(products) == 0.0
    assert variance.signal_sq(products[:1, :1]) is None
    assert variance.replicate_trace(products[:1, :1]) is None
    assert variance.mean_cosine(np.zeros((3, 3))) is None


def test_the_parts_of_the_variance_are_unbiased_with_units_of_different_size() -> None:
    rng = np.random.default_rng(0)
    counts = np.array([4.0] * 20 + [1.0, 2.0])
    sampling, instance, direct, signal = [], [], [], []
    for _ in range(400):
        units, products = drawn(rng, counts=counts, shared=np.ones(22))
        sampling.append(units.sampling_trace.value)
        instance.append(units.instance_trace)
        direct.append(variance.replicate_trace(products))
        signal.append(variance.signal_sq(products))
    size = counts.sum()
    for found, truth in ((sampling, 9 / size), (instance, 0.25 / size), (direct, 9 / size)):
        assert abs(np.mean(found) - truth) < 4 * np.std(found) / 20
    assert np.std(sampling) < 0.6 * np.std(direct), (
        "units say more about the trace than eight replicates do"
    )
    # ‖mean over these instances‖², which exceeds the mean's own by the instance part
    assert abs(np.mean(signal) - (1 + 0.25 / size)) < 4 * np.std(signal) / 20


def test_the_interval_of_the_trace_covers_the_truth() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        found = drawn(rng)[0].sampling_trace
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 9 / 128 <= found.high
    assert 0.90 <= covered / 200 <= 0.99


@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.5])
def test_the_interval_of_a_ratio_covers_the_truth_at_eight_replicates(ratio: float) -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        difficulty = rng.gamma(4, 0.25, 32)
        first, _ = drawn(rng, sampling=3.0 * np.sqrt(ratio), shared=difficulty)
        second, _ = drawn(rng, sampling=3.0, shared=difficulty)
        found = variance.variance_ratio(first, second)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= ratio <= found.high
    assert 0.90 <= covered / 200 <= 0.99


def test_few_units_have_values_and_no_intervals() -> None:
    rng = np.random.default_rng(3)
    units, _ = drawn(rng, units=3)
    assert units.sampling_trace.low is None
    assert variance.variance_ratio(units, units).low is None
    assert variance.variance_ratio(units, units).value == 1.0
    assert drawn(rng, units=1)[0].instance_trace is None


def test_no_variance_at_all_has_no_ratio() -> None:
    rng = np.random.default_rng(4)
    moving, _ = drawn(rng)
    still = dataclasses.replace(moving, within=np.zeros_like(moving.within))
    assert np.isnan(variance.variance_ratio(moving, still).value)
