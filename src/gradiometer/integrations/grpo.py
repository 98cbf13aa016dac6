"""GRPO's loss taken apart by TRL's own code: policy, KL to the reference, entropy bonus, a router's balancing loss.

A shallow copy of the trainer is asked for the loss again, with parts of it switched off, on the log-probabilities of the one
forward that there was. No formula of TRL's is repeated here, so every `loss_type` is the trainer's own; the copy takes what
is written meanwhile (metrics, the entropy controller), and asks nothing of other ranks.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

__all__ = ["Forward", "Through", "loss_terms", "noting_forward", "replaced"]

Forward: TypeAlias = tuple[Tensor, Tensor, Tensor | None]
"""Log-probabilities [B, T], entropies [B, T], balancing loss: what `_get_per_token_logps_and_entropies` gives."""


class _Alone:
    """An accelerator that asks nobody; the end of an accumulation, where the entropy controller moves, never comes."""

    sync_gradients = False

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def gather(self, tensor: Tensor, **_: Any) -> Tensor:
        return tensor

    gather_for_metrics = reduce = gather

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)


def loss_terms(trainer: Any, model: Any, inputs: Mapping[str, Any], forward: Forward) -> dict[str, Tensor]:
    """The terms whose sum is `trainer._compute_loss(model, inputs)`, as scalars in the graph of `forward`."""
    double = copy.copy(trainer)
    double.accelerator = _Alone(trainer.accelerator)
    double._get_per_token_logps_and_entropies = lambda *_, **__: forward
    parts = {"policy": True, "kl": trainer.beta != 0.0}
    parts |= {"entropy": trainer._entropy_bonus_enabled, "balance": trainer.aux_loss_enabled}
    terms = {}
    for name in (name for name, there in parts.items() if there):
        double._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        double.beta = trainer.beta if name == "kl" else 0.0
        double._entropy_bonus_enabled, double.aux_loss_enabled = name == "entropy", name == "balance"
        advantages = inputs["advantages"]
        given = {**inputs, "advantages": advantages if name == "policy" else torch.zeros_like(advantages)}
        terms[name] = type(trainer)._compute_loss(double, model, given)
    return terms


class Through(torch.autograd.Function):
    """The loss as it is. The way back leads past the terms too, with no gradient for them: so they count as gone backward."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *terms: Tensor) -> Tensor:
        """The same number."""
        ctx.num_terms = len(terms)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The same gradient."""
        return (gradient, *[None] * ctx.num_terms)


@contextmanager
def replaced(trainer: Any, **methods: Callable[..., Any]) -> Iterator[None]:
    """Other methods, on this trainer alone and for a while."""
    own = vars(trainer)
    held = {name: own[name] for name in methods if name in own}
    own.update(methods)
    try:
        yield
    finally:
        for name in methods:
            own.pop(name, None)
        own.update(held)


@contextmanager
def noting_forward(trainer: Any) -> Iterator[list[Forward]]:
    """What forwards for the loss give, in a list."""
    forward, seen = trainer._get_per_token_logps_and_entropies, list[Forward]()

    def noted(*args: Any, **kwargs: Any) -> Forward:
        seen.append(forward(*args, **kwargs))
        return seen[-1]

    with replaced(trainer, _get_per_token_logps_and_entropies=noted):
        yield seen
