"""What the rollouts of an update say beside its losses: the numbers the doctor asks for.

Shapes: B problems, R rollouts of each, N rows, k choices.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from gradiometer.maths import scores
from gradiometer_labs.sparsify.baseline import Explained
from gradiometer_labs.sparsify.config import Config
from gradiometer_labs.sparsify.rollout import Rollouts

__all__ = ["Observer"]

WINDOW = 64
"""Rollouts that reward_gain is taken over: an update with the study's settings has one."""
FEWEST = 16
FEWEST_PAIRS = 4


def correlation(one: Tensor, other: Tensor) -> float | None:
    """Of two tensors of as many numbers; None where that is not defined."""
    both = torch.stack([one.flatten(), other.flatten()]).double()
    if both.shape[1] < FEWEST_PAIRS or not bool((both.std(1) > 0).all()):
        return None
    return float(torch.corrcoef(both)[0, 1])


class Observer:
    """Keeps the last rewards, for an update alone may have too few."""

    def __init__(self) -> None:
        self._used, self._before = Explained(), Explained()
        self._gains: deque[tuple[float, float]] = deque(maxlen=WINDOW)

    def see(self, batches: list[Rollouts], ratios: list[Tensor], config: Config) -> dict[str, Any]:
        """Of the rollouts of one update and of their log-ratios after it."""
        joined = {
            name: torch.cat([getattr(each, name) for each in batches])
            for name in ("rewards", "targets", "advantages", "choices")
        }
        rewards, log_ratio = joined["rewards"], torch.cat(ratios)
        first = torch.bincount(joined["choices"][..., 0].flatten())
        seen: dict[str, Any] = {
            "reward": float(rewards.mean()),
            "returns": joined["targets"],
            "advantages": joined["advantages"],
            "observation": torch.cat([each.edges for each in batches]),
            "approx_kl": float((log_ratio.expm1() - log_ratio).mean()),
            "sampler_kl": float(
                torch.cat([each.sampled_log_probs - each.log_probs for each in batches]).mean()
            ),
            "action_share": float(first.max() / first.sum()),
        }
        if config.rollouts > 1:
            seen["reward_std"] = float(rewards.std(1).mean())
        if config.algorithm == "ppo":
            seen["ratio"] = log_ratio.exp()
            seen["clip_fraction"] = float(
                (log_ratio.expm1().abs() > config.ppo.clip).float().mean()
            )
        tested = [each.score_z for each in batches if each.score_z is not None]
        seen["score_z"] = (
            float(sum(tested) / len(tested) ** 0.5) if tested else None
        )  # of independent z-scores
        seen["terminal_correlation"] = correlation(joined["targets"], rewards)
        seen["reward_gain"] = self._gain(rewards, log_ratio)
        seen |= self._explained(batches)
        return {name: value for name, value in seen.items() if value is not None}

    def _explained(self, batches: list[Rollouts]) -> dict[str, float | None]:
        """Of the value head alone where there is one, else of the baseline, as it was used and as
        it should have been."""
        targets = torch.cat([each.targets for each in batches])
        if batches[0].values is not None:
            values = torch.cat([each.values for each in batches if each.values is not None])
            explained = self._used.add(targets, values.unsqueeze(1).expand_as(targets))
            return {"explained_variance": explained, "value_mean": float(values.mean())}
        return {
            "explained_variance": self._used.add(
                targets, torch.cat([each.expected for each in batches])
            ),
            "explained_variance_before": self._before.add(
                targets, torch.cat([x.expected_before for x in batches])
            ),
        }

    def _gain(self, rewards: Tensor, log_ratio: Tensor) -> float | None:
        """Over the last rollouts; what one earned is counted from its problem's mean, where that
        has several."""
        earned = rewards - rewards.mean(1, keepdim=True) if rewards.shape[1] > 1 else rewards
        self._gains.extend(
            zip(earned.flatten().tolist(), log_ratio.sum(-1).flatten().tolist(), strict=True)
        )
        if len(self._gains) < FEWEST:
            return None
        recent = torch.tensor(list(self._gains), dtype=torch.float64)
        return scores.reward_gain(recent[:, 0], recent[:, 1])
