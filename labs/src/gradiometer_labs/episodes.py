"""Episodes of a vectorised environment, counted as they end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np

__all__ = ["Episodes", "return_of"]

Array = np.ndarray[Any, np.dtype[Any]]


class Episodes:
    """Returns and lengths of the episodes that have ended, oldest first; rewards are not scaled."""

    def __init__(self, num_envs: int) -> None:
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self._return, self._length = np.zeros(num_envs), np.zeros(num_envs, dtype=int)
        self._told = 0

    def add(self, reward: Array, done: Array) -> None:
        """One step of each environment, [N]."""
        self._return += reward
        self._length += 1
        self.returns += self._return[done].tolist()
        self.lengths += self._length[done].tolist()
        self._return[done], self._length[done] = 0.0, 0

    def news(self) -> dict[str, float]:
        """What to log of the episodes that ended since this was last asked; nothing if none did."""
        returns, lengths = self.returns[self._told :], self.lengths[self._told :]
        self._told = len(self.returns)
        return (
            {"reward": float(np.mean(returns)), "episode_length": float(np.mean(lengths))}
            if returns
            else {}
        )

    @property
    def mean_return(self) -> float:
        """Over the last 100 episodes; NaN until one has ended."""
        return float(np.mean(self.returns[-100:])) if self.returns else float("nan")


def return_of(
    act: Callable[[Array, np.random.Generator], Any],
    make: Callable[[], gymnasium.Env[Any, Any]],
    *,
    seed: int,
    episodes: int = 64,
) -> float:
    """The mean return of a policy that does not learn, in an environment of its own."""
    rng, total = np.random.default_rng(seed), 0.0
    with closing(make()) as env:
        for _ in range(episodes):
            observation, _ = env.reset(seed=int(rng.integers(2**31)))
            done = False
            while not done:
                observation, reward, ended, cut, _ = env.step(act(observation, rng))
                total += float(reward)
                done = ended or cut
    return total / episodes
