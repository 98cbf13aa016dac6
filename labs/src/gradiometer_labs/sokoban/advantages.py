"""From rewards to advantages: generalised advantage estimates of a critic's values, or a comparison
within groups.

Shapes: N rollouts of T tokens; only tokens with mask 1 were chosen, and only they are steps of the
decision process.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["advantages_of", "group_advantages", "normalised"]


def advantages_of(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float
) -> Tensor:
    """Generalised advantage estimates (Schulman et al. 2016) over the chosen tokens, all [N, T]; 0
    at the others."""
    # δ_t = r_t + γ V_{t+1} - V_t;  Â_t = δ_t + γ λ Â_{t+1}, where t + 1 is the next chosen token
    # and a game ends at V = 0
    chosen = mask > 0
    advantages = torch.zeros_like(rewards)
    following = next_value = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        here = chosen[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        following = torch.where(here, delta + gamma * lam * following, following)
        next_value = torch.where(here, values[:, t], next_value)
        advantages[:, t] = torch.where(here, following, advantages[:, t])
    return advantages


def normalised(advantages: Tensor, mask: Tensor) -> Tensor:
    """Mean zero and variance one over the chosen tokens of the batch, [N, T]; 0 at the others."""
    weights = mask.to(advantages.dtype)
    count = weights.sum()
    mean = (weights * advantages).sum() / count
    centred = weights * (advantages - mean)
    variance = centred.square().sum() / (count - 1).clamp(min=1)
    return centred * torch.rsqrt(variance + 1e-8)


def group_advantages(rewards: Tensor, groups: Tensor, *, by_std: bool) -> Tensor:
    """A_i = R_i - R̄_g, divided by std_g + 1e-6 if `by_std` (GRPO, Shao et al. 2024), all [N]."""
    advantages = torch.empty_like(rewards)
    for group in set(groups.tolist()):
        inside = groups == group
        centred = rewards[inside] - rewards[inside].mean()
        advantages[inside] = centred / (rewards[inside].std() + 1e-6) if by_std else centred
    return advantages
