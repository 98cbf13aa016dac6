"""Which way an actor's loss moves what its critic says (DDPG, TD3, SAC).

Such a loss goes through the critic down to the action. Optimizers make it small, so what the critic
says must count negatively: dL/dQ < 0. The critic is known by its own loss, a squared error, and the
actor's by this: it goes through the same layer, and on to parameters that the critic's did not
reach. An actor whose loss has its critic and log-probabilities, all with the same weight, and no
way through the critic, learns from its entropy alone: actions were drawn with `sample`. Where the
loss has log-probabilities of what the actor draws, they must count positively, dL/dlog π > 0: else
the entropy is punished. Programs that freeze the critic while the actor learns (Spinning Up) leave
no parameters of it in the graph: its layer is known by the memory of its weight.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from gradiometer.capture import hooks
from gradiometer.capture.leaks import leaves_of
from gradiometer.capture.logprobs import SeenGraph, layer_weights, value_layers
from gradiometer.capture.proofs import ProofLog
from gradiometer.capture.untrained import ascends

__all__ = ["ActorSign"]

ID, RECIPE, ENTROPY = "update-opposes-reward", "recipe-mismatch", "entropy-sign"
ENOUGH = 2
"""Backward calls that must all say the same: the sign is that of the formula, and no sample of it
is a matter of luck."""
ALIKE = 1e-4
"""Of their mean: what weights differ by that are the same but for rounding."""


class ActorSign:
    """Looks at the losses of measured steps until it knows."""

    def __init__(self, proofs: ProofLog) -> None:
        self._proofs = proofs
        self._reached: dict[int, set[int]] = {}
        """By a weight of the critic's last layer: all that its own loss reaches, by id."""
        self._weights: dict[int, weakref.ref[Tensor]] = {}
        """Those weights, as long as they are there."""
        self._slopes: list[Tensor] = []
        self._entropies: list[Tensor] = []
        """dL/dlog π of the actions that the actor draws."""
        self._actor: set[int] = set()
        """The parameters of the actor, by id."""
        self._is_over = False
        self._spreads: list[tuple[Tensor, Tensor]] = []
        """Of losses without a way through the critic: the mean weight of its log-probabilities, and
        how far they are from it."""

    def graph_seen(self, seen: SeenGraph) -> None:
        """A loss is about to go backward."""
        if self._is_over:
            return
        if len(self._slopes) >= ENOUGH and len(self._entropies) not in range(1, ENOUGH):
            self._judge()
        elif seen.errors:
            for layer in value_layers(seen):
                below = set(leaves_of([layer]))
                weights = layer_weights(layer)
                self._reached.update({id(each): below for each in weights})
                self._weights.update({id(each): weakref.ref(each) for each in weights})
        elif self._reached and all(each.reparametrised for each in seen.log_probs):
            through = [layer for layer in seen.layers if self._goes_through(layer)]
            for layer in through:
                self._actor |= set(leaves_of([layer])) - (self._critic_of(layer) or set())
                hooks.observe_node(layer, self._note)
            if through and len(seen.log_probs) == 1:
                hooks.observe_node(seen.log_probs[0].node, self._note_entropy)
        elif self._reached and not any(each.reparametrised for each in seen.log_probs):
            self._look_for_cut(seen)

    def _goes_through(self, layer: Any) -> bool:
        critic = self._critic_of(layer)
        return critic is not None and bool(set(leaves_of([layer])) - critic)

    def _critic_of(self, layer: Any) -> set[int] | None:
        """What the critic's own loss reaches, where the layer is the critic's last."""
        known = [self._reached.get(id(each)) for each in layer_weights(layer)]
        told = next((each for each in known if each is not None), None)
        return self._critic_at(getattr(layer, "_saved_mat2", None)) if told is None else told

    def _critic_at(self, weight: Any) -> set[int] | None:
        """As above, of a weight that is frozen: the layer keeps it, and no path leads to it."""
        if not isinstance(weight, Tensor) or weight.ndim != 2:
            return None
        for key, reference in self._weights.items():
            held = reference()
            if held is None or held.requires_grad or held.shape != weight.shape[::-1]:
                continue
            if held.device == weight.device and held.data_ptr() == weight.data_ptr():
                return self._reached.get(key)
        return None

    def _look_for_cut(self, seen: SeenGraph) -> None:
        """A loss with log-probabilities of actions that no gradient goes through."""
        if len(self._spreads) >= ENOUGH:
            self._judge_cut()
            return
        critics = [layer for layer in seen.layers if self._critic_of(layer) is not None]
        if critics and not any(map(self._goes_through, critics)) and len(seen.log_probs) == 1:
            hooks.observe_node(seen.log_probs[0].node, self._note_weights)

    def _note_weights(self, gradients: tuple[Any, ...]) -> None:
        if gradients[0] is not None and gradients[0].numel() > 1:
            weights = gradients[0].detach()
            self._spreads.append((weights.mean(), weights.std()))

    def _judge_cut(self) -> None:
        """A policy gradient weighs each sample by its advantage, an entropy all alike."""
        self._is_over = True
        if all(
            float(mean) > 0.0 and float(spread) <= ALIKE * float(mean)
            for mean, spread in self._spreads
        ):
            self._proofs.found(
                RECIPE,
                f"in {len(self._spreads)} backward calls of the actor's loss no gradient goes"
                " through the critic to the actor, and all log-probabilities weigh the same:"
                " actions are drawn without their gradient",
                subject="actor",
                recipe="actor-sampled",
                calls=len(self._spreads),
            )

    def _note(self, gradients: tuple[Any, ...]) -> None:
        if gradients[0] is not None:
            self._slopes.append(gradients[0].detach().sum())

    def _note_entropy(self, gradients: tuple[Any, ...]) -> None:
        if gradients[0] is not None:
            self._entropies.append(gradients[0].detach().sum())

    def _judge(self) -> None:
        self._is_over = True
        self._judge_entropy()
        turned = -1.0 if ascends(self._actor) else 1.0
        slopes = (turned * torch.stack([x.float() for x in self._slopes[:ENOUGH]])).tolist()
        if all(slope < 0 for slope in slopes):
            self._proofs.ok(ID)
        elif all(slope > 0 for slope in slopes):
            self._proofs.found(
                ID,
                f"dL/dQ = {turned * slopes[-1]:+.3g} in {len(slopes)} backward calls of the actor's"
                " loss"
                + (
                    ", and its optimizer makes it large (maximize=True)"
                    if turned < 0
                    else ": it falls when the critic thinks less of the action"
                ),
                slope=slopes[-1],
            )

    def _judge_entropy(self) -> None:
        turned = -1.0 if ascends(self._actor) else 1.0
        slopes = [turned * float(each) for each in self._entropies[:ENOUGH]]
        if slopes and all(slope > 0 for slope in slopes):
            self._proofs.ok(ENTROPY)
        elif slopes and all(slope < 0 for slope in slopes):
            self._proofs.found(
                ENTROPY,
                f"dL/dlog π = {slopes[-1]:+.3g} in {len(slopes)} backward calls of the actor's"
                " loss: it falls when the entropy of the policy does",
                subject="actor",
                slope=slopes[-1],
            )
