"""Which way an actor's loss moves what its critic says (DDPG, TD3, SAC).

Such a loss goes through the critic down to the action. Optimizers make it small, so what the critic
says must count negatively: dL/dQ < 0. The critic is known by its own loss, a squared error, and the
actor's by this: it goes through the same layer, and on to parameters that the critic's did not
reach.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradiometer.capture import hooks
from gradiometer.capture.leaks import leaves_of
from gradiometer.capture.logprobs import SeenGraph, layer_weights, value_layers
from gradiometer.capture.proofs import ProofLog

__all__ = ["ActorSign"]

ID = "update-opposes-reward"
ENOUGH = 8
"""Backward calls that must all say the same."""


class ActorSign:
    """Looks at the losses of measured steps until it knows."""

    def __init__(self, proofs: ProofLog) -> None:
        self._proofs = proofs
        self._reached: dict[int, set[int]] = {}
        """By a weight of the critic's last layer: all that its own loss reaches, by id."""
        self._slopes: list[Tensor] = []
        self._is_over = False

    def graph_seen(self, seen: SeenGraph) -> None:
        """A loss is about to go backward."""
        if self._is_over:
            return
        if len(self._slopes) >= ENOUGH:
            self._judge()
        elif seen.errors:
            for layer in value_layers(seen):
                below = set(leaves_of([layer]))
                self._reached.update({id(each): below for each in layer_weights(layer)})
        elif self._reached and all(each.reparametrised for each in seen.log_probs):
            for layer in seen.layers:
                if self._goes_through(layer):
                    hooks.observe_node(layer, self._note)

    def _goes_through(self, layer: Any) -> bool:
        known = [self._reached.get(id(each)) for each in layer_weights(layer)]
        critic = next((each for each in known if each is not None), None)
        return critic is not None and bool(set(leaves_of([layer])) - critic)

    def _note(self, gradients: tuple[Any, ...]) -> None:
        if gradients[0] is not None:
            self._slopes.append(gradients[0].detach().sum())

    def _judge(self) -> None:
        self._is_over = True
        slopes = torch.stack([each.float() for each in self._slopes[:ENOUGH]]).tolist()
        if all(slope < 0 for slope in slopes):
            self._proofs.ok(ID)
        elif all(slope > 0 for slope in slopes):
            self._proofs.found(
                ID,
                f"dL/dQ = {slopes[-1]:+.3g} in {len(slopes)} backward calls of the actor's loss: it"
                " falls when the critic thinks less of the action",
                slope=slopes[-1],
            )
