"""The networks of SAC, and the policy they make: a Gaussian squeezed into (-1, 1) by tanh."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = [
    "LogProb",
    "Policy",
    "SacModel",
    "TwinCritic",
    "init_hidden_",
    "log_normal",
    "log_prob_of",
]

WIDTH = 64
LOG_STD = (-5.0, 2.0)
"""Where the logarithm of the policy's standard deviation is held."""

Policy = tuple[Tensor, Tensor]
"""Mean and log standard deviation of the Gaussian before the tanh, [B, 1] each."""
LogProb = Callable[[Tensor, Policy], Tensor]


def log_normal(u: Tensor, policy: Policy) -> Tensor:
    """log N(u; μ, σ²), of the Gaussian before the tanh, [B, 1]."""
    mean, log_std = policy
    return -0.5 * ((u - mean) / log_std.exp()).square() - log_std - 0.5 * math.log(2 * math.pi)


def log_prob_of(u: Tensor, policy: Policy) -> Tensor:
    """log π(a|s) of the action a = tanh(u), [B, 1] -> [B]."""
    # log π(a) = log N(u; μ, σ²) - log |da/du|,  da/du = 1 - tanh²(u) = 4/(e^u + e^-u)²
    log_slope = 2 * (
        math.log(2) - u - nn.functional.softplus(-2 * u)
    )  # 1 - tanh² itself rounds to 0 beyond |u| = 9
    return (log_normal(u, policy) - log_slope).sum(-1)


def init_hidden_(layer: nn.Linear) -> None:
    """Orthogonal, with the gain that keeps the size of what passes a ReLU."""
    nn.init.orthogonal_(layer.weight, 2**0.5)
    nn.init.zeros_(layer.bias)


class SacModel(nn.Module):
    """All that is trained: the actor, both critics, and the logarithm of the temperature."""

    def __init__(
        self, alpha: float, init_hidden_: Callable[[nn.Linear], None] = init_hidden_
    ) -> None:
        super().__init__()
        # a small last gain starts the policy at mean 0 and standard deviation 1 everywhere: hardly
        # other than uniform
        self.actor = mlp(3, 2, gain=0.01, init_hidden_=init_hidden_)
        self.critic = TwinCritic(init_hidden_)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha)))

    def policy(self, observations: Tensor) -> Policy:
        """Of the actor, at each of the observations, [B, 3]."""
        mean, log_std = self.actor(observations).chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD)


class TwinCritic(nn.Module):
    """Two critics of the same transitions, from different starts: the smaller of both is less of an
    optimist."""

    def __init__(self, init_hidden_: Callable[[nn.Linear], None]) -> None:
        super().__init__()
        self.first = mlp(4, 1, gain=1.0, init_hidden_=init_hidden_)
        self.second = mlp(4, 1, gain=1.0, init_hidden_=init_hidden_)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Q₁ and Q₂, [2, B]."""
        both = torch.cat([observations, actions], dim=-1)
        return torch.stack([self.first(both).squeeze(-1), self.second(both).squeeze(-1)])


def mlp(
    num_inputs: int, num_outputs: int, *, gain: float, init_hidden_: Callable[[nn.Linear], None]
) -> nn.Sequential:
    """Two ReLU layers, then one that is linear."""
    hidden, last = (
        [nn.Linear(num_inputs, WIDTH), nn.Linear(WIDTH, WIDTH)],
        nn.Linear(WIDTH, num_outputs),
    )
    for layer in hidden:
        init_hidden_(layer)
    nn.init.orthogonal_(last.weight, gain)
    nn.init.zeros_(last.bias)
    return nn.Sequential(hidden[0], nn.ReLU(), hidden[1], nn.ReLU(), last)
