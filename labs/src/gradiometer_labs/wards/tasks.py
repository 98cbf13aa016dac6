"""The environments of the wards, and a wrapper that keeps their true returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

__all__ = ["Bandit", "Reach", "TrueReturns", "Walk", "make_task"]

Observation = NDArray[np.float32]
Step = tuple[Observation, float, bool, bool, dict[str, Any]]


class Bandit(gym.Env[Observation, np.int64]):
    """A contextual bandit: of four arms the one that the context points to pays; a step each."""

    observation_space = Box(-10, 10, (6,), np.float32)
    action_space = Discrete(4)

    def __init__(self) -> None:
        self._directions = np.random.default_rng(5).normal(size=(6, 4))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """A new context."""
        super().reset(seed=seed)
        self._context = self.np_random.normal(size=6).astype(np.float32)
        return self._context, {}

    def step(self, action: np.int64) -> Step:
        """1 for the right arm."""
        right = int(np.argmax(self._context @ self._directions)) == int(action)
        return self._context, float(right), True, False, {}


class Reach(gym.Env[Observation, NDArray[np.float32]]):
    """A point on a line goes to its goal: the cost is the distance, and arriving ends it."""

    observation_space = Box(-4, 4, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Somewhere else, with another goal."""
        super().reset(seed=seed)
        self._place, self._goal = self.np_random.uniform(-1.5, 1.5, 2)
        return self._seen(), {}

    def step(self, action: NDArray[np.float32]) -> Step:
        """A third of the action far."""
        self._place = float(np.clip(self._place + 0.35 * float(action[0]), -2, 2))
        away = abs(self._place - self._goal)
        return self._seen(), -away, away < 0.1, False, {}

    def _seen(self) -> Observation:
        return np.array([self._place, self._goal], np.float32)


class Walk(gym.ActionWrapper[Observation, np.int64, NDArray[np.float32]]):
    """The same with three actions: back, stay, on."""

    def __init__(self) -> None:
        super().__init__(Reach())
        self.action_space = Discrete(3)

    def action(self, action: np.int64) -> NDArray[np.float32]:
        """As far as it goes."""
        return np.array([float(action) - 1.0], np.float32)


class TrueReturns(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps the return of every episode, whatever stands around it: what a fault costs."""

    def __init__(self, env: gym.Env[Any, Any], kept: list[float]) -> None:
        super().__init__(env)
        self._kept, self._total = kept, 0.0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """An episode begins."""
        self._total = 0.0
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        """The reward is added up."""
        answer = self.env.step(action)
        self._total += float(answer[1])
        if answer[2] or answer[3]:
            self._kept.append(self._total)
        return answer


def _one_hot(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    return gym.wrappers.FlattenObservation(env)


MAKERS: dict[str, Callable[[], gym.Env[Any, Any]]] = {
    "bandit": Bandit,
    "reach": lambda: gym.wrappers.TimeLimit(Reach(), 25),
    "walk": lambda: gym.wrappers.TimeLimit(Walk(), 25),
    "CartPole": lambda: gym.make("CartPole-v1"),
    "Acrobot": lambda: gym.make("Acrobot-v1"),
    "Pendulum": lambda: gym.make("Pendulum-v1"),
    "FrozenLake": lambda: _one_hot(gym.make("FrozenLake-v1", is_slippery=False)),
    "Taxi": lambda: _one_hot(gym.make("Taxi-v3")),
}


def make_task(name: str, kept: list[float]) -> gym.Env[Any, Any]:
    """The environment of that name; `kept` gets its true returns."""
    return TrueReturns(MAKERS[name](), kept)
