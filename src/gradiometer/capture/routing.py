"""Which experts were asked: the output of a router, added up on its device during forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradiometer.capture.experts import ExpertLayer

__all__ = ["Routed", "RoutingTally", "read_router"]

SUMS_TO_ONE = 1e-3  # how far probabilities in half precision are from a sum of one


@dataclass(frozen=True, slots=True)
class Routed:
    """What one forward asked of N experts, still on the device."""

    weights: Tensor | None
    """Sum over tokens of the weight each expert got, [N]."""
    tokens: Tensor | None
    """How many tokens were routed to each, [N]; None where all experts take part in every one."""
    rows: int
    """Tokens, or samples, that were routed."""

    def plus(self, other: Routed) -> Routed:
        """Of both together."""
        weights, tokens = _plus(self.weights, other.weights), _plus(self.tokens, other.tokens)
        return Routed(weights, tokens, self.rows + other.rows)


NOTHING = Routed(None, None, 0)


class RoutingTally:
    """The routing of one layer since the last step that was closed.

    A forward waits until a backward has ended, or the gradient is read: a forward that belongs to
    the next gradients may run before the round of the last ones is closed.
    """

    def __init__(self, layer: ExpertLayer, *, wanted: Callable[[], bool]) -> None:
        self._layer, self._wanted = layer, wanted
        self._waiting = NOTHING
        self.forget()

    def forget(self) -> None:
        """Begin anew, with the forwards that no backward has followed yet."""
        self.routed = NOTHING
        self._in_forward = self._waiting is not NOTHING

    @torch.no_grad()
    def note(self, output: Any, *, trained: bool) -> None:
        """Take in what the router said. `trained`: a graph is being made: no evaluation.

        Checkpointing runs a forward again inside backward: that run counts only where the first
        made no graph.
        """
        if not trained or not self._wanted():
            return
        again = torch._C._current_graph_task_id() != -1
        if again and self._in_forward:
            return
        layer = self._layer
        routed = read_router(output, layer.num, layer.top_k, normalised=layer.normalised)
        if routed is None:
            return
        self._in_forward |= not again
        self._waiting = self._waiting.plus(routed)

    def gather(self) -> None:
        """The forwards that waited are in the gradients now."""
        if self._waiting is not NOTHING:
            self.routed = self.routed.plus(self._waiting)
            self._waiting = NOTHING


def _plus(held: Tensor | None, more: Tensor | None) -> Tensor | None:
    if more is None:
        return held
    return more if held is None else held + more.to(held.device)


def read_router(
    output: Any, num: int, top_k: int | None, *, normalised: bool = True
) -> Routed | None:
    """The routing that an output stands for; None when it is not understood.

    Understood are (…, weights [T, k], indices [T, k], …) in any order, and logits or probabilities
    [..., N], cut to the `top_k` where only those take part. No sync: what a tensor holds is
    decided on its device.
    """
    tensors = [x for x in _flat(output) if isinstance(x, Tensor) and x.numel()]
    chosen = next((x for x in tensors if _whole(x) and x.ndim >= 1 and x.shape[-1] <= num), None)
    if chosen is not None:
        # Hugging Face gives (logits, weights, indices): the weights stand last.
        weights = next(
            (x for x in reversed(tensors) if x.is_floating_point() and x.shape == chosen.shape),
            None,
        )
        lone = any(x.is_floating_point() and x.shape == (*chosen.shape[:-1], 1) for x in tensors)
        # One-hot rows, not all N in some order: Switch gives the one weight of each row beside
        # them.
        if chosen.shape[-1] == num and (weights is None or lone or top_k is not None):
            return _of_rows(chosen, tensors)
        if (
            weights is None
            and (full := _last_is(tensors, num)) is not None
            and full.shape[:-1] == chosen.shape[:-1]
        ):
            weights = _probabilities(full).gather(-1, chosen.long().clamp(0, num - 1))
        routed = _of_choice(chosen, weights, num)
        return routed if chosen.shape[-1] < max(num, 3) else _unless_rows(chosen, routed)
    full = _last_is(tensors, num)
    if full is None:
        return None
    probabilities = _probabilities(full.detach())
    if top_k is None:
        rows = probabilities.reshape(-1, num)
        return Routed(rows.sum(0), None, len(rows))
    best = probabilities.topk(top_k, dim=-1)
    values = best.values / best.values.sum(-1, keepdim=True) if normalised else best.values
    return _of_choice(
        best.indices,
        torch.where(_sparse(full, top_k), full.detach().float().gather(-1, best.indices), values),
        num,
    )


def _of_rows(chosen: Tensor, tensors: Sequence[Tensor]) -> Routed:
    """Rows of zeros and ones, [..., N], perhaps with the weight of the chosen, [..., 1]."""
    rows = chosen.reshape(-1, chosen.shape[-1]).float()
    shape = (*chosen.shape[:-1], 1)
    weights = next((x for x in tensors if x.is_floating_point() and x.shape == shape), None)
    summed = None if weights is None else (rows * weights.detach().reshape(-1, 1).float()).sum(0)
    return Routed(summed, rows.sum(0), len(rows))


def _unless_rows(chosen: Tensor, routed: Routed) -> Routed:
    """All N in some order, unless no number is above one: then they are rows of zeros and ones
    after all (NLLB).

    Which of the tensors beside those holds the weights is not known: NaN, which is missing.
    """
    assert routed.tokens is not None
    mask = (chosen <= 1).all()
    tokens = torch.where(
        mask, chosen.reshape(-1, chosen.shape[-1]).sum(0, dtype=torch.float32), routed.tokens
    )
    weights = None if routed.weights is None else torch.where(mask, torch.nan, routed.weights)
    return Routed(weights, tokens, routed.rows)


def _sparse(x: Tensor, top_k: int) -> Tensor:
    """Whether the rows are the weights themselves, zero but for the chosen experts (Llama 4)."""
    positive = (x > 0).sum(-1)
    return (x >= 0).all() & ((positive >= 1) & (positive <= top_k)).all()


def _of_choice(chosen: Tensor, weights: Tensor | None, num: int) -> Routed:
    places = chosen.reshape(-1).long()
    places = torch.where(
        (places >= 0) & (places < num), places, num
    )  # beyond: a token that goes nowhere
    zeros = torch.zeros(num + 1, dtype=torch.float32, device=places.device)
    tokens = zeros.scatter_add(0, places, torch.ones_like(places, dtype=torch.float32))[:num]
    summed = (
        None if weights is None else zeros.scatter_add(0, places, weights.reshape(-1).float())[:num]
    )
    return Routed(summed, tokens, chosen.numel() // chosen.shape[-1])


def _probabilities(x: Tensor) -> Tensor:
    """The rows if they are probabilities already, else their softmax."""
    x = x.detach().float()
    already = (x >= 0).all() & ((x.sum(-1) - 1).abs() < SUMS_TO_ONE).all()
    return torch.where(already, x, torch.softmax(x, -1))


def _last_is(tensors: Sequence[Tensor], num: int) -> Tensor | None:
    return next(
        (x for x in tensors if x.is_floating_point() and x.ndim >= 1 and x.shape[-1] == num), None
    )


def _whole(x: Tensor) -> bool:
    return not x.is_floating_point() and not x.is_complex() and x.dtype != torch.bool


def _flat(output: Any) -> Sequence[Any]:
    if isinstance(output, tuple | list):
        return [x for part in output for x in _flat(part)]
    if isinstance(output, dict):
        return [x for part in output.values() for x in _flat(part)]
    return [output]
