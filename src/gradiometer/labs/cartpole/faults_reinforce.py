"""What can be broken in REINFORCE: its sign, its path, its returns, its baseline."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from gradiometer.labs.faults import fault

if TYPE_CHECKING:
    from torch import Tensor

    from gradiometer.labs.cartpole.config import Config
    from gradiometer.labs.cartpole.model import ActorCritic

__all__: list[str] = []

LAB = ("cartpole",)
REINFORCE = ("algorithm=reinforce",)
FITS = 50
"""Steps of the critic on the returns of a batch, before they are subtracted."""


@fault(
    "reinforce_wrong_sign",
    labs=LAB,
    piece="reinforce_loss_of",
    summary="the loss lost its minus: each step lowers what it should raise",
    expected=("update-opposes-reward", "reward-declining"),
    catalogue="F26",
    needs=REINFORCE,
)
def reinforce_wrong_sign(
    reinforce_loss_of: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Tensor, Tensor], Tensor]:
    """An objective that is maximised, given to an optimizer that minimises."""
    return lambda log_probs, advantages: -reinforce_loss_of(log_probs, advantages)


@fault(
    "log_prob_detached",
    labs=LAB,
    piece="reinforce_loss_of",
    summary="the log-probs are detached: the loss shows the policy term, and only the bonus moves the policy",
    expected=("dead-term",),
    catalogue="F20",
    needs=REINFORCE,
)
def log_prob_detached(reinforce_loss_of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """As mlx-lm-lora once had it (issue 50)."""
    return lambda log_probs, advantages: reinforce_loss_of(log_probs.detach(), advantages)


@fault(
    "no_discount_back",
    labs=LAB,
    piece="returns_of",
    summary="the return of a step is its own reward: nothing is carried back from what followed",
    expected=("returns-wrong",),
    catalogue="F10",
    needs=REINFORCE,
)
def no_discount_back(returns_of: Callable[[Tensor, Config], Tensor]) -> Callable[[Tensor, Config], Tensor]:
    """γ read as zero."""
    return lambda rewards, config: returns_of(rewards, dataclasses.replace(config, gamma=0.0))


@fault(
    "baseline_leak",
    labs=LAB,
    piece="baseline_of",
    summary="the critic is fitted to a batch's returns before it is subtracted from them",
    expected=("baseline-leak", "advantage-scale"),
    catalogue="F12",
    needs=REINFORCE,
)
def baseline_leak(
    baseline_of: Callable[[ActorCritic, Tensor, Tensor], Tensor],
) -> Callable[[ActorCritic, Tensor, Tensor], Tensor]:
    """The fit moved ahead of the advantages."""
    import torch

    def broken(model: ActorCritic, observations: Tensor, returns: Tensor) -> Tensor:
        weights = list(model.critic.parameters())
        optimizer = torch.optim.Adam(weights, lr=1e-2)
        for _ in range(FITS):
            error = (model.values(observations) - returns).square().mean()
            for weight, grad in zip(weights, torch.autograd.grad(error, weights), strict=True):
                weight.grad = grad
            optimizer.step()
        return baseline_of(model, observations, returns)

    return broken
