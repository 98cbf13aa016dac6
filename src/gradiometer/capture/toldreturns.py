"""Is the training paid what the monitor of its environment says?

`Monitor` and `RecordEpisodeStatistics` tell the return of an episode as the environment paid it.
Wrappers and trainers around them may change the reward, and many do on purpose: they scale, clip or
normalise it. None of that turns its sign. Where what the training was paid adds up to the opposite
of what is told, number by number, the return that people look at is what the training makes small.
"""

from __future__ import annotations

import numpy as np

from gradiometer.capture.environment import EnvironmentView
from gradiometer.capture.proofs import ProofLog

__all__ = ["ToldReturns"]

ID = "update-opposes-reward"
LEAST, MOST_LOOKS = 4, 64
"""Episodes that must say so, and looks after which it is taken to be well."""
MOSTLY = 0.95
"""Of the episodes: the first one may have begun before anybody listened."""
ROUNDED = 1e-4
"""Of the largest return; a monitor rounds to six digits, and rewards are single floats."""


class ToldReturns:
    """Compares returns until it knows."""

    def __init__(self, proofs: ProofLog, view: EnvironmentView) -> None:
        self._proofs, self._view = proofs, view
        self._looks = 0

    def look(self, step: int) -> None:
        """Episodes have ended."""
        if self._looks >= MOST_LOOKS:
            return
        self._looks += 1
        pairs = self._view.twice_told
        if len(pairs) < LEAST:
            return
        paid, told = pairs.T
        size = float(np.abs(told).max())
        if not np.isfinite(pairs).all() or size == 0.0:
            return
        opposed = np.abs(paid + told) <= ROUNDED * size
        earned = np.abs(told) > 2.0 * ROUNDED * size  # 0 has no sign
        if earned.sum() >= LEAST and opposed.mean() >= MOSTLY and opposed[earned].mean() >= MOSTLY:
            self._looks = MOST_LOOKS
            self._proofs.found(
                ID,
                f"what the training was paid in {int(opposed.sum())} episodes adds up to"
                f" {paid[-1]:.4g} in the last one, where the environment's monitor tells"
                f" {told[-1]:.4g}: the sign is turned between the two",
                step=step,
                subject="told",
                how="told",
                episodes=int(opposed.sum()),
            )
