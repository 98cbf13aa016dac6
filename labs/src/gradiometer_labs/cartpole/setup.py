"""What all algorithms of this lab are given, and the lines that all of them have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv
from torch import Tensor, nn

import gradiometer as gm
from gradiometer_labs.cartpole.config import Config
from gradiometer_labs.cartpole.model import model_of
from gradiometer_labs.episodes import Episodes

__all__ = ["Array", "Round", "Rounds", "SharedPieces", "TrainingSetup"]

Array = np.ndarray[Any, np.dtype[Any]]
Round = tuple[int, dict[str, Any]]
"""Environment steps so far, and what to log: an algorithm yields one after each stretch of its
training."""
Rounds = Iterator[Round]
ModelT = TypeVar("ModelT", bound=nn.Module)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetup(Generic[ModelT]):
    """A training that is set up and has not begun."""

    envs: SyncVectorEnv[Any, Any]
    observation: Array
    """Of each environment, [N, 4], just reset."""
    episodes: Episodes
    model: ModelT
    optimizer: torch.optim.Optimizer
    meter: gm.Meter

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return next(self.model.parameters()).device


def observed(observation: Array, device: torch.device) -> Tensor:
    """What the networks are shown of a state: CartPole's numbers are of order one as they are."""
    return torch.as_tensor(observation, device=device)


def scaled(rewards: Tensor, config: Config) -> Tensor:
    """Rewards as the value targets are made of them."""
    return config.reward_scale * rewards


def parameters_of(model: nn.Module) -> Iterable[Any]:
    """What the optimizer is given."""
    return model.parameters()


def learning_rate_at(config: Config, done_fraction: float) -> float:
    """Linear from `learning_rate` to zero."""
    return config.learning_rate * (1 - done_fraction)


@dataclass(frozen=True, kw_only=True)
class SharedPieces:
    """Lines of every algorithm here that a fault may change; see `gradiometer_labs/faults.py`."""

    config: Config
    model_of: Callable[[Config], nn.Module] = model_of
    parameters_of: Callable[[nn.Module], Iterable[Any]] = parameters_of
    learning_rate_at: Callable[[Config, float], float] = learning_rate_at
    observed: Callable[[Array, torch.device], Tensor] = observed
    scaled: Callable[[Tensor, Config], Tensor] = scaled
