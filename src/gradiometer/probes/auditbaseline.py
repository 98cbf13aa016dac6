"""Does the baseline contain the very reward it is subtracted from? Shown by changing that reward alone.

Rewards without any pattern are fed to a copy of the baseline. No baseline that has not seen a reward can explain it: an
explained variance above zero is a leak. An average with momentum β that already holds the current reward shows
1 − β²(1 + (1−β)/(1+β)), 0.0744 at β = 0.95, and −0.026 where it does not.
"""

from __future__ import annotations

import copy
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradiometer.errors import UsageError
from gradiometer.probes.auditcheck import About, Check, failed, num_arguments, passed, skipped
from gradiometer.probes.subject import seed_everything

__all__ = ["baseline_leak"]

BASELINE: About = ("baseline-leak", "baseline before its reward")
LENGTH, WARM_UP = 4000, 200
LEAST = 500  # after the warm-up; below, an explained variance says nothing
PATIENCE = 1.0  # seconds: a network for a baseline is fed as much as fits
LEAK = 1e-6  # of a change in the reward that shows in its own baseline: more than rounding in float32
HOW = (
    "pass baseline=, an object with value() and update(reward), one that is called with a reward and gives what is subtracted "
    "from it, or a function without arguments that makes such an object"
)

Fed = Callable[[float], tuple[float, float | None]]
"""A reward in; the baseline used for it, and where it can be told the baseline after it, out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stream:
    rewards: NDArray[np.float64]
    used: NDArray[np.float64]
    after: NDArray[np.float64]
    """NaN where the baseline does not tell."""


def baseline_leak(baseline: Any, seed: int) -> Check:
    """Feed it, then feed two copies a different last reward."""
    if baseline is None:
        return skipped(BASELINE, HOW)
    make = _maker(baseline)
    if make is None:
        return skipped(BASELINE, f"a function of the reward would keep what we feed it: {HOW}")
    stream = _fed(_feeder(make()), seed)
    if len(stream.rewards) < LEAST:
        return skipped(
            BASELINE, f"the baseline took {len(stream.rewards)} rewards in {PATIENCE:g} s: {LEAST} are needed"
        )
    weight = _own_weight(make, stream.rewards[: 2 * WARM_UP], seed)
    numbers = {"explained_variance": _explained(stream.rewards, stream.used), "own_weight": weight}
    if np.isfinite(stream.after).all():
        numbers["explained_variance_after"] = _explained(stream.rewards, stream.after)
    ev = numbers["explained_variance"]
    if abs(weight) > LEAK:
        return failed(
            BASELINE,
            "warn",
            f"the baseline contains {weight:.3g} of the reward it is subtracted from: rewards without any pattern read as "
            f"{ev:.1%} explained",
            numbers=numbers,
            fix=(
                "take the value first, update afterwards: advantage = reward - baseline.value(); baseline.update(reward)",
            ),
            confirm="feed it random rewards: their explained variance must not be above 0",
        )
    after = numbers.get("explained_variance_after")
    then = "" if after is None or after <= ev else f"; taken after the update it would read {after:.1%}"
    return passed(BASELINE, f"the reward is not in its own baseline: {ev:.1%} of pure noise explained{then}", **numbers)


def _maker(baseline: Any) -> Callable[[], Any] | None:
    """Makes a baseline that can be fed without the training's own noticing; None for a function with hidden state."""
    if isinstance(baseline, types.FunctionType | type):
        return baseline if num_arguments(baseline) == 0 else None
    try:
        copy.deepcopy(baseline)
    except Exception as problem:
        raise UsageError(f"baseline= cannot be copied ({problem}): pass a function that makes a new one") from problem
    return lambda: copy.deepcopy(baseline)


def _feeder(made: Any) -> Fed:
    value, update = getattr(made, "value", None), getattr(made, "update", None)
    if value is not None and update is not None:

        def ordered(reward: float) -> tuple[float, float | None]:
            before = _number(value() if callable(value) else made.value)
            update(_reward(reward))
            return before, _number(value() if callable(value) else made.value)

        return ordered
    if not callable(made):
        raise UsageError(f"baseline= is a {type(made).__name__}: {HOW.removeprefix('pass baseline=, ')}")
    return lambda reward: (_number(made(_reward(reward))), None)


def _reward(reward: float) -> torch.Tensor:
    return torch.tensor([reward])  # has .mean() and .item(), and adds up like a number


def _number(found: Any) -> float:
    if isinstance(found, torch.Tensor):
        found = found.detach().double().mean()
    return float(found if found is not None else 0.0)  # None: nothing is subtracted yet


def _fed(feed: Fed, seed: int) -> _Stream:
    seed_everything(seed)
    rewards = np.random.default_rng(seed).standard_normal(WARM_UP + LENGTH)
    used, after, end = [], [], time.perf_counter() + PATIENCE
    for reward in rewards:
        before, then = feed(float(reward))
        used.append(before)
        after.append(np.nan if then is None else then)
        if time.perf_counter() > end:
            break
    kept = slice(WARM_UP, len(used))
    return _Stream(rewards=rewards[kept], used=np.array(used)[kept], after=np.array(after)[kept])


def _own_weight(make: Callable[[], Any], history: NDArray[np.float64], seed: int) -> float:
    """d baseline/d reward of one and the same moment: two copies with one past, and last rewards that differ by 1."""

    def last(reward: float) -> float:
        seed_everything(seed)
        feed = _feeder(make())
        for past in history:
            feed(float(past))
        return feed(reward)[0]

    return last(1.0) - last(0.0)


def _explained(rewards: NDArray[np.float64], baseline: NDArray[np.float64]) -> float:
    """1 − Var(r − b)/Var(r)."""
    return float(1 - np.var(rewards - baseline) / np.var(rewards))
