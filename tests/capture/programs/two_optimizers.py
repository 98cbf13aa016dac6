from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .parts import STEPS

NAMES = {"actor": "actor_loss", "q1": "qf1_loss", "q2": "qf2_loss", "entropy": "alpha_log_pi"}


def train(watch: Any, oracle: Any) -> None:
    """As SAC does it: the critics first, then an actor whose loss goes through them."""
    model = nn.ModuleDict(
        {"actor": nn.Linear(6, 2), "qf1": nn.Linear(8, 1), "qf2": nn.Linear(8, 1)}
    )
    critics = [*model["qf1"].parameters(), *model["qf2"].parameters()]
    q_optimizer = torch.optim.Adam(critics, lr=1e-3)
    actor_optimizer = torch.optim.Adam(model["actor"].parameters(), lr=1e-3)
    with watch(model, [q_optimizer, actor_optimizer]):
        for _ in range(STEPS):
            observations, target = torch.randn(16, 6), torch.randn(16, 1)
            pair = torch.cat([observations, torch.randn(16, 2)], 1)
            qf1_loss = nn.functional.mse_loss(model["qf1"](pair), target)
            qf2_loss = nn.functional.mse_loss(model["qf2"](pair), target)
            qf_loss = qf1_loss + qf2_loss
            oracle(model, q1=qf1_loss, q2=qf2_loss)
            q_optimizer.zero_grad()
            qf_loss.backward()
            q_optimizer.step()
            mean = model["actor"](observations)
            action = mean + torch.randn_like(mean)
            log_pi = (-0.5 * (action - mean.detach()) ** 2).sum(1, keepdim=True)
            pair = torch.cat([observations, torch.tanh(action)], 1)
            min_q = torch.min(model["qf1"](pair), model["qf2"](pair))
            alpha_log_pi = (0.2 * log_pi).mean()
            actor_loss = -min_q.mean()
            oracle(model["actor"], actor=actor_loss, entropy=alpha_log_pi)
            loss = alpha_log_pi + actor_loss
            actor_optimizer.zero_grad()
            loss.backward()
            actor_optimizer.step()
