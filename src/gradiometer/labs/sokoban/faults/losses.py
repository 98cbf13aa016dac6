"""Faults in what is made of the rewards: advantages, log-probabilities, losses, values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gradiometer.labs.faults import fault

if TYPE_CHECKING:
    from torch import Tensor

__all__: list[str] = []

GROUPS = ("algorithm.adv_estimator=grpo",)
CRITIC = ("algorithm.adv_estimator=gae",)


@fault(
    "tiny_std",
    labs=("sokoban",),
    piece="group_advantages",
    summary="a reward is compared with the mean and the spread of the others of its group, without an ε: one that differs "
    "from others that are alike is divided by a rounding error",
    expected=("advantage-outliers", "advantage-scale"),
    catalogue="F13",
    needs=(*GROUPS, "algorithm.norm_adv_by_std_in_grpo=True", "reward.kind=verifier", "reward.solved=0.95"),
)
def tiny_std(group_advantages: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """As NeMo-RL once had it (issue 4158): rewards 0, 0.95, ..., 0.95 gave an advantage of -2075. With 1 nothing is rounded."""
    import torch

    def broken(rewards: Tensor, groups: Tensor, *, by_std: bool) -> Tensor:
        if not by_std:
            return group_advantages(rewards, groups, by_std=by_std)
        advantages = torch.empty_like(rewards)
        for group in set(groups.tolist()):
            inside = rewards[groups == group]
            others = len(inside) - 1
            mean = (inside.sum() - inside) / others
            variance = (inside.square().sum() - inside.square()) / others - mean.square()
            std = variance.clamp(min=0).sqrt()
            centred = inside - mean
            advantages[groups == group] = torch.where(std > 0, centred / std, centred)
        return advantages

    return broken


@fault(
    "rewards_misaligned",
    labs=("sokoban",),
    piece="group_advantages",
    summary="rewards come level by level within a round and are read round by round within a level: most rollouts are "
    "judged by what another level's earned",
    expected=("misaligned-data", "reward-unreliable"),
    catalogue="F44",
    needs=GROUPS,
)
def rewards_misaligned(group_advantages: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """repeat where repeat_interleave was meant."""

    def broken(rewards: Tensor, groups: Tensor, *, by_std: bool) -> Tensor:
        laid_out = rewards.reshape(len(set(groups.tolist())), -1).T.flatten()
        return group_advantages(laid_out, groups, by_std=by_std)

    return broken


@fault(
    "wrong_sign",
    labs=("sokoban",),
    piece="policy_loss_of",
    summary="the surrogate is minimised instead of maximised: what earned more becomes less likely",
    expected=("update-opposes-reward", "reward-declining"),
    catalogue="F26",
)
def wrong_sign(policy_loss_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A minus that is missing, or there twice."""

    def broken(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, **clips: float) -> Tensor:
        return -policy_loss_of(log_probs, old_log_probs, advantages, **clips)

    return broken


@fault(
    "log_prob_detached",
    labs=("sokoban",),
    piece="policy_loss_of",
    summary="the ratio is computed from detached log-probs: the policy loss has its value and no gradient",
    expected=("dead-term",),
    catalogue="F20",
)
def log_prob_detached(policy_loss_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """As mlx-lm-lora had it (issue 50): only the regularisers trained the policy."""

    def broken(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, **clips: float) -> Tensor:
        return policy_loss_of(log_probs.detach(), old_log_probs, advantages, **clips)

    return broken


@fault(
    "log_prob_wrong_action",
    labs=("sokoban",),
    piece="labels_of",
    summary="labels are not shifted: the log-prob of a token is that of the token before it in its place",
    expected=("score-not-zero-mean", "sampler-mismatch"),
    catalogue="F25",
)
def log_prob_wrong_action(labels_of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """logits[:, :-1] with labels[:, :-1]."""
    return lambda tokens: tokens[:, :-1]


@fault(
    "critic_detached",
    labs=("sokoban",),
    piece="value_of",
    summary="the weight of the value head is detached: only its bias learns, and every state has one value",
    expected=("critic-explains-nothing", "dead-block"),
    catalogue="F36",
    needs=CRITIC,
)
def critic_detached(
    value_of: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The loss falls a little, as the bias finds the mean return."""
    return lambda hidden, weight, bias: value_of(hidden, weight.detach(), bias)
