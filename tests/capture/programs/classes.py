from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .parts import STEPS, ActorCritic, batch

NAMES = {"policy": "pg_loss", "value": "v_loss", "entropy": "ent"}


class Agent:
    def __init__(self, watch: Any, oracle: Any) -> None:
        self.model = ActorCritic()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.watch, self.oracle = watch, oracle

    def losses(self) -> Tensor:
        observations, actions, advantages, returns = batch()
        logits, values = self.model(observations)
        log_probs = logits.log_softmax(-1)
        self.pg_loss = -(log_probs.gather(1, actions[:, None]).squeeze(1) * advantages).mean()
        self.v_loss = (values - returns).pow(2).mean()
        self.ent = -(log_probs.exp() * log_probs).sum(-1).mean()
        return self.pg_loss + self.v_loss * 0.5 - self.ent * 0.01

    def learn(self) -> None:
        with self.watch(self.model, self.optimizer):
            for _ in range(STEPS):
                loss = self.losses()
                self.oracle(
                    self.model,
                    policy=self.pg_loss,
                    value=0.5 * self.v_loss,
                    entropy=-0.01 * self.ent,
                )
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


def train(watch: Any, oracle: Any) -> None:
    Agent(watch, oracle).learn()
