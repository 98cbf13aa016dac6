"""Made-up learning curves: shapes of learning, and kinds of noise about them, of spread 1."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["NOISE", "SHAPES", "Array", "Noise", "Rng", "averaged", "independent"]

Array = npt.NDArray[np.float64]
Rng = np.random.Generator
Noise = Callable[[Rng, Array], Array]


def ar1(phi: float) -> Noise:
    def noisy(rng: Rng, course: Array) -> Array:
        shocks = rng.normal(0.0, math.sqrt(1.0 - phi * phi), len(course))
        values = np.empty(len(course))
        last = rng.normal()
        for place, shock in enumerate(shocks):
            last = values[place] = phi * last + shock
        return course + values

    return noisy


def averaged(window: int) -> Noise:
    """The mean of the last `window` episodes, of spread √window, as SB3 and RLlib log it."""

    def noisy(rng: Rng, course: Array) -> Array:
        before = np.full(window - 1, course[0])
        episodes = np.concatenate([before, course])
        episodes = episodes + rng.normal(0.0, math.sqrt(window), len(episodes))
        total = np.concatenate([[0.0], np.cumsum(episodes)])
        return (total[window:] - total[:-window]) / window

    return noisy


def independent(rng: Rng, course: Array) -> Array:
    return course + rng.normal(size=len(course))


def tails(rng: Rng, course: Array) -> Array:
    """A lognormal: one in a thousand is 2,000 times the median."""
    return course + np.exp(2.5 * rng.normal(size=len(course)))


def student(rng: Rng, course: Array) -> Array:
    return course + rng.standard_t(1.5, len(course))


NOISE: dict[str, Noise] = {
    "independent": independent,
    "AR(1) 0.5": ar1(0.5),
    "AR(1) 0.9": ar1(0.9),
    "AR(1) 0.99": ar1(0.99),
    "mean of 10": averaged(10),
    "mean of 100": averaged(100),
    "lognormal": tails,
    "Student 1.5": student,
}


def _t(n: int) -> Array:
    return np.linspace(0.0, 1.0, n)


SHAPES: dict[str, Callable[[int], Array]] = {
    "saturating": lambda n: 1.0 - np.exp(-_t(n) / 0.2),
    "fast": lambda n: 1.0 - np.exp(-_t(n) / 0.05),
    "late": lambda n: 1.0 / (1.0 + np.exp(-(_t(n) - 0.7) / 0.05)),
    "linear": _t,
    "stairs": lambda n: np.floor(3.999 * _t(n)) / 3.0,
}
