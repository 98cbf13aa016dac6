"""Equal answers to one prompt earn the same, where a program judges them.

Answers come again: short ones at first, and more of them as a policy becomes sure. Where equal ones
earn as differently as any two, rewards are not of what was answered; where they earn the same once
all rewards are moved by one place, they are those of the answer beside it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradiometer.capture.generations import Generation
from gradiometer.capture.proofs import ProofLog

__all__ = ["EqualAnswers"]

Floats = NDArray[np.float64]

UNRELIABLE, MISALIGNED = "reward-unreliable", "misaligned-data"
LEAST, LEAST_GENERATIONS = 10, 2
"""Answers that came again, and generations with some, before it is judged."""
UNEXPLAINED = 0.7
"""Of the variance of all rewards, what is left among equal answers; a judge that errs at times
leaves less."""
MOVES = {1: "before", -1: "after"}


class EqualAnswers:
    """Adds up what equal answers earned, over the generations of a training."""

    def __init__(self, proofs: ProofLog) -> None:
        self._proofs = proofs
        self._again = self._generations = 0
        self._left = dict.fromkeys((0, *MOVES), 0.0)
        """Squares within equal answers: of rewards as they are, and moved by one place."""
        self._whole = 0.0
        """As many squares among all answers of their generation."""

    def look(self, heard: Generation) -> None:
        """A generation that was not looked at before."""
        same, rewards = heard.same, heard.rewards
        again = len(same) - len(np.unique(same))
        if not again or self._proofs.state(UNRELIABLE) == "found":
            return
        self._again, self._generations = self._again + again, self._generations + 1
        self._whole += again * float(rewards.var(ddof=1))
        for move in self._left:
            self._left[move] += _within(np.roll(rewards, -move), same)
        if self._again >= LEAST and self._generations >= LEAST_GENERATIONS and self._whole > 0.0:
            self._judge()

    def _judge(self) -> None:
        if self._left[0] < UNEXPLAINED * self._whole:
            self._proofs.ok(UNRELIABLE)
            return
        moved = next((move for move in MOVES if self._left[move] <= 1e-9 * self._whole), None)
        if moved is not None:
            self._proofs.found(
                MISALIGNED,
                f"{self._again} answers came again, and earned otherwise than the first time; all"
                f" rewards moved by one place, each earns what it did: they are those of the answer"
                f" {MOVES[-moved]} it",
                subject="rewards",
                how="rewards",
                samples=self._again,
            )
        elif self._proofs.state(MISALIGNED) != "found":
            self._proofs.found(
                UNRELIABLE,
                f"{self._again} answers to a prompt came again, word by word: what equal ones earn"
                f" differs as much ({self._left[0] / self._whole:.0%} of the variance) as what any"
                " two earn",
                subject="rewards",
                samples=self._again,
            )


def _within(rewards: Floats, same: NDArray[np.int64]) -> float:
    """The squares of what equal answers earn about their mean."""
    _, places, counts = np.unique(same, return_inverse=True, return_counts=True)
    means = np.bincount(places, rewards) / counts
    return float(np.square(rewards - means[places]).sum())
