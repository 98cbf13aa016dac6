"""Runs of replicates on a policy that pulls arms: real studies, small enough for a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradiometer.probes.replicates import Replicates, keep_replicates, replicates
from gradiometer.probes.spread import compared, curve_of, sentence


class Bandit(nn.Module):
    """Instances are rewards of five arms; the policy sees them and pulls n times."""

    def __init__(self, rollouts: int = 6) -> None:
        super().__init__()
        self.rollouts = rollouts
        self.actor = nn.Linear(5, 5)

    def forward(self, instances: Tensor) -> tuple[Tensor, Tensor]:
        policy = torch.distributions.Categorical(logits=self.actor(instances))
        arms = policy.sample((self.rollouts,))
        return instances.gather(1, arms.T), policy.log_prob(arms).T


class Still(Bandit):
    """Pulls the same arms every time: a gradient that does not vary."""

    def forward(self, instances: Tensor) -> tuple[Tensor, Tensor]:
        policy = torch.distributions.Categorical(logits=self.actor(instances))
        arms = (torch.arange(self.rollouts) % 5).expand(len(instances), -1)
        return instances.gather(1, arms), policy.log_prob(arms.T).T


def study(
    algorithm: str = "pomo",
    *,
    rollouts: int = 6,
    num: int = 12,
    kind: type[Bandit] = Bandit,
    **more: Any,
) -> Replicates:
    torch.manual_seed(0)
    policy, other, instances = kind(rollouts), Bandit(rollouts), torch.randn(num, 5)
    asked: dict[str, Any] = {
        "num_replicates": 3,
        "random_policy": other,
        "config": {"num_starts": rollouts},
    }
    return replicates(policy, instances, algorithm=algorithm, **(asked | more))


def keep(folder: Path, studies: Sequence[Replicates], **extra: Any) -> Path:
    keep_replicates(folder, studies, extra)
    return folder


def keep_comparison(
    folder: Path, studies: Sequence[Replicates], names: Sequence[str] | None = None
) -> Path:
    """As `gradiometer variance --compare` does."""
    rows = compared(studies, names)
    said = [sentence(row, rows[0]) for row in rows[1:]]
    return keep(
        folder, studies, comparison={"rows": [row.plain() for row in rows], "sentences": said}
    )


def keep_curve(
    folder: Path, axis: str, values: Sequence[int], studies: Sequence[Replicates]
) -> Path:
    """As `gradiometer variance --curve` does."""
    return keep(folder, studies, curve=curve_of(axis, values, studies).plain())
