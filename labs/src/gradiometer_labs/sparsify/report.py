"""What a training says while it goes on: a line for each epoch, and every tenth what lies behind
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["EpochReport"]

DIAGNOSED = 10
"""Epochs from one block of diagnostics to the next."""
NAMES = {
    "entropy": "Policy Entropy",
    "explained_variance": "Value Explained Variance",
    "advantage_std": "Advantage Std",
    "clipped_grad_norm": "Total Grad Norm",
    "policy_grad_norm": "Policy Grad Norm",
    "gnn_grad_norm": "GNN Grad Norm",
    "total_grad_norm": "Grad Norm before clipping",
    "temperature": "Temperature",
}
"""The study's names for them, so that its logs and ours lie side by side; its norms are those after
clipping."""


@dataclass(slots=True, kw_only=True)
class EpochReport:
    """Gathers the updates of an epoch."""

    largest_entropy: float
    rewards: list[float] = field(default_factory=list)
    """The mean reward of each epoch that is over."""
    _updates: list[Mapping[str, Any]] = field(default_factory=list)

    def add(self, update: Mapping[str, Any]) -> None:
        """One update's numbers, `reward` among them."""
        self._updates.append(update)

    def end_epoch(self, validation: float) -> tuple[str, ...]:
        """The lines to say; the first epoch and every tenth have diagnostics."""
        self.rewards.append(self._mean("reward"))
        number = len(self.rewards)
        held_out = "" if np.isnan(validation) else f" | Validation: {validation:.4f}"
        lines = [f"Epoch {number:03d} | Mean Reward: {self.rewards[-1]:.4f}{held_out}"]
        if number == 1 or number % DIAGNOSED == 0:
            lines += [f"  {title}: {self._shown(name)}" for name, title in NAMES.items()]
        self._updates.clear()
        return tuple(lines)

    def _shown(self, name: str) -> str:
        mean = self._mean(name)
        if name == "advantage_std" and np.isnan(mean):
            mean = self._spread_over_updates()
        bound = f" of at most {self.largest_entropy:.4f} in a row" if name == "entropy" else ""
        return "-" if np.isnan(mean) else f"{mean:.4f}{bound}"

    def _spread_over_updates(self) -> float:
        """Of one rollout an update has one advantage: the epoch's are looked at together."""
        held = [np.ravel(each["advantages"]) for each in self._updates if "advantages" in each]
        values = np.concatenate(held) if held else np.empty(0)
        return float(values.std(ddof=1)) if len(values) > 1 else float("nan")

    def _mean(self, name: str) -> float:
        known = [update[name] for update in self._updates if not np.isnan(update.get(name, np.nan))]
        return float(np.mean(known)) if known else float("nan")
