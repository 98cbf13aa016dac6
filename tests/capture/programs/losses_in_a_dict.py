from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .parts import STEPS, ActorCritic, batch

NAMES = {"policy": "policy", "value": "critic", "entropy": "entropy"}


class Losses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = ActorCritic()

    def forward(self, rows: tuple[Tensor, ...]) -> dict[str, Tensor]:
        observations, actions, advantages, returns = rows
        logits, values = self.model(observations)
        log_probs = logits.log_softmax(-1)
        return {
            "policy": -(log_probs[torch.arange(16), actions] * advantages).mean(),
            "critic": nn.functional.smooth_l1_loss(values, returns),
            "entropy": 0.01 * (log_probs.exp() * log_probs).sum(-1).mean(),
        }


def train(watch: Any, oracle: Any) -> None:
    module = Losses()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    with watch(module, optimizer):
        for _ in range(STEPS):
            out = module(batch())
            oracle(module, policy=out["policy"], value=out["critic"], entropy=out["entropy"])
            loss = sum(out.values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
