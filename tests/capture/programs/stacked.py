from __future__ import annotations

from typing import Any

import torch

from .parts import STEPS, ActorCritic, batch

NAMES = {"policy": "policy_losses", "value": "value_losses"}


def train(watch: Any, oracle: Any) -> None:
    """As in torch's own example of an actor-critic: a loss for each step of an episode."""
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer):
        for _ in range(STEPS):
            policy_losses, value_losses = [], []
            for observation, action, advantage, reward in zip(*batch(), strict=True):
                logits, value = model(observation[None])
                dist = torch.distributions.Categorical(logits=logits[0])
                policy_losses.append(-dist.log_prob(action) * advantage)
                value_losses.append(torch.nn.functional.smooth_l1_loss(value, reward[None]))
            oracle(model, policy=sum(policy_losses), value=sum(value_losses))
            optimizer.zero_grad()
            loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
            loss.backward()
            optimizer.step()
