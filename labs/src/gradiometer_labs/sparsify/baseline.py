"""What is subtracted from a reward, so that chance and hard problems are not taken for merit.

All of them answer before they see the rewards they are subtracted from; a baseline that contains
its own reward explains 7 % of pure noise at a momentum of 0.95 (docs/mathematics.md#baseline-leak).
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from gradiometer_labs.sparsify.config import BaselineConfig

__all__ = ["Baseline", "Explained", "MovingMoments", "RunningScale"]

WINDOW = 64
"""Rewards that explained variance is taken over: an update has too few."""


class MovingMoments:
    """Exponentially moving mean and variance, of one number after the other.

    d = x − mean;  mean ← m·mean + (1 − m)·x;  var ← v·var + (1 − v)·d²

    The first number is the mean to begin with, and 1 the variance. The n-th of the first `warmup`
    numbers uses min(m, (n − 1)/n) and min(v, (n − 1)/n), which makes even averages.
    """

    def __init__(self, momentum: float, var_momentum: float, warmup: int) -> None:
        self.mean, self.var, self.count = 0.0, 1.0, 0
        self._momentum, self._var_momentum, self._warmup = momentum, var_momentum, warmup

    def add(self, number: float) -> None:
        """See one number."""
        self.count += 1
        if self.count == 1:
            self.mean = number
            return
        even = (self.count - 1) / self.count if self.count <= self._warmup else 1.0
        keep, var_keep = min(self._momentum, even), min(self._var_momentum, even)
        off = number - self.mean
        self.mean = keep * self.mean + (1 - keep) * number
        self.var = var_keep * self.var + (1 - var_keep) * off**2


class Baseline:
    """From rewards [B, R] to what is expected of them, and to the scale of what remains."""

    def __init__(self, config: BaselineConfig) -> None:
        self._config = config
        self._rewards = MovingMoments(config.momentum, config.var_momentum, config.warmup_steps)
        self._residuals = MovingMoments(
            config.var_momentum, config.var_momentum, config.warmup_steps
        )

    def expected(self, rewards: Tensor, values: Tensor | None) -> Tensor:
        """The baseline of each reward, [B, R]; `values` [B] are the value head's."""
        kind, others = (
            self._config.type,
            rewards.sum(1, keepdim=True) - rewards,
        )  # never the reward itself
        if (
            kind == "learned"
        ):  # (V + Σ_{j≠i} r_j)/R: what the head expects counts as one rollout among the others
            assert values is not None
            return (values.detach().unsqueeze(1) + others) / rewards.shape[1]
        if kind == "rollout_mean":
            return others / (rewards.shape[1] - 1)
        mean = self._rewards.mean if kind == "exponential_moving" else 0.0
        return torch.full_like(rewards, mean)

    def normalised(self, advantages: Tensor) -> Tensor:
        """Over their moving standard deviation, where that is asked for."""
        if not self._config.normalize:
            return advantages
        return advantages / (self._spread + 1e-8)

    @property
    def _spread(self) -> float:
        """Of rewards about the moving average; of any other baseline's advantages about zero."""
        moments = self._rewards if self._config.type == "exponential_moving" else self._residuals
        return float(moments.var**0.5)

    def update(self, rewards: Tensor, expected: Tensor) -> None:
        """See rewards and what was expected of them, both [B, R]."""
        for reward, baseline in zip(
            rewards.flatten().tolist(), expected.flatten().tolist(), strict=True
        ):
            self._rewards.add(reward)
            self._residuals.add(reward - baseline)


class RunningScale:
    """The standard deviation of all rewards so far: what normalize_reward divides by."""

    def __init__(self) -> None:
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def __call__(self, rewards: Tensor) -> Tensor:
        """The rewards [B, R] over the deviation of those before them and themselves (Welford)."""
        for reward in rewards.flatten().tolist():
            self._count += 1
            off = reward - self._mean
            self._mean += off / self._count
            self._squares += off * (reward - self._mean)
        spread = (self._squares / max(1, self._count - 1)) ** 0.5
        return rewards / spread if spread > 1e-8 else rewards


class Explained:
    """How much of the last rewards' variance a baseline explained: 1 − Var(r − b)/Var(r)."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=WINDOW)

    def add(self, rewards: Tensor, expected: Tensor) -> float | None:
        """Of the window with these among it; None while it is too short or the rewards do not
        vary."""
        self._seen.extend(zip(rewards.flatten().tolist(), expected.flatten().tolist(), strict=True))
        if len(self._seen) < WINDOW // 4:
            return None
        reward, baseline = torch.tensor(list(self._seen), dtype=torch.float64).T
        spread = float(reward.var())
        return float(1 - (reward - baseline).var() / spread) if spread > 0 else None
