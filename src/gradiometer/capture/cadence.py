"""Which steps are measured: every n-th, and no more than the budget pays for."""

from __future__ import annotations

import math
import time
from typing import Any

__all__ = ["Cadence"]

GRACE_SECONDS = 0.05  # free measuring at the start: a run of a few steps should not be empty
FORGET = 0.8  # weight of the past in the running cost of a measurement


class Cadence:
    """Says whether a step is due. The budget is the measured share of wall time, kept by stretching the interval."""

    def __init__(self, every: int, budget: float | None) -> None:
        self.every, self.budget = every, budget
        self.interval = every
        self.spent = self._total = 0.0
        self._cost = 0.0
        self._next_due = 0
        self._started = self._made = time.perf_counter()
        self._first_step: int | None = None

    def due(self, step: int) -> bool:
        """Whether this step is measured."""
        return step >= self._next_due and step % self.every == 0

    def measured(self, step: int, seconds: float) -> None:
        """Take in what a measured step cost, and choose the next one."""
        self._total += seconds
        if self._first_step is None:
            # The first measurement makes tables and warms up; it says nothing about what the next will cost.
            self._first_step, self._started = step, time.perf_counter()
            seconds = 0.0
        self.spent += seconds
        self._cost = seconds if self._cost == 0.0 else FORGET * self._cost + (1 - FORGET) * seconds
        self.interval = self._interval(step)
        self._next_due = step + self.interval

    def follow(self, step: int, interval: int) -> None:
        """Take rank 0's choice: the clocks of two ranks differ, and they must measure the same steps."""
        self.interval, self._next_due = interval, step + interval

    def share(self) -> float:
        """Seconds spent measuring over seconds gone by, the warm-up of the first measurement included."""
        return self._total / max(time.perf_counter() - self._made, 1e-9)

    def _interval(self, step: int) -> int:
        assert self._first_step is not None
        elapsed = time.perf_counter() - self._started
        if self.budget is None or self.spent + self._cost <= GRACE_SECONDS + self.budget * elapsed:
            return self.every
        # Training alone takes (elapsed − spent)/steps a step; after n more steps the budget has grown to pay the next one.
        per_step = max((elapsed - self.spent) / (step - self._first_step + 1), 1e-9)
        needed = (self.spent + self._cost - GRACE_SECONDS) / self.budget - elapsed
        return max(1, math.ceil(needed / per_step / self.every)) * self.every

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training goes on with; the clock starts anew."""
        return {"interval": self.interval, "cost": self._cost}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the cost and the interval of before."""
        self.interval, self._cost = int(state["interval"]), float(state["cost"])
