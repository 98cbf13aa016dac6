"""Student's t distribution: its distribution function and its quantiles.

Written out because importing `scipy.special` takes longer than a whole diagnosis; the tests compare
both with it.
"""

from __future__ import annotations

import math
from functools import lru_cache

__all__ = ["t_below", "t_quantile"]

TINY = 1e-300
MOST_TERMS = 10_000


def t_below(freedom: float, t: float) -> float:
    """P(T ≤ t) = 1 − I_x(ν/2, 1/2)/2 for t ≥ 0, with x = ν/(ν + t²)."""
    if math.isnan(t) or math.isnan(freedom):
        return math.nan
    if math.isinf(t):
        return 1.0 if t > 0.0 else 0.0
    tail = 0.5 * _incomplete_beta(0.5 * freedom, 0.5, freedom / (freedom + t * t))
    return 1.0 - tail if t > 0.0 else tail


@lru_cache(maxsize=4096)
def t_quantile(freedom: float, p: float) -> float:
    """The t with P(T ≤ t) = p, by bisection until the floats on both sides are neighbours."""
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -t_quantile(freedom, 1.0 - p)
    if p >= 1.0:
        return math.inf
    low, high = 0.0, 1.0
    while t_below(freedom, high) < p and high < 1e300:
        low, high = high, 2.0 * high
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if t_below(freedom, middle) < p else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b), the regularised incomplete beta function, by its continued fraction (DLMF
    8.17.22), which converges quickly below (a + 1)/(a + b + 2)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(scale + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1.0 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """1/(1 + d₁/(1 + d₂/(1 + …))) by Lentz's method."""
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0) or TINY)
    value = d
    for m in range(1, MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            d = 1.0 / (1.0 + term * d or TINY)
            c = 1.0 + term / c or TINY
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value
