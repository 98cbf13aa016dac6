"""The model and the data that the programs train on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

STEPS = 3


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        self.actor = nn.Linear(16, 3)
        self.critic = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Observations, actions, advantages, returns."""
    return torch.randn(16, 6), torch.randint(3, (16,)), torch.randn(16), torch.randn(16)
