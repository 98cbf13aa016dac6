"""Which way a learned temperature moves (SAC).

Its loss has one number to train, and its gradient is g = −k (mean log π + H̄) with some k > 0: where
the policy has more entropy than the H̄ that is wanted, the temperature falls. Log-probabilities are
heard, g is seen in the user's backward, and over a few steps one is a line in the other. A line
that rises drives the policy away from what is wanted.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from gradiometer.capture import hooks
from gradiometer.capture.logprobs import SeenGraph
from gradiometer.capture.nextanswers import MOST_LOG_PROBS, HeardLogProb, NextAnswers
from gradiometer.capture.proofs import ProofLog
from gradiometer.capture.untrained import ascends

__all__ = ["TemperatureSign"]

ID = "entropy-sign"
HOOKED = "gradiometer temperature"
FEWEST, ENOUGH = 4, 12
"""Backward calls of the temperature's loss, in measured steps: so many where the line is exact, and
where it is not."""
FORMS = 3
"""Of a log-probability: right, not corrected for its squashing, corrected the wrong way round."""
LINE, EXACT = 0.95, 0.9999
"""R² of the line: the temperature itself changes a little meanwhile."""


class TemperatureSign:
    """Looks at the losses of measured steps until it knows."""

    def __init__(self, proofs: ProofLog, answers: NextAnswers) -> None:
        self._proofs, self._answers = proofs, answers
        self._seen: list[tuple[list[tuple[float, ...]], Tensor]] = []
        """Means of the log-probabilities that were heard before a loss, newest first, each as it is
        right and as programs get it wrong, and its gradient."""
        self._means: list[tuple[float, ...]] | None = None
        """Those of the loss that is about to go backward."""
        self._trained: set[int] = set()
        self._is_over = False
        self._judged = 0
        """How many of them there were at the last look."""

    def graph_seen(self, seen: SeenGraph) -> None:
        """A loss is about to go backward: is it that of a temperature?"""
        self._means = None
        if len(self._seen) >= FEWEST and len(self._seen) > self._judged and not self._is_over:
            self._judge()
        if self._is_over or not self._answers.log_probs or not _is_of_one_number(seen):
            return
        self._means = [_means(each) for each in reversed(self._answers.log_probs)]
        node = seen.layers[0]
        self._trained = {id(node.variable)}
        # the node of a parameter may outlive its graph: it is hooked once
        if (held := node.metadata.get(HOOKED)) is None or held() is not self:
            node.metadata[HOOKED] = weakref.ref(self)
            hooks.observe_node(node, _noting(weakref.ref(self)))

    def note(self, gradient: Tensor) -> None:
        """What arrives at the temperature."""
        if self._means is not None and not self._is_over:
            self._seen.append((self._means, gradient.detach().sum()))
            self._means = None

    def _judge(self) -> None:
        self._judged = len(self._seen)
        self._is_over = self._judged >= ENOUGH
        (r2, slope), *others = (
            max(
                _line([(m[n][form], float(g)) for m, g in self._seen if len(m) > n])
                for n in range(MOST_LOG_PROBS)
            )
            for form in range(FORMS)
        )
        slope = -slope if ascends(self._trained) else slope
        # of log-probs that are wrong themselves the temperature's loss may be right
        least = LINE if self._is_over else EXACT
        if r2 < least or any(other > r2 and way < 0 < slope for other, way in others):
            return
        self._is_over = True
        if slope < 0:
            self._proofs.ok(ID)
            return
        self._proofs.found(
            ID,
            f"the gradient of the temperature rises by {slope:.3g} with each nat of mean log π,"
            f" over {len(self._seen)} backward calls of its loss (R² {r2:.3f}): the temperature"
            " grows when the policy has more entropy than is wanted",
            subject="temperature",
            how="temperature",
            slope=slope,
        )


def _noting(mine: weakref.ref[TemperatureSign]) -> Callable[[tuple[Any, ...]], None]:
    def note(gradients: tuple[Any, ...]) -> None:
        reader = mine()
        if reader is not None and gradients[0] is not None:
            reader.note(gradients[0])

    return note


def _is_of_one_number(seen: SeenGraph) -> bool:
    """A loss that trains a single number, and nothing of a network."""
    leaves = [getattr(each, "variable", None) for each in seen.layers]
    one = len(leaves) == 1 and isinstance(leaves[0], Tensor) and leaves[0].numel() == 1
    return one and not seen.errors and not seen.log_probs


def _means(heard: HeardLogProb) -> tuple[float, ...]:
    """Of the log-probabilities of the actions: squashed, if they are normal numbers; then without
    that correction, and with its opposite."""
    bare = float(heard.log_prob.mean())
    if not heard.is_normal:
        return (bare,) * FORMS
    drawn = heard.value.double()
    slopes = 2.0 * (math.log(2.0) - drawn - F.softplus(-2.0 * drawn))
    slope = float(slopes.sum(1).mean())
    return bare - slope, bare, bare + slope


def _line(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """R² and slope of the second over the first."""
    if len(pairs) < FEWEST:
        return 0.0, 0.0
    x, y = np.array(pairs).T
    x, y = x - x.mean(), y - y.mean()
    xx, yy, xy = float(x @ x), float(y @ y), float(x @ y)
    return (xy * xy / (xx * yy), xy / xx) if xx > 0.0 and yy > 0.0 else (0.0, 0.0)
