"""Inner products are the common currency: what a Gram matrix says about the gradients behind it.

G[a, b] = <g_a, g_b> of a handful of vectors: loss terms, buckets, groups of rollouts, replicates,
experts. Every function takes products [..., n, n] in float64 (any leading axes: blocks, say) and
never needs the vectors again. `maths.vectors` makes the matrix. Torch-free.

Signal and noise need independent parts. Part i is a unit (a prompt with its rollouts, a trajectory,
an instance) with the sum x_i of its loss gradients and its weight T_i (tokens or sequences); the
gradient of them all is Σx_i/ΣT_i.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradiometer.maths.students import t_quantile

__all__ = [
    "MIN_UNITS",
    "Signal",
    "additivity",
    "combine",
    "cosines",
    "has_signal",
    "jackknife_width",
    "norms",
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
    squares = np.diagonal(np.asarray(products, np.float64), axis1=-2, axis2=-1)
    return np.sqrt(np.maximum(squares, 0.0))


def cosines(products: ArrayLike) -> Floats:
    """G[a, b]/√(G[a, a] G[b, b]), [..., n, n]; NaN where a vector is zero or not finite."""
    lengths = norms(products)
    scale = lengths[..., :, None] * lengths[..., None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.asarray(products, np.float64) / scale
    return np.where((scale > 0) & np.isfinite(scale), np.clip(ratio, -1.0, 1.0), np.nan)


def combine(products: ArrayLike, weights: ArrayLike) -> Floats:
    """The Gram matrix of Σ_a W[k, a] g_a without computing the sums: W G W', [..., k, k]."""
    mixing = np.asarray(weights, np.float64)
    combined: Floats = mixing @ np.asarray(products, np.float64) @ mixing.T
    return combined


def shares(products: ArrayLike) -> Floats:
    """<g_a, g>/‖g‖² of g = Σ g_a, [..., n]: they add up to one, and below zero works against g."""
    along = np.asarray(products, np.float64).sum(-1)
    total = along.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, along / total, np.nan)


def additivity(products: ArrayLike) -> tuple[float, float]:
    """(error, scale) of terms g_1 … g_{n-1} against a total g_n, products [n, n] in float64.

    A loss scaled for half precision or divided for accumulation is a common factor: s = <g_n,
    Σ>/‖Σ‖² is fitted, and the error is what is left, ‖g_n − sΣ‖/‖g_n‖. It cannot see a hidden term
    smaller than rounding, nor one along Σ.
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
    """What is behind the noise of a mean gradient. `low` and `high` are None with fewer than
    `MIN_UNITS` units, or when a single one of them has a gradient at all."""

    signal_sq: float
    """‖E g‖², unbiased: negative where noise has the upper hand by chance, and never clipped."""
    low: float | None
    high: float | None
    """95 % interval of signal_sq."""
    noise_sq: float
    """E‖g − E g‖² of the mean gradient, what ‖g‖² has beyond the signal; may be negative too."""
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


def signal(
    products: ArrayLike, weights: ArrayLike | None = None, *, seed: int = 0
) -> Signal | None:
    """Signal and noise of Σx_i/ΣT_i from products [m, m] and weights T [m]; None if m < 2.

    With S = Σ_ij G_ij, d = Σ_i G_ii and T = ΣT_i:
        signal² = (S − d)/(T² − ΣT_i²),      noise² = S/T² − signal²
    Only products of different units enter the signal, and each pair is divided by its own T_i T_j:
    with equal weights this is (S − d)/(m(m−1))/T̄², with unequal ones it stays unbiased. A squared
    norm is signal² + noise², always. The interval is a delete-one-unit jackknife with Student's t.
    A bootstrap would bring the diagonal back.
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


def has_signal(products: ArrayLike, weights: ArrayLike) -> bool:
    """Whether the 95 % interval of signal² lies above zero; not below four units."""
    matrix, weight = np.asarray(products, np.float64), np.asarray(weights, np.float64)
    used = weight > 0
    matrix, weight = matrix[np.ix_(used, used)], weight[used]
    if len(matrix) < MIN_UNITS:
        return False
    value = float(_signal_sq(matrix.sum(), np.trace(matrix), weight.sum(), np.square(weight).sum()))
    low, _ = _jackknife(matrix, weight, value)
    return low is not None and low > 0.0


def _signal_sq(total: Any, diagonal: Any, weight: Any, square: Any) -> Any:
    return (total - diagonal) / (weight**2 - square)


def _jackknife(matrix: Floats, weight: Floats, value: float) -> tuple[float | None, float | None]:
    own = np.diagonal(matrix)
    without = _signal_sq(
        matrix.sum() - 2 * matrix.sum(1) + own,
        np.trace(matrix) - own,
        weight.sum() - weight,
        np.square(weight).sum() - np.square(weight),
    )
    width = jackknife_width(without)
    # One unit alone has a gradient: nothing is known of what another would add.
    if width == 0 and own.any():
        return None, None
    return value - width, value + width


def jackknife_width(without: Floats) -> float:
    """Half of the 95 % interval, from the delete-one-unit values and Student's t."""
    count = len(without)
    if not np.isfinite(without).all():
        return math.nan
    error = math.sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum()))
    return t_quantile(count - 1, 0.5 + CONFIDENCE / 2) * error


def sign_flip_p_value(
    products: ArrayLike, *, flips: int = FLIPS, seed: int = 0, exact: int = EXACT_UNITS
) -> float:
    """P(c'Gc ≥ 1'G1) over signs c ∈ {±1}^m: all up to `exact` units, else `flips` at random.

    Without a signal x_i and −x_i are equally likely, so the sum is as long under any signs.
    """
    matrix = np.asarray(products, np.float64)
    m, observed = len(matrix), float(matrix.sum())
    if not np.isfinite(observed):
        return float("nan")
    tolerance = 1e-12 * float(np.abs(matrix).sum())
    if m <= exact:
        flips_of = itertools.product((1, -1), repeat=m - 1)
        signs = np.array([(1, *rest) for rest in flips_of], np.float64)
        return float(np.mean(_quadratic(matrix, signs) >= observed - tolerance))
    signs = np.where(np.random.default_rng(seed).integers(0, 2, (flips, m)), 1.0, -1.0)
    return float((1 + np.sum(_quadratic(matrix, signs) >= observed - tolerance)) / (flips + 1))


def _quadratic(matrix: Floats, vectors: Floats) -> Floats:
    """c'Gc for each row c, [rows]."""
    values: Floats = np.einsum("ri,ri->r", vectors @ matrix, vectors)
    return values
