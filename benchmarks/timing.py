"""How a time is taken: in turns, so that a busy machine slows all candidates alike, and the median of many."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["in_turns", "row"]


def in_turns(
    candidates: Mapping[str, Callable[[], object]], rounds: int = 30, warm_up: int = 3, *, calls: int = 1
) -> dict[str, float]:
    """Median over rounds of the seconds a call takes, each candidate called `calls` times in a row in every round."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(warm_up + rounds):
        for name, call in candidates.items():
            start = time.perf_counter()
            for _ in range(calls):
                call()
            if number >= warm_up:
                times[name].append((time.perf_counter() - start) / calls)
    return {name: statistics.median(taken) for name, taken in times.items()}


def row(name: str, seconds: float, base: float, target: str = "") -> str:
    """A line of a table: milliseconds and the ratio to the base."""
    return f"{name:<44} {seconds * 1e3:>10.3f} ms {seconds / base:>8.2f} ×   {target}"
