"""How a time is taken: in turns, so that a busy machine slows all candidates alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["Taken", "in_turns", "seconds_of"]

Taken = dict[str, NDArray[np.float64]]
"""Seconds by candidate and round."""


def in_turns(
    candidates: Mapping[str, Callable[[], object]], *, rounds: int, warm_up: int = 1, calls: int = 1
) -> Taken:
    """Seconds a call takes, by round: each candidate is called `calls` times in a row, every other
    round backwards."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(warm_up + rounds):
        for name in list(candidates)[:: 1 if number % 2 == 0 else -1]:
            taken = sum(seconds_of(candidates[name]) for _ in range(calls)) / calls
            if number >= warm_up:
                times[name].append(taken)
    return {name: np.array(taken) for name, taken in times.items()}


def seconds_of(call: Callable[[], object]) -> float:
    """Of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
