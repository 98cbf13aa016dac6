"""What happened, kept to learn from: a ring of transitions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Batch", "Replay"]

COLUMNS = [3, 1, 1, 3]
"""Of a transition: observation, action, reward, observation after it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Transitions as the networks see them: observations [B, 3], actions [B, 1], rewards [B]."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor


class Replay:
    """The latest `capacity` transitions. One row each, so that a batch is a single look-up."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._rows = torch.empty(capacity, sum(COLUMNS), device=device)
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, len(self._rows))

    def add(self, observations: Tensor, actions: Tensor, rewards: Tensor, next_observations: Tensor) -> None:
        """One step of each environment, [N, ...]; the oldest make room."""
        rows = torch.cat([observations, actions, rewards.unsqueeze(-1), next_observations], dim=-1)
        places = torch.arange(self._added, self._added + len(rows), device=rows.device) % len(self._rows)
        self._rows[places] = rows
        self._added += len(rows)

    def batch(self, index: Tensor) -> Batch:
        """The transitions at these places, [B]."""
        observations, actions, rewards, next_observations = torch.split(self._rows[index], COLUMNS, dim=-1)
        return Batch(observations, actions, rewards.squeeze(-1), next_observations)
