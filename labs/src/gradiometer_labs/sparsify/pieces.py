"""The lines of this training that a fault may change, each a plain function, and the dataclass that
gathers them.

Shapes: B problems, R rollouts of each, N rows, D candidates of a row, k choices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor, nn

from gradiometer_labs.sparsify import sampling
from gradiometer_labs.sparsify.baseline import Baseline, RunningScale
from gradiometer_labs.sparsify.config import Config
from gradiometer_labs.sparsify.model import SparsifyNet
from gradiometer_labs.sparsify.solver import Solver

__all__ = ["Earned", "Pieces", "rewards_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Earned:
    """What multigrid achieved with choices."""

    rewards: Tensor
    """[B, R]"""
    credits: Tensor | None
    """Of each row, [B, R, N]; None where rows have none of their own."""


def rewards_of(solvers: Sequence[Solver], columns: Tensor) -> Earned:
    """What multigrid achieves with each choice of columns, [B, R, N, k]."""
    pairs = zip(solvers, columns.cpu().numpy(), strict=True)
    earned = [[solver.earned(choice) for choice in choices] for solver, choices in pairs]
    rows = [[credit for _, credit in each if credit is not None] for each in earned]
    return Earned(
        rewards=torch.tensor([[reward for reward, _ in each] for each in earned]),
        credits=torch.from_numpy(np.array(rows)).float() if all(rows) else None,
    )


def row_advantages_of(credits: Tensor, advantages: Tensor, config: Config) -> Tensor:
    """How much better each row did than in the problem's other rollouts, in standard deviations of
    the problem: [B, R, N], with the advantages of whole rollouts [B, R] beside them."""
    others = (credits.sum(1, keepdim=True) - credits) / (credits.shape[1] - 1)
    off = credits - others  # of the same row: some places are easier than others
    spread = off.flatten(1).std(1).view(-1, 1, 1)
    weight = config.credit.reward_weight
    return off / (spread + 1e-8) + weight * advantages.unsqueeze(-1)


def targets_of(rewards: Tensor, scale: RunningScale, config: Config) -> Tensor:
    """The rewards as they are learned from, [B, R]."""
    return scale(rewards) if config.normalize_reward else rewards


def expected_of(baseline: Baseline, targets: Tensor, values: Tensor | None) -> Tensor:
    """The baseline of each reward, from before it has seen them: [B, R]."""
    expected = baseline.expected(targets, values)
    baseline.update(targets, expected)
    return expected


def policy_loss_of(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, config: Config
) -> Tensor:
    """−E[Â log π], or PPO's clipped surrogate, over all rows: log-probs [B, R, N], advantages
    [B, R] or, of each row, [B, R, N].

    A rollout's log π is the sum over its rows; their mean has the same direction, and the same size
    on any grid.
    """
    if advantages.dim() == 2:
        advantages = advantages.unsqueeze(-1)
    if config.algorithm == "reinforce":
        return -(advantages * log_probs).mean()
    ratio = (log_probs - old_log_probs).exp()
    return -torch.min(
        ratio * advantages, ratio.clamp(1 - config.ppo.clip, 1 + config.ppo.clip) * advantages
    ).mean()


def value_loss_of(values: Tensor, targets: Tensor) -> Tensor:
    """Half the mean squared error of the value head: [B], [B, R]."""
    return 0.5 * (values.unsqueeze(1) - targets).square().mean()


def averaged(loss: Tensor, config: Config) -> Tensor:
    """One forward pass's part of the loss of an update."""
    return loss / config.accumulate


def parameters_of(model: SparsifyNet) -> list[nn.Parameter]:
    """What the optimizer is given."""
    return list(model.parameters())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The lines of this training that a fault may change; see `gradiometer_labs/faults.py`."""

    config: Config
    draw: Callable[[Tensor, int, float, int, Generator], tuple[Tensor, Tensor]] = sampling.draw
    log_prob_of: Callable[[Tensor, Tensor, float], Tensor] = sampling.log_prob_of
    entropy_of: Callable[[Tensor, int, float], Tensor] = sampling.entropy_of
    rewards_of: Callable[[Sequence[Solver], Tensor], Earned] = rewards_of
    targets_of: Callable[[Tensor, RunningScale, Config], Tensor] = targets_of
    expected_of: Callable[[Baseline, Tensor, Tensor | None], Tensor] = expected_of
    row_advantages_of: Callable[[Tensor, Tensor, Config], Tensor] = row_advantages_of
    policy_loss_of: Callable[[Tensor, Tensor, Tensor, Config], Tensor] = policy_loss_of
    value_loss_of: Callable[[Tensor, Tensor], Tensor] = value_loss_of
    averaged: Callable[[Tensor, Config], Tensor] = averaged
    parameters_of: Callable[[SparsifyNet], list[nn.Parameter]] = parameters_of
