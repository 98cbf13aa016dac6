"""How good a policy's tours are: greedy from every city, under the symmetries of the square,
against a solver."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradiometer_labs.tsp.model import TourPolicy

__all__ = ["Evaluation", "evaluate", "gap"]

ROWS = 256  # instances decoded at once, so that memory does not grow with how many there are


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The best reward of each instance, [B]."""

    plain: Tensor
    """Over the starts."""
    augmented: Tensor
    """Over the starts and the eight symmetries; the instance as it is is one of them."""


@torch.no_grad()
def evaluate(policy: TourPolicy, instances: Tensor, *, num_starts: int | None = None) -> Evaluation:
    """Greedy rollouts of each instance and of its symmetric ones; a symmetric one's tour is walked
    on the instance."""
    symmetric = policy.problem.symmetries(instances)
    best = torch.stack([_best_rewards(policy, each, instances, num_starts) for each in symmetric])
    return Evaluation(plain=best[0], augmented=best.max(0).values)


def gap(reward: Tensor, reference: Tensor) -> float:
    """The mean of (length − reference length)/reference length, for rewards that are minus a
    length, [B] each."""
    return float((reward / reference - 1).mean())


def _best_rewards(
    policy: TourPolicy, seen: Tensor, instances: Tensor, num_starts: int | None
) -> Tensor:
    best: list[Tensor] = []
    for first in range(0, len(seen), ROWS):
        rows = slice(first, first + ROWS)
        tours = policy.rollouts(seen[rows], num_starts=num_starts, greedy=True).tours
        best.append(policy.problem.reward(instances[rows], tours).max(-1).values)
    return torch.cat(best)
