from __future__ import annotations

from typing import Any

import torch

from .elsewhere import ppo_loss
from .parts import STEPS, ActorCritic, batch

NAMES = {"policy": "policy", "value": "value", "entropy": "entropy"}  # by what they are made of


def train(watch: Any, oracle: Any) -> None:
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer):
        for _ in range(STEPS):
            optimizer.zero_grad()
            ppo_loss(model, batch(), oracle).backward()
            optimizer.step()
