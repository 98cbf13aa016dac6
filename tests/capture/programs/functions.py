from __future__ import annotations

from typing import Any

import torch

from .parts import STEPS, ActorCritic, batch

NAMES = {"policy": "policy_loss", "value": "value_loss", "entropy": "entropy_loss"}


def train(watch: Any, oracle: Any) -> None:
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer):
        for _ in range(STEPS):
            update(model, optimizer, oracle)


def update(model: ActorCritic, optimizer: torch.optim.Optimizer, oracle: Any) -> None:
    observations, actions, advantages, returns = batch()
    logits, values = model(observations)
    dist = torch.distributions.Categorical(logits=logits)
    log_prob = dist.log_prob(actions)
    ratio = (log_prob - log_prob.detach()).exp()
    policy_loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    value_loss = torch.nn.functional.mse_loss(values, returns)
    entropy_loss = -dist.entropy().mean()
    oracle(model, policy=policy_loss, value=0.5 * value_loss, entropy=0.01 * entropy_loss)
    loss = policy_loss + 0.5 * value_loss + 0.01 * entropy_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
