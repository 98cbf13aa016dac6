from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def ppo_loss(
    model: Any, rows: tuple[Tensor, ...], oracle: Any, vf_coef: float = 0.5, ent_coef: float = 0.01
) -> Tensor:
    observations, actions, advantages, returns = rows
    logits, values = model(observations)
    log_probs = logits.log_softmax(-1)
    log_prob = log_probs.gather(-1, actions[:, None]).squeeze(-1)
    ratio = torch.exp(log_prob - log_prob.detach())
    surrogate = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    squares = torch.nn.functional.mse_loss(values, returns)
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    oracle(model, policy=surrogate, value=vf_coef * squares, entropy=-ent_coef * entropy)
    return surrogate + vf_coef * squares - ent_coef * entropy
