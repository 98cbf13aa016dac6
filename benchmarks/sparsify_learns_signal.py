"""Why the sparsify study stagnated, without a training: how much a rollout says about what to do,
and which term of the loss pulls harder. `python -m benchmarks.sparsify_learns_signal`; two minutes.

The policy is one number b: the logit of each row's k largest entries, all others 0. At b = 0 it is
random; b → ∞ is the rule that keeps the largest entries and earns twice as much.

    signal per rollout   mean / standard deviation over rollouts of Σ_rows Â_row ∂ log π_row / ∂b
    pull of the reward   ∂/∂b of E[R] / (σ N): advantages are divided by the standard deviation σ of
                         rewards, log-probs are averaged over N rows
    pull of the bonus    0.01 ∂/∂b of the mean entropy of a row, its own average over rows

Both pulls are differences from b = 0 to b = 1, with the same noise. One pull is that of every
optimizer step, whatever the noise; where they are opposed the larger wins.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradiometer_labs import find
from gradiometer_labs.config import configure
from gradiometer_labs.sparsify import sampling
from gradiometer_labs.sparsify.config import Config
from gradiometer_labs.sparsify.pieces import Earned, rewards_of
from gradiometer_labs.sparsify.rollout import SparsifyPurpose, columns_of, make_solvers
from gradiometer_labs.sparsify.solver import Solver
from gradiometer_labs.study import overrides_from

__all__ = ["SignalOfSize", "main", "signal_of"]

SIZES = (16, 32, 64, 128)
PROBLEMS = 4
ROLLOUTS = 12
ENTROPY_COEF = 0.01  # the study's


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalOfSize:
    """Means over the problems."""

    by_rollout: float
    by_row: float
    reward_pull: float
    entropy_pull: float


def logits_of(solver: Solver, b: float, k: int) -> tuple[Tensor, Tensor]:
    """Logits [1, N, D] with b at the k largest entries of each row, and which those are."""
    graph = solver.problem.graph()
    sizes = torch.full((graph.mask.numel(),), sampling.NEVER)
    sizes[graph.slot] = solver.problem.edges[:, 0].abs()
    best = torch.zeros(graph.mask.shape).scatter(
        -1, sizes.view(graph.mask.shape).topk(k, dim=-1).indices, 1.0
    )
    return (b * best).masked_fill(~graph.mask, sampling.NEVER).unsqueeze(0), best


def earned_at(solver: Solver, b: float, config: Config) -> tuple[Tensor, Earned]:
    """Choices [1, R, N, k] of the policy b, and what they earned."""
    logits, _ = logits_of(solver, b, config.k)
    generator = torch.Generator().manual_seed(0)
    choices, _ = sampling.draw(logits, config.k, 1.0, ROLLOUTS, generator)
    return choices, rewards_of([solver], columns_of(choices, solver.problem.graph()))


def scores_at(solver: Solver, choices: Tensor, k: int) -> Tensor:
    """∂ log π / ∂b of each row at b = 0, [R, N]."""
    logits, best = logits_of(solver, 0.0, k)
    flat = logits.expand(choices.shape[1], -1, -1).clone().requires_grad_()
    log_probs = sampling.log_prob_of(flat, choices[0].unsqueeze(1), 1.0)
    (residuals,) = torch.autograd.grad(log_probs.sum(), flat)
    return (residuals * best).sum(-1)


def ratio(advantages: Tensor, scores: Tensor) -> float:
    """Mean over standard deviation of the rollouts' gradients along b."""
    along = ((advantages - advantages.mean(0)) * scores).sum(-1)
    return float(along.mean() / along.std())


def signal_of(size: int) -> SignalOfSize:
    """On grids of that many points a side, with the study's reward."""
    studied = overrides_from("study_1_anisotropic.yaml", "A_fixed", find("sparsify"))
    config = configure(Config, [*studied, f"problem.grid_size={size}"])
    solvers = make_solvers(config, SparsifyPurpose.VALIDATION, PROBLEMS)
    found: list[tuple[float, float, float, float]] = []
    random = [earned_at(solver, 0.0, config) for solver in solvers]
    spread = float(torch.stack([earned.rewards for _, earned in random]).std())
    for solver, (choices, earned) in zip(solvers, random, strict=True):
        scores = scores_at(solver, choices, config.k)
        assert earned.credits is not None
        better = float(earned_at(solver, 1.0, config)[1].rewards.mean() - earned.rewards.mean())
        entropies = [
            float(sampling.entropy_of(logits_of(solver, b, config.k)[0], config.k, 1.0).mean())
            for b in (0.0, 1.0)
        ]
        found.append(
            (
                ratio(earned.rewards[0].unsqueeze(-1), scores),
                ratio(earned.credits[0], scores),
                better / (spread * scores.shape[1]),
                ENTROPY_COEF * (entropies[1] - entropies[0]),
            )
        )
    means = np.mean(found, 0)
    return SignalOfSize(
        by_rollout=float(means[0]),
        by_row=float(means[1]),
        reward_pull=float(means[2]),
        entropy_pull=float(means[3]),
    )


def main() -> int:
    """A line for each size."""
    torch.set_num_threads(1)
    print("          signal per rollout              pull along b")
    print("grid      reward for all  credit of rows  of the reward  of the bonus  bonus / reward")
    for size in SIZES:
        found = signal_of(size)
        print(
            f"{size:3d} × {size:<3d} {found.by_rollout:14.2f} {found.by_row:15.2f}"
            f" {found.reward_pull:14.1e} {found.entropy_pull:13.1e}"
            f" {abs(found.entropy_pull / found.reward_pull):15.0f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
