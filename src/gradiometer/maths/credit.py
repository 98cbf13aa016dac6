"""Credit: how strongly an update pushes each sample's log-probability, c = −∂L/∂log π(a|s).

In the first epoch of PPO it is the advantage over the number of samples. Every number here is free
of the loss's scale, so that a GradScaler, accumulation and the reduction do not matter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["correlation", "ranks", "returns_to_go", "summary"]

Floats = NDArray[np.float64]

FEWEST = 8
"""Pairs below which a correlation says nothing."""
MANY = 32
"""Environments beside each other from which on numpy adds up faster than Python does."""


def summary(credit: Floats) -> dict[str, float]:
    """Of the credits of a step: how many are zero, positive, how even they are and the largest.

    Only `zero_share` where all of them are zero; nothing where there are none, or any is NaN.
    """
    size = np.abs(credit)
    largest = float(size.max()) if len(size) else np.nan
    if not np.isfinite(largest):
        return {}
    given = np.count_nonzero(size)
    found: dict[str, float] = {"credit/zero_share": 1.0 - given / len(size)}
    if given:
        size = size / largest
        total = float(size.sum())
        found["credit/positive_share"] = np.count_nonzero(credit > 0) / given
        found["credit/ess"] = total**2 / (given * float(size @ size))
        found["credit/max"] = given / total
    return found


def correlation(x: Floats, y: Floats) -> float | None:
    """Pearson's; None where there are too few pairs or either does not vary."""
    there = np.isfinite(x) & np.isfinite(y)
    if there.sum() < FEWEST:
        return None
    x, y = x[there] - x[there].mean(), y[there] - y[there].mean()
    scale = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / scale if scale > 0 else None


def ranks(x: Floats) -> Floats:
    """Places in order; ties get places next to each other."""
    places = np.empty(len(x))
    places[np.argsort(x, kind="stable")] = np.arange(len(x))
    return places


def returns_to_go(rewards: Floats, ends: NDArray[np.bool_], gamma: float) -> Floats:
    """Σ γᵏ r_{t+k} up to the end of the episode or of what was recorded, of [steps, ...]."""
    if rewards.ndim == 2 and rewards.shape[1] < MANY:
        columns = zip(rewards.T.tolist(), ends.T.tolist(), strict=True)
        return np.array([_to_go(*each, gamma) for each in columns]).reshape(rewards.T.shape).T
    paid = np.zeros_like(rewards)
    ahead = np.zeros_like(rewards[0]) if len(rewards) else rewards
    for t in range(len(rewards) - 1, -1, -1):
        ahead = rewards[t] + gamma * np.where(ends[t], 0.0, ahead)
        paid[t] = ahead
    return paid


def _to_go(rewards: list[float], ends: list[bool], gamma: float) -> list[float]:
    """The same of one environment, without numpy, whose calls take longer than the sums."""
    paid, ahead = [], 0.0
    for reward, ended in zip(reversed(rewards), reversed(ends), strict=True):
        ahead = reward if ended else reward + gamma * ahead
        paid.append(ahead)
    return paid[::-1]
