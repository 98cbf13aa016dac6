"""Inner products are the common currency: what a Gram matrix says about the gradients behind it.

G[a, b] = <g_a, g_b> of a handful of vectors: loss terms, buckets, groups of rollouts, replicates, experts. Every function
takes products [..., n, n] in float64 (any leading axes: blocks, say) and never needs the vectors again. `maths.vectors`
makes the matrix. Torch-free.

Signal and noise need independent parts. Part i is a unit (a prompt with its rollouts, a trajectory, an instance) with the
sum x_i of its loss gradients and its weight T_i (tokens or sequences); the gradient of them all is Σx_i/ΣT_i.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "MIN_UNITS",
    "Signal",
    "additivity",
    "alignment",
    "combine",
    "cosines",
    "norms",
    "permuted_null",
    "shares",
    "sign_flip_p_value",
    "signal",
    "signed_root",
]

Floats = NDArray[np.float64]

MIN_UNITS = 4  # below, a jackknife has no interval worth the name
CONFIDENCE = 0.95
FLIPS = 999  # random sign vectors: a p-value down to 0.001
EXACT_UNITS = 10  # up to here all 2^(m-1) sign vectors are tried instead


def norms(products: ArrayLike) -> Floats:
    """‖g_a‖ = √G[a, a], [..., n]."""
    return np.sqrt(np.maximum(np.diagonal(np.asarray(products, np.float64), axis1=-2, axis2=-1), 0.0))


def cosines(products: ArrayLike) -> Floats:
    """G[a, b]/√(G[a, a] G[b, b]), [..., n, n]; NaN where a vector is zero or not finite."""
    lengths = norms(products)
    scale = lengths[..., :, None] * lengths[..., None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.asarray(products, np.float64) / scale
    return np.where((scale > 0) & np.isfinite(scale), np.clip(ratio, -1.0, 1.0), np.nan)


def combine(products: ArrayLike, weights: ArrayLike) -> Floats:
    """The Gram matrix of Σ_a W[k, a] g_a: W G W', [..., k, k]. So a sum of gradients is never computed again."""
    mixing = np.asarray(weights, np.float64)
    combined: Floats = mixing @ np.asarray(products, np.float64) @ mixing.T
    return combined


def shares(products: ArrayLike) -> Floats:
    """<g_a, g>/‖g‖² of the sum g = Σ g_a, [..., n]; they add up to one, and a share below zero works against the sum."""
    along = np.asarray(products, np.float64).sum(-1)
    total = along.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, along / total, np.nan)


def alignment(products: ArrayLike) -> Floats:
    """‖Σ g_i‖/Σ‖g_i‖ in [0, 1]: one when all point the same way; NaN when all are zero."""
    matrix = np.asarray(products, np.float64)
    parts = norms(matrix).sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(parts > 0, np.sqrt(np.maximum(matrix.sum((-2, -1)), 0.0)) / parts, np.nan)


