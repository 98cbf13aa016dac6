"""Small real trainings, to learn from and to test the doctor on: one folder of the same shape each.

A lab is a folder with a `config.py` (`Config`, torch-free) and a `train.py` that reads from top to bottom
(`train(config, progress)`).
This registry is torch-free, so that listing the labs costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gradiometer.errors import MissingExtra, UnknownName

if TYPE_CHECKING:
    from gradiometer.labs.config import LabConfig

__all__ = ["LABS", "Lab", "Wording", "find"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """What the numbers of a training are called on the terminal."""

    result: str = "mean return"
    """Of `Result.mean_return`."""
    live: str = "return"
    """Of `Progress.mean_return`."""
    decimals: int = 1
    """Of the live number."""
    counted: str = "episodes"
    """Of `Result.episodes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A training as data: what it is, and where to find it."""

    name: str
    summary: str
    length_key: str
    """The override that sets how long it trains."""
    return_over: str
    """What the mean return of its `Result` is taken over."""
    module: str
    """The folder's dotted path; `.config` and `.train` are below it."""
    wording: Wording = Wording()

    def config(self) -> type[LabConfig]:
        """The lab's config dataclass; every field has a default."""
        config_class: type[LabConfig] = self._import("config").Config
        return config_class

    def train(self, config: LabConfig, progress: Callable[[Any], None] | None = None) -> Any:
        """Train, call `progress` now and then with the lab's `Progress`, return the lab's `Result`."""
        return self._import("train").train(config, progress)

    def _import(self, part: str) -> ModuleType:
        try:
            return import_module(f"{self.module}.{part}")
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in {"", "gradiometer"}:
                raise
            raise MissingExtra(package, "labs", f"the {self.name} lab") from error


LABS: dict[str, Lab] = {
    lab.name: lab
    for lab in (
        Lab(
            name="bugs",
            summary="GRPO in plain torch on small verifiable questions, with bugs that other people's trainers once had",
            length_key="steps",
            return_over="the last 10 rollouts",
            module="gradiometer.labs.bugs",
            wording=Wording(result="mean reward", live="reward", decimals=3, counted="answers"),
        ),
        Lab(
            name="cartpole",
            summary="PPO, DQN or REINFORCE balances a pole, with networks of two hidden layers, on Gymnasium's CartPole-v1",
            length_key="total_steps",
            return_over="the last 100 episodes",
            module="gradiometer.labs.cartpole",
        ),
        Lab(
            name="pendulum",
            summary="SAC swings a pendulum up: a squashed Gaussian actor, twin critics, on Gymnasium's Pendulum-v1",
            length_key="total_steps",
            return_over="the last 20 episodes",
            module="gradiometer.labs.pendulum",
        ),
        Lab(
            name="prismatic",
            summary="a small language model with experts: merged by a Prismatic router, or routed to the top k of them",
            length_key="steps",
            return_over="the last 10 updates",
            module="gradiometer.labs.prismatic",
            wording=Wording(
                result="log-likelihood per character", live="log-likelihood", decimals=3, counted="sequences"
            ),
        ),
        Lab(
            name="sokoban",
            summary="PPO or GRPO teaches a small language model to push boxes, over several turns, in groups of rollouts",
            length_key="trainer.total_training_steps",
            return_over="the last 10 training steps",
            module="gradiometer.labs.sokoban",
        ),
        Lab(
            name="sparsify",
            summary="REINFORCE or PPO on a graph: which k connections of a matrix's rows multigrid should coarsen along",
            length_key="steps",
            return_over="the last 10 updates",
            module="gradiometer.labs.sparsify",
            wording=Wording(result="mean reward", live="reward", decimals=4, counted="rollouts"),
        ),
        Lab(
            name="tsp",
            summary="POMO, leader reward or max@K teaches an attention model short tours, one rollout from every city",
            length_key="steps",
            return_over="the last 10 updates",
            module="gradiometer.labs.tsp",
        ),
    )
}


def find(name: str) -> Lab:
    """The lab of that name."""
    if name not in LABS:
        raise UnknownName("lab", name, LABS, hint=f"The labs are: {', '.join(LABS)}.")
    return LABS[name]
