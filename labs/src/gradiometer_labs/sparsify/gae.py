"""A rollout as an episode of k steps: in step t every row chooses its t-th connection, and the
reward comes after the last. Advantages of single steps by GAE.

    δ_t = r_t + γ V_{t+1} − V_t,    Â_t = Σ_l (γ λ)^l δ_{t+l}

V_t is what the value head expects when it sees the problem and the connections that were chosen
before step t. Shapes: B problems, R rollouts, N rows, D candidates, E connections, k steps.
Reference: Schulman et al. (2016), High-Dimensional Continuous ControlRewards Using GAE.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gradiometer_labs.sparsify.config import GaeConfig
from gradiometer_labs.sparsify.model import SparsifyNet
from gradiometer_labs.sparsify.problem import Graph

__all__ = ["ChoiceSteps", "gae", "log_probs_by_step", "steps_of", "values_by_step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceSteps:
    """The steps of the rollouts of one forward pass."""

    advantages: Tensor
    """[B, R, k]"""
    targets: Tensor
    """What the value head should have said, Â_t + V_t: [B, R, k]."""
    log_probs: Tensor
    """As the loss had them when the choices were drawn, [k, B, R, N]."""


def gae(rewards: Tensor, values: Tensor, gamma: float, lam: float) -> Tensor:
    """Advantages [B, R, k] of steps with the values V_0 … V_{k−1} [B, R, k], paid at the end."""
    steps = values.shape[-1]
    following = torch.cat([gamma * values[..., 1:], rewards.unsqueeze(-1)], -1)
    deltas = following - values
    advantages = [deltas[..., -1]]
    for step in range(steps - 2, -1, -1):
        advantages.insert(0, deltas[..., step] + gamma * lam * advantages[0])
    return torch.stack(advantages, -1)


def values_by_step(model: SparsifyNet, edges: Tensor, choices: Tensor, graph: Graph) -> Tensor:
    """V_0 … V_{k−1} of each rollout: edges [B, E, ·], choices [B, R, N, k] -> [B, R, k]."""
    free = choices.new_zeros((*choices.shape[:-1], graph.mask.shape[1]))
    values = [
        model.value_of(edges, free.scatter(-1, choices[..., :step], 1).flatten(2)[..., graph.slot])
        for step in range(choices.shape[-1])
    ]
    return torch.stack(values, -1)


def log_probs_by_step(
    log_prob_of: Callable[[Tensor, Tensor, float], Tensor],
    logits: Tensor,
    choices: Tensor,
    temperature: float,
) -> Tensor:
    """log π of each choice given those before it, [k, B, R, N]."""
    # log π(a_t | a_1 … a_{t−1}) = log π(a_1 … a_t) − log π(a_1 … a_{t−1})
    firsts = [
        log_prob_of(logits, choices[..., : step + 1], temperature)
        for step in range(choices.shape[-1])
    ]
    return torch.stack([firsts[0], *(b - a for a, b in pairwise(firsts))])


def steps_of(
    rewards: Tensor,
    values: Tensor,
    log_probs: Tensor,
    config: GaeConfig,
    normalised: Callable[[Tensor], Tensor],
) -> ChoiceSteps:
    """Of rollouts that earned `rewards` [B, R]."""
    assert config.lam is not None
    advantages = gae(rewards, values, config.gamma, config.lam)
    return ChoiceSteps(
        advantages=normalised(advantages), targets=advantages + values, log_probs=log_probs
    )
