"""What is earned without learning: by a random policy and, where there is one, by a simple rule.

A training that ends at the level of a random policy has learned nothing, whatever its curve looks
like. Both are measured before the first update, with random numbers of their own, and kept in the
run's config as `random_reward` and `baseline_reward`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from gradiometer_labs.config import TrainingProgress

__all__ = ["CONTROL_SEED", "MEASURED", "ControlRewards"]

CONTROL_SEED = 0
"""A random policy earns the same in every repetition of a training, whatever the training's seed:
two runs that differ in that alone have the same config."""
MEASURED = ("random_reward", "baseline_reward")
"""Keys of a run's config that were measured and not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRewards:
    """Mean rewards, in the unit of the training's own."""

    random_reward: float
    baseline_reward: float | None = None
    rule: str = ""
    """What earns the baseline's, in two or three words."""

    @property
    def facts(self) -> dict[str, float]:
        """For the run's config."""
        found = {"random_reward": self.random_reward, "baseline_reward": self.baseline_reward}
        return {name: reward for name, reward in found.items() if reward is not None}

    @property
    def notes(self) -> tuple[str, ...]:
        """To be read before the first update."""
        said = [("Random policy", self.random_reward), (self.rule, self.baseline_reward)]
        return tuple(
            f"{name} | Mean Reward: {reward:.4f}" for name, reward in said if reward is not None
        )

    def announced(
        self, progress: Callable[[TrainingProgress], None] | None
    ) -> Callable[[TrainingProgress], None] | None:
        """The listener of a training, who hears the notes at the first call."""
        if progress is None:
            return None
        waiting = [self.notes]

        def heard(now: TrainingProgress) -> None:
            first = waiting.pop() if waiting else ()
            progress(dataclasses.replace(now, notes=first + now.notes))

        return heard
