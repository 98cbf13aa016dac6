"""What the form of a loss proves by itself: a clip of the ratio that leaves no room, the larger of
an objective and its clipped twin where the smaller one is meant, and a target that is trained along
with its value."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gradiometer.capture import hooks
from gradiometer.capture.logprobs import SeenGraph, activation_below, trained_towards
from gradiometer.capture.proofs import ProofLog

__all__ = ["LossForm"]

CLIPPED, RECIPE = "ppo-clip-saturated", "recipe-mismatch"
ENOUGH = 8
"""Backward calls that must all say the same."""
BOUNDS = {
    "TanhBackward0": ("a tanh", -1.0, 1.0),
    "SigmoidBackward0": ("a sigmoid", 0.0, 1.0),
    "ReluBackward0": ("a ReLU", 0.0, math.inf),
}
"""Activations, and what they give."""
MOST_JUDGED = 64
BEYOND = 0.5
"""Share of the targets that must lie beyond what the activation gives."""


class LossForm:
    """Looks at the losses of measured steps."""

    def __init__(self, proofs: ProofLog) -> None:
        self._proofs = proofs
        self._wrong: list[Tensor] = []
        """Of each bound: above 0 where what is taken is the larger loss of both, as it must be."""
        self._closed = self._attached = self._beyond = self._judged = 0
        self._is_over = False

    def graph_seen(self, seen: SeenGraph) -> None:
        """A loss is about to go backward."""
        self._look_at_range(seen)
        self._look_at_target(seen)
        self._look_at_output(seen)
        if self._is_over:
            return
        if len(self._wrong) >= ENOUGH:
            self._judge_bounds()
            return
        for node in seen.bounds[:1]:
            sign = 1.0 if type(node).__name__ == "MaximumBackward0" else -1.0
            hooks.observe_node(node, self._note(sign))

    def _look_at_range(self, seen: SeenGraph) -> None:
        # a loss of the value alone may lie between two of the policy
        self._closed = 0 if seen.ranges else self._closed + bool(seen.closed)
        if self._closed == ENOUGH:
            low, high = seen.closed[0]
            self._proofs.found(
                CLIPPED,
                f"the ratio is clipped to [{low:g}, {high:g}], and 1 is not inside: a sample has no"
                " gradient once the policy has moved",
                low=low,
                high=high,
            )

    def _look_at_target(self, seen: SeenGraph) -> None:
        self._attached += bool(seen.attached)
        if self._attached == ENOUGH:
            self._proofs.found(
                RECIPE,
                f"in {ENOUGH} backward calls the error of a value has a gradient on both sides: its"
                " target leads to the weights of the value itself",
                subject="targets",
                recipe="target-attached",
            )

    def _look_at_output(self, seen: SeenGraph) -> None:
        """Can the value become what it is trained towards?"""
        if self._judged >= MOST_JUDGED or self._beyond >= ENOUGH:
            return
        for error in seen.errors[:2]:
            told = trained_towards(*error)
            node = None if told is None else activation_below(told.below)
            bounds = None if node is None else BOUNDS.get(type(node).__name__)
            if told is None or bounds is None or told.targets.device.type != "cpu":
                continue
            self._judged += 1
            what, low, high = bounds
            out = (told.targets < low) | (told.targets > high)
            if float(out.float().mean()) < BEYOND:
                self._judged = MOST_JUDGED  # it can
                return
            self._beyond += 1
            if self._beyond == ENOUGH:
                span = f"[{low:g}, {high:g}]"
                self._proofs.found(
                    RECIPE,
                    f"the values come out of {what}, which gives {span}, and in {ENOUGH} losses"
                    " most targets lie beyond",
                    subject="output",
                    recipe="output-bounded",
                )

    def _note(self, sign: float) -> Any:
        def note(gradients: tuple[Any, ...]) -> None:
            if gradients[0] is not None:
                self._wrong.append(sign * gradients[0].detach().sum())

        return note

    def _judge_bounds(self) -> None:
        self._is_over = True
        told = torch.stack([each.float() for each in self._wrong[:ENOUGH]]).tolist()
        if all(each < 0.0 for each in told):
            self._proofs.found(
                RECIPE,
                f"in {len(told)} backward calls the loss takes the larger of the objective and its"
                " clipped twin",
                subject="clip",
                recipe="clip-largest",
                calls=len(told),
            )
