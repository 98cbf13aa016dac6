from __future__ import annotations

from typing import Any

import torch

from .parts import STEPS, ActorCritic, batch

NAMES = {"policy": "actor_loss", "value": "critic_loss", "entropy": "entropy"}


def train(watch: Any, oracle: Any) -> None:
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    weights = [1.0, 0.5, -0.01]
    with watch(model, optimizer):
        for _ in range(STEPS):
            observations, actions, advantages, returns = batch()
            logits, values = model(observations)
            dist = torch.distributions.Categorical(logits=logits)
            actor_loss = -(dist.log_prob(actions) * advantages).mean()
            critic_loss = (returns - values).square().mean()
            entropy = dist.entropy().mean()
            losses = [actor_loss, critic_loss, entropy]
            oracle(model, policy=actor_loss, value=0.5 * critic_loss, entropy=-0.01 * entropy)
            total = torch.zeros(())
            for weight, each in zip(weights, losses, strict=True):
                total = total + weight * each
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
