"""From a batch alone: is this a policy gradient of what was sampled, and did the step help?"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["reward_gain", "score_z"]

MOST = 1024
"""Samples that `score_z` looks at: the matrix of their products has the square of that."""
FEWEST = 10.0
"""Choices against the odds that a batch must hold by its own probabilities, Σ(1 − π(a)): without
them the scores that would balance the many small ones are not there, and what is left has a spread
of nothing."""


def score_z(residuals: Tensor, features: Tensor) -> float:
    """How far the mean score of a batch is from zero, in standard deviations of chance.

    The score of a last layer is the outer product g_i = r_i ⊗ h_i of the residual ∂ log π/∂(its
    outputs), [N, A], with its inputs, [N, H]. Under the policy that sampled, E[g_i | past] = 0
    (docs/mathematics.md#zero-mean-score), so the g_i are uncorrelated even along one trajectory
    and E‖Σ g_i‖² = Σ‖g_i‖². The statistic is their difference, Σ_{i≠j} g_i·g_j, over its standard
    deviation (2 Σ_{i≠j} (g_i·g_j)²)^½; both are sums over the N × N matrix (r_i·r_j)(h_i·h_j),
    so no score is ever written out. A policy that is sure of nearly every action leaves nothing to
    test, and reads 0.
    """
    every = -(-len(residuals) // MOST)
    r, h = (each[::every].detach().double().flatten(1) for each in (residuals, features))
    h = torch.cat([h, h.new_ones(len(h), 1)], dim=1)  # the bias
    if r.abs().amax(1).sum() < FEWEST:
        return 0.0
    products = (r @ r.T) * (h @ h.T)
    products.fill_diagonal_(0.0)
    spread = products.square().sum().mul(2).sqrt()
    return float(products.sum() / spread) if spread > 0 else 0.0


def reward_gain(earned: Tensor, log_ratio: Tensor) -> float:
    """The correlation of what samples earned with how much the update raised their log-prob.

    A policy gradient step raises what earned more than expected: positive. A wrong sign, or rewards
    that belong to other actions, make it negative or nothing, however healthy all norms are. It
    is 0 where either is constant.
    """
    x, y = earned.detach().double().flatten(), log_ratio.detach().double().flatten()
    x, y = x - x.mean(), y - y.mean()
    scale = x.norm() * y.norm()
    return float((x @ y) / scale) if scale > 0 else 0.0
