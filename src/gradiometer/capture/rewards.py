"""Which reward pushes the policy where: the gradient that each reward's advantages contribute.

For a loss that is linear, or piecewise linear, in the advantages a = Σ a_r (policy gradient, PPO's clip, dual clip):

    u = d loss/d a,     contribution of r = d <u(θ), a_r>/dθ,     Σ_r contribution = d loss/dθ

The active set of a clip is that of the whole loss. Only the few operations between the ratio and the loss are
differentiated twice; through the model it is one ordinary backward a reward.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradiometer.capture.randomness import replayed
from gradiometer.capture.terms import Split, total

__all__ = ["Contributions", "contributions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributions:
    """<u, a_r> of each reward, to be differentiated; None where the loss does not hang on that reward."""

    dots: dict[str, Tensor | None]
    terms: tuple[str, ...]
    """The terms that the advantages enter."""


def contributions(split: Split) -> Contributions:
    """Scalars whose gradients are the rewards' contributions, from the graph of the loss.

    Functions of the advantages run a second time, on leaves of their own, with the random numbers of the first time: the
    graph of the user's loss stays as it is without us.
    """
    places = list(split.advantages.values())
    probed = {name: term for name, term in split.terms.items() if term.requires_grad}
    if split.functions:
        assert split.random is not None
        places = [a.detach().requires_grad_() for a in places]
        summed = total(places) if len(places) > 1 else places[0].clone()
        with replayed(split.random):
            probed = {name: function(summed) for name, function in split.functions.items()}
    dots: dict[str, Tensor | None] = dict.fromkeys(split.advantages)
    entered: list[str] = []
    for name, loss in probed.items():
        if not loss.requires_grad:
            continue
        slopes = torch.autograd.grad(
            loss, places, grad_outputs=torch.ones_like(loss), create_graph=True, allow_unused=True
        )
        if any(slope is not None for slope in slopes):
            entered.append(name)
        for reward, place, slope in zip(split.advantages, places, slopes, strict=True):
            if slope is not None:
                dot, held = (slope * place.detach()).sum(), dots[reward]
                dots[reward] = dot if held is None else held + dot
    return Contributions(dots=dots, terms=tuple(entered))
