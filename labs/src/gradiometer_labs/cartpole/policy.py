"""The equations that both policy gradients have: sampling, log-probabilities, entropy, the critic's
error.

Shapes: M samples, A actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradiometer_labs.cartpole import setup

__all__ = ["PolicyPieces", "entropy_of", "log_prob_of", "normalised", "sample", "value_loss_of"]


def sample(log_policy: Tensor) -> Tensor:
    """One action a row, drawn from the policy: [N, A] -> [N]."""
    return torch.multinomial(log_policy.exp(), 1).squeeze(-1)


def log_prob_of(log_policy: Tensor, actions: Tensor) -> Tensor:
    """log π(a|s) of these actions: [..., A], [...] -> [...]."""
    return log_policy.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def normalised(advantages: Tensor) -> Tensor:
    """Mean zero, standard deviation one over the minibatch, [M]."""
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def entropy_of(logits: Tensor) -> Tensor:
    """H = -Σ_a π(a) log π(a) in nats, [M, A] -> [M]."""
    log_probs = logits.log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def value_loss_of(values: Tensor, returns: Tensor) -> Tensor:
    """Half the mean squared error of the critic."""
    return 0.5 * (values - returns).square().mean()


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - Var(return - value)/Var(return)."""
    return 1 - float((returns - values).var() / returns.var())


@dataclass(frozen=True, kw_only=True)
class PolicyPieces(setup.SharedPieces):
    """The lines of a policy gradient that a fault may change."""

    sample: Callable[[Tensor], Tensor] = sample
    log_prob_of: Callable[[Tensor, Tensor], Tensor] = log_prob_of
    normalised: Callable[[Tensor], Tensor] = normalised
    entropy_of: Callable[[Tensor], Tensor] = entropy_of
    value_loss_of: Callable[[Tensor, Tensor], Tensor] = value_loss_of