def additivity(products: ArrayLike) -> tuple[float, float]:
    """(error, scale) of terms g_1 … g_{n-1} against a total g_n, products [n, n] in float64.

    A loss scaled for half precision or divided for accumulation is a common factor: s = <g_n, Σ>/‖Σ‖² is fitted, and
    the error is what is left, ‖g_n − sΣ‖/‖g_n‖. It cannot see a hidden term smaller than rounding, nor one along Σ.
    """
    matrix = np.asarray(products, np.float64)
    total, along, terms = matrix[-1, -1], matrix[-1, :-1].sum(), matrix[:-1, :-1].sum()
    if not (total > 0 and terms > 0):
        return float("nan"), float("nan")
    scale = along / terms
    left = total - 2 * scale * along + scale * scale * terms
    return math.sqrt(max(left, 0.0) / total), float(scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What is behind the noise of a mean gradient. `low` and `high` are None with fewer than `MIN_UNITS` units, or
    when a single one of them has a gradient at all."""

    signal_sq: float
    """‖E g‖², unbiased: negative when the noise has the upper hand by chance. Never clipped at zero."""
    low: float | None
    high: float | None
    """95 % interval of signal_sq."""
    noise_sq: float
    """E‖g − E g‖² of the mean gradient, what the squared norm has beyond the signal; by chance it may be negative too."""
    units: int
    p_value: float | None
    """How often random signs on the units give as long a sum: small means there is a signal."""

    @property
    def snr(self) -> float:
        """signal²/noise²; NaN when the noise is not above zero."""
        return self.signal_sq / self.noise_sq if self.noise_sq > 0 else float("nan")


def signed_root(square: float) -> float:
    """√|x| with the sign of x, to print a signed square in the unit of a norm."""
    return math.copysign(math.sqrt(abs(square)), square)


def signal(products: ArrayLike, weights: ArrayLike | None = None, *, seed: int = 0) -> Signal | None:
    """Signal and noise of Σx_i/ΣT_i from the units' products [m, m] and weights T [m]; None with fewer than two units.

    With S = Σ_ij G_ij, d = Σ_i G_ii and T = ΣT_i:
        signal² = (S − d)/(T² − ΣT_i²),      noise² = S/T² − signal²
    Only products of different units enter the signal, and each pair is divided by its own T_i T_j: with equal weights
    this is (S − d)/(m(m−1))/T̄², with unequal ones it stays unbiased. A squared norm is signal² + noise², always. The
    interval is a delete-one-unit jackknife with Student's t. A bootstrap would bring the diagonal back.
    """
    matrix = np.asarray(products, np.float64)
    weight = np.ones(len(matrix)) if weights is None else np.asarray(weights, np.float64)
    used = weight > 0
    if not used.all():
        matrix, weight = matrix[np.ix_(used, used)], weight[used]
    m = len(matrix)
    if m < 2:
        return None
    value = float(_signal_sq(matrix.sum(), np.trace(matrix), weight.sum(), np.square(weight).sum()))
    low, high = _jackknife(matrix, weight, value) if m >= MIN_UNITS else (None, None)
    return Signal(
        signal_sq=value,
        low=low,
        high=high,
        noise_sq=float(matrix.sum() / weight.sum() ** 2) - value,
        units=m,
        p_value=sign_flip_p_value(matrix, seed=seed) if m >= MIN_UNITS else None,
    )


def _signal_sq(total: Any, diagonal: Any, weight: Any, square: Any) -> Any:
    return (total - diagonal) / (weight**2 - square)


def _jackknife(matrix: Floats, weight: Floats, value: float) -> tuple[float | None, float | None]:
    from scipy.special import stdtrit  # 40 ms to import: not for a training that never asks

    m, own = len(matrix), np.diagonal(matrix)
    without = _signal_sq(
        matrix.sum() - 2 * matrix.sum(1) + own,
        np.trace(matrix) - own,
        weight.sum() - weight,
        np.square(weight).sum() - np.square(weight),
    )
    error = math.sqrt((m - 1) / m * float(((without - without.mean()) ** 2).sum()))
    if error == 0 and own.any():  # one unit alone has a gradient: nothing is known of what another would add
        return None, None
    width = float(stdtrit(m - 1, 0.5 + CONFIDENCE / 2)) * error
    return value - width, value + width


def sign_flip_p_value(products: ArrayLike, *, flips: int = FLIPS, seed: int = 0) -> float:
    """P(c'Gc ≥ 1'G1) over signs c ∈ {±1}^m: exact for few units, from random signs and never below 1/(flips+1) else.

    Without a signal x_i and −x_i are equally likely, so the sum is as long under any signs.
    """
    matrix = np.asarray(products, np.float64)
    m, observed = len(matrix), float(matrix.sum())
    if not np.isfinite(observed):
        return float("nan")
    tolerance = 1e-12 * float(np.abs(matrix).sum())
    if m <= EXACT_UNITS:
        signs = np.array([(1, *rest) for rest in itertools.product((1, -1), repeat=m - 1)], np.float64)
        return float(np.mean(_quadratic(matrix, signs) >= observed - tolerance))
    signs = np.where(np.random.default_rng(seed).integers(0, 2, (flips, m)), 1.0, -1.0)
    return float((1 + np.sum(_quadratic(matrix, signs) >= observed - tolerance)) / (flips + 1))


def permuted_null(
    products: ArrayLike, coefficients: ArrayLike, groups: ArrayLike, *, draws: int = FLIPS, seed: int = 0
) -> Floats:
    """‖Σ c_π(i) v_i‖² for `draws` permutations π inside groups, [draws], from the products of the v_i [n, n].

    With v_i = ∇log π of sample i and c its advantage, c'Gc is the squared norm of the policy gradient; the permuted ones
    are what it reads when rewards say nothing about samples.
    """
    matrix, weight, group = np.asarray(products, np.float64), np.asarray(coefficients, np.float64), np.asarray(groups)
    rng = np.random.default_rng(seed)
    mixed = np.tile(weight, (draws, 1))
    for name in np.unique(group):
        at = np.flatnonzero(group == name)
        mixed[:, at] = rng.permuted(mixed[:, at], axis=1)
    return _quadratic(matrix, mixed)


def _quadratic(matrix: Floats, vectors: Floats) -> Floats:
    """c'Gc for each row c, [rows]."""
    values: Floats = np.einsum("ri,ri->r", vectors @ matrix, vectors)
    return values
