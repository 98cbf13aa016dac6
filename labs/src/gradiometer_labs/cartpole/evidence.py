"""What a training can say about itself that no loss shows: whether samples, targets and updates
belong together.

All of it is read from what the training has at hand, draws no random number and changes no weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from gradiometer.maths import scores

__all__ = [
    "action_share",
    "correlation",
    "dormant_fraction",
    "earned",
    "end_correlation",
    "sampling_z",
    "staleness",
    "target_distance",
]

DORMANT = 0.025
"""ReDo's τ: a unit whose mean activation is below this share of its layer's is dormant (Sokar et
al. 2023)."""
LAST = 10
"""States before the end of an episode whose targets must know that it ends."""
FEWEST = 2 * LAST
"""Such states without which a correlation is chance: those of two episodes."""


def action_share(actions: Tensor) -> float:
    """Of the most frequent action."""
    counts = actions.flatten().bincount()
    return float(counts.max() / counts.sum())


def sampling_z(
    log_prob_of: Callable[[Tensor, Tensor], Tensor],
    logits: Tensor,
    actions: Tensor,
    observations: Tensor,
) -> float:
    """How far E[∇ log π] is from zero over the state-action pairs of a rollout, under the policy
    that sampled them.

    The residual is taken from the very log-prob that the loss uses: ∂ log π/∂ logits, e_a − π where
    it is right, [N, A].
    """
    with torch.enable_grad():
        leaf = logits.detach().flatten(0, -2).requires_grad_()
        log_probs = log_prob_of(leaf.log_softmax(-1), actions.flatten())
        (residuals,) = torch.autograd.grad(log_probs.sum(), leaf)
    return scores.score_z(residuals, observations.flatten(0, -2))


def staleness(log_ratio: Tensor) -> dict[str, float]:
    """Of samples about to be trained on, from log π − log π_sampler: both are 1 where the policy
    that trains has sampled.

    The effective sample size is (Σw)²/(N Σw²), as a share of the batch; the mean weight stays near
    1 until it degenerates.
    """
    weights = log_ratio.exp()
    ess = weights.sum().square() / (len(weights) * weights.square().sum())
    return {"ess": float(ess), "importance_weight": float(weights.mean())}


def earned(
    rewards: Tensor, terminated: Tensor, done: Tensor, *, gamma: float, longest: float
) -> Tensor:
    """What each step led to by the environment's own account, [T, N]: discounted rewards until its
    episode ended.

    An episode that the rollout or the time limit cuts is taken to go on as the others did, for
    `longest` steps.
    """
    steady = rewards.mean() * sum(gamma**k for k in range(int(longest)))
    following = torch.zeros_like(rewards[0]) + steady
    to_go = torch.zeros_like(rewards)
    for t in reversed(range(len(rewards))):
        following = torch.where(done[t], steady, following).masked_fill(terminated[t], 0.0)
        to_go[t] = following = rewards[t] + gamma * following
    return to_go


def end_correlation(
    targets: Tensor, rewards: Tensor, terminated: Tensor, done: Tensor
) -> dict[str, float]:
    """Of the value targets of an episode's last ten states with the rewards that were still to come
    there; all [T, N].

    The reward of the very last state is the same in every episode of CartPole, so the last state
    alone correlates with nothing. Nothing is said of fewer than twenty states, or where no episode
    ended of itself.
    """
    steps, to_go = torch.full_like(rewards[0], torch.inf), torch.zeros_like(rewards[0])
    near, left = torch.zeros_like(done), torch.zeros_like(rewards)
    for t in reversed(range(len(rewards))):
        steps = torch.where(done[t], torch.inf, steps).masked_fill(terminated[t], 0.0) + 1
        to_go = to_go.masked_fill(done[t], 0.0) + rewards[t]
        near[t], left[t] = steps <= LAST, to_go
    if int(near.sum()) < FEWEST:
        return {}
    return {"terminal_correlation": correlation(targets[near], left[near])}


def correlation(x: Tensor, y: Tensor) -> float:
    """Pearson's; 0 where either hardly varies."""
    x, y = x.double() - x.double().mean(), y.double() - y.double().mean()
    scale = x.norm() * y.norm()
    return float((x @ y) / scale) if scale > 1e-12 * len(x) else 0.0


def dormant_fraction(layers: Sequence[Tensor]) -> float:
    """Share of the hidden units whose mean activation is next to nothing beside their layer's; each
    [M, units]."""
    sizes = [activations.abs().mean(0) for activations in layers]
    dormant = [size <= DORMANT * size.mean() for size in sizes]
    return float(torch.cat(dormant).float().mean())


def target_distance(online: nn.Module, target: nn.Module) -> float:
    """‖w − w_target‖/‖w‖ over all weights."""
    own, other = (
        nn.utils.parameters_to_vector(each.parameters()).detach() for each in (online, target)
    )
    return float((own - other).norm() / own.norm())
