from __future__ import annotations

from typing import Any

import torch

from .parts import STEPS, ActorCritic, batch

NAMES = {"policy": "policy_loss", "value": "value_loss", "entropy": "entropy", "aux": "aux_loss"}


def train(watch: Any, oracle: Any) -> None:
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer):
        for _ in range(STEPS):
            observations, actions, advantages, returns = batch()
            logits, values = model(observations)
            dist = torch.distributions.Categorical(logits=logits)
            policy_loss = -(dist.log_prob(actions) * advantages).mean()
            value_loss = (values - returns).pow(2).mean()
            entropy = dist.entropy()
            aux_loss = sum(p.square().sum() for p in model.parameters())
            oracle(
                model,
                policy=policy_loss,
                value=0.5 * value_loss,
                entropy=-0.01 * entropy.mean(),
                aux=1e-3 * aux_loss,
            )
            loss = 0.0
            loss += policy_loss
            loss += 0.5 * value_loss
            loss -= 0.01 * entropy.mean()
            loss += 1e-3 * aux_loss
            optimizer.zero_grad()
            loss.backward()  # type: ignore[attr-defined]
            optimizer.step()
