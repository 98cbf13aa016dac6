"""A Gram matrix stands in for the vectors: checked against the vectors themselves, and against
planted truths."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradiometer.maths import gram


def products(vectors: np.ndarray) -> np.ndarray:
    return vectors @ vectors.T


GOLDEN = np.array([[3.0, 0.0, 4.0], [0.0, 2.0, 0.0], [-3.0, 0.0, -4.0], [0.0, 0.0, 0.0]])


def test_norms_and_cosines_of_vectors_worked_out_by_hand() -> None:
    matrix = products(GOLDEN)
    assert gram.norms(matrix).tolist() == [5.0, 2.0, 5.0, 0.0]
    cosine = gram.cosines(matrix)
    assert cosine[0, 1] == 0.0
    assert cosine[0, 2] == -1.0
    assert np.isnan(cosine[3]).all(), "a zero vector has no direction"


def test_shares_add_up_to_one_and_a_term_against_the_sum_has_a_negative_one() -> None:
    shares = gram.shares(products(np.array([[2.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])))
    assert shares.tolist() == [1.0, -0.5, 0.5]
    assert np.isnan(gram.shares(np.zeros((3, 3)))).all()


@given(st.integers(0, 10_000))
def test_any_combination_has_the_norm_of_the_combined_vectors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, weights = rng.normal(size=(5, 17)), rng.normal(size=(3, 5))
    assert np.allclose(gram.combine(products(vectors), weights), products(weights @ vectors))


def test_leading_axes_are_blocks() -> None:
    rng = np.random.default_rng(0)
    stacked = np.stack([products(rng.normal(size=(3, 8))) for _ in range(4)])
    for function in (gram.norms, gram.cosines, gram.shares):
        assert np.allclose(function(stacked), np.stack([function(matrix) for matrix in stacked]))


def test_additivity_fits_a_common_factor_and_judges_the_rest() -> None:
    rng = np.random.default_rng(1)
    terms, hidden = rng.normal(size=(3, 1000)), rng.normal(size=1000)
    for factor in (1.0, 65536.0, 0.25):
        error, scale = gram.additivity(products(np.vstack([terms, factor * terms.sum(0)])))
        assert scale == pytest.approx(factor)
        assert error < 1e-7
    total = terms.sum(0) + 0.5 * hidden
    error, _ = gram.additivity(products(np.vstack([terms, total])))
    fitted = total @ terms.sum(0) / (terms.sum(0) @ terms.sum(0))
    assert error == pytest.approx(
        np.linalg.norm(total - fitted * terms.sum(0)) / np.linalg.norm(total)
    )
    assert math.isnan(gram.additivity(np.zeros((3, 3)))[0])


def planted(
    rng: np.random.Generator, *, m: int, signal: float, noise: float, dim: int = 40
) -> tuple[np.ndarray, ...]:
    """m units of unequal weight whose gradient per weight is `signal` long, with noise of that
    total sd for weight one."""
    weights = rng.integers(20, 60, m).astype(float)
    mean = np.zeros(dim)
    mean[0] = signal
    per_weight = mean + rng.normal(size=(m, dim)) * noise / np.sqrt(dim * weights)[:, None]
    return per_weight * weights[:, None], weights


@pytest.mark.parametrize(("signal", "noise"), [(1.0, 20.0), (1.0, 5.0), (0.2, 20.0)])
def test_the_interval_covers_a_planted_signal_and_the_plain_norm_is_biased(
    signal: float, noise: float
) -> None:
    rng = np.random.default_rng(7)
    covered, plain, corrected, noises = 0, [], [], []
    for _ in range(200):
        vectors, weights = planted(rng, m=24, signal=signal, noise=noise)
        found = gram.signal(products(vectors), weights)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= signal**2 <= found.high
        plain.append(np.sum((vectors.sum(0) / weights.sum()) ** 2))
        corrected.append(found.signal_sq)
        noises.append(found.noise_sq)
    assert 0.90 <= covered / 200 <= 0.99
    truth, error = signal**2, np.std(corrected) / math.sqrt(200)
    assert abs(np.mean(corrected) - truth) < 4 * error
    assert np.mean(plain) > truth + 5 * np.std(plain) / math.sqrt(200)
    bias, spread = np.mean(plain) - truth, 4 * np.std(plain) / math.sqrt(200)
    assert bias == pytest.approx(np.mean(noises), abs=spread), "the bias is the noise we report"


@pytest.mark.parametrize("spread", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("noise_per_token", [True, False])
def test_units_of_very_different_weight_are_unbiased(spread: float, noise_per_token: bool) -> None:
    """Lengths spread by a lognormal; noise that shrinks with length, and noise of a whole group,
    which does not."""
    rng = np.random.default_rng(8)
    signals, noises, errors, covered = [], [], [], 0
    for _ in range(400):
        weights = np.exp(spread * rng.normal(size=16))
        scale = weights if not noise_per_token else np.sqrt(weights)
        vectors = (
            weights[:, None] * np.eye(20)[0]
            + scale[:, None] * rng.normal(size=(16, 20)) / math.sqrt(20) * 3
        )
        found = gram.signal(products(vectors), weights)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        signals.append(found.signal_sq)
        noises.append(found.noise_sq)
        errors.append(9 * np.square(scale).sum() / weights.sum() ** 2)
        covered += found.low <= 1.0 <= found.high
    assert abs(np.mean(signals) - 1) < 4 * np.std(signals) / 20
    assert abs(np.mean(noises) - np.mean(errors)) < 4 * np.std(np.array(noises) - errors) / 20
    assert 0.88 <= covered / 400 <= 0.99


def test_identical_gradients_have_no_noise_whatever_their_weights() -> None:
    weights = np.array([1.0, 1.0, 9.0, 9.0])
    found = gram.signal(np.outer(weights, weights), weights)
    assert found is not None
    assert found.signal_sq == pytest.approx(1.0)
    assert found.noise_sq == pytest.approx(0.0, abs=1e-12)


def test_signal_by_hand() -> None:
    """Two units of weight one, x = (1, 0) and (1, 2): <x, y> = 1; g = (1, 1); tr Σ = 1 + 1 over
    m−1."""
    found = gram.signal(products(np.array([[1.0, 0.0], [1.0, 2.0]])))
    assert found is not None
    assert found.signal_sq == 1.0
    assert found.noise_sq == 1.0
    assert found.snr == 1.0
    assert found.low is None
    assert found.p_value is None


def test_the_jackknife_leaves_out_whole_units() -> None:
    rng = np.random.default_rng(3)
    vectors, weights = planted(rng, m=6, signal=1.0, noise=5.0)
    found = gram.signal(products(vectors), weights)
    without = []
    for i in range(6):
        keep = np.arange(6) != i
        one_less = gram.signal(products(vectors[keep]), weights[keep])
        assert one_less is not None
        without.append(one_less.signal_sq)
    error = math.sqrt(5 / 6 * np.sum((np.array(without) - np.mean(without)) ** 2))
    assert found is not None
    assert found.high is not None
    assert found.high - found.signal_sq == pytest.approx(
        2.570582 * error, rel=1e-5
    )  # t, 5 degrees of freedom


def test_a_single_unit_or_one_without_weight_says_nothing() -> None:
    assert gram.signal(np.ones((1, 1))) is None
    assert gram.signal(products(np.eye(3)), [1.0, 0.0, 0.0]) is None
    with_empty = gram.signal(products(np.vstack([np.eye(4), np.zeros((1, 4))])), [1, 1, 1, 1, 0])
    assert with_empty == gram.signal(products(np.eye(4)), [1, 1, 1, 1])


def test_one_unit_with_a_gradient_among_many_without_has_no_interval() -> None:
    alone = np.zeros((8, 3))
    alone[2] = 1.0
    found = gram.signal(products(alone))
    assert found is not None
    assert found.signal_sq == 0.0
    assert found.low is None
    nothing = gram.signal(np.zeros((8, 8)))
    assert nothing is not None
    assert (nothing.low, nothing.high) == (0.0, 0.0), "no gradient anywhere is a measured zero"


def test_sign_flips_are_uniform_without_a_signal_and_small_with_one() -> None:
    rng = np.random.default_rng(11)
    null = [gram.sign_flip_p_value(products(rng.normal(size=(12, 30)))) for _ in range(300)]
    assert 0.02 < np.mean(np.array(null) <= 0.05) < 0.09
    assert gram.sign_flip_p_value(products(rng.normal(size=(12, 30)) + 1.0)) <= 0.002
    exact = products(np.ones((5, 3)))
    assert gram.sign_flip_p_value(exact) == 1 / 16, (
        "of the 16 sign vectors up to a common sign only one is as long"
    )
