"""What can be broken in SAC: its networks, its replay, its losses and its settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from gradiometer_labs.faults import FaultsOf
from gradiometer_labs.sharedfaults import Line, first_detached, negated, times

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from gradiometer_labs.pendulum.config import Config
    from gradiometer_labs.pendulum.model import LogProb, Policy, TwinCritic
    from gradiometer_labs.pendulum.train import Array


__all__: list[str] = []

fault = FaultsOf("pendulum")


# Networks and what trains them.


@fault(
    piece="init_hidden_",
    summary="hidden biases start at -10: no ReLU ever fires, so the networks say the same whatever"
    " they see",
    expected=("dormant-units", "dead-block"),
    catalogue="F34",
)
def dead_relus(init_hidden_: Callable[[nn.Linear], None]) -> Callable[[nn.Linear], None]:
    """As a bias that was meant for the last layer, where it would make an output rare."""
    from torch.nn import init

    def broken(layer: nn.Linear) -> None:
        init_hidden_(layer)
        init.constant_(layer.bias, -10.0)

    return broken


@fault(
    piece="actor_optimizer_of",
    summary="the optimizer was given the actor's hidden layers and not its last one, which stays "
    "as it was born",
    expected=("not-in-optimizer",),
    catalogue="F34",
)
def frozen_layer(
    actor_optimizer_of: Callable[[nn.Module, Config], torch.optim.Optimizer],
) -> Callable[[nn.Sequential, Config], torch.optim.Optimizer]:
    """As when trunk and head are made apart, and only the trunk is handed on."""
    return lambda actor, config: actor_optimizer_of(actor[:-1], config)


@fault(
    piece="critic_optimizer_of",
    summary="the critics' optimizer has a learning rate of 0: the actor climbs the hills of two "
    "random functions",
    expected=("not-in-optimizer", "critic-explains-nothing"),
    catalogue="F36",
)
def critic_lr_zero(
    critic_optimizer_of: Callable[[TwinCritic, Config], torch.optim.Optimizer],
) -> Callable[[TwinCritic, Config], torch.optim.Optimizer]:
    """As a warm-up that starts from 0, with a scheduler that nobody steps."""

    def broken(critic: TwinCritic, config: Config) -> torch.optim.Optimizer:
        optimizer = critic_optimizer_of(critic, config)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        return optimizer

    return broken


@fault(
    piece="target_of",
    summary=(
        "the target critics are the critics themselves, not a copy: they chase their own values"
    ),
    expected=("target-network",),
    catalogue="F38",
)
def target_is_online(
    target_of: Callable[[TwinCritic], TwinCritic],
) -> Callable[[TwinCritic], TwinCritic]:
    """`target = critic`, where copy.deepcopy(critic) was meant."""
    return lambda critic: critic


@fault(
    piece="follow",
    summary=(
        "the target critics are told to follow themselves: they stay as random as they were born"
    ),
    expected=("target-network",),
    catalogue="F38",
)
def target_never_updated(
    follow: Callable[[TwinCritic, TwinCritic, float], None],
) -> Callable[[TwinCritic, TwinCritic, float], None]:
    """The wrong name in the line that has both."""
    return lambda target, critic, tau: follow(target, target, tau)


# What is seen, done and kept.


@fault(
    piece="observed",
    summary="observations arrive in thousandths, as a sensor writes them, and nobody divides: up to"
    " 1000 instead of 1",
    expected=("observation-scale",),
    catalogue="F43",
)
def observations_unscaled(observed: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Every network sees the same numbers, a thousand times as large."""
    return times(1000, observed)


@fault(
    piece="act",
    summary="the policy acts with its mean, as in an evaluation, and never tries what its own"
    " distribution would",
    expected=("score-not-zero-mean", "exploration-schedule"),
    catalogue="F41",
)
def exploration_off(act: Callable[[Policy], Tensor]) -> Callable[[Policy], Tensor]:
    """`deterministic=True` left over from an evaluation."""
    return lambda policy: policy[0]


@fault(
    piece="kept_rewards",
    summary="each transition is kept with the reward of the environment beside it",
    expected=("misaligned-data", "returns-wrong"),
    catalogue="F44",
)
def rewards_misaligned(kept_rewards: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """As an index that is off by one, in the column that nobody looks at."""
    import numpy as np

    return lambda rewards: np.roll(kept_rewards(rewards), 1)


@fault(
    piece="places_of",
    summary="batches are drawn from what the replay held at the first update: nothing newer is ever"
    " learnt from",
    expected=("stale-data",),
    catalogue="F24",
)
def stale_batches(places_of: Line) -> Line:
    """The size of the replay, asked for once."""
    sizes: list[int] = []

    def broken(size: int, batch_size: int, device: torch.device) -> Tensor:
        sizes.append(sizes[0] if sizes else size)
        return places_of(sizes[0], batch_size, device)

    return broken


# The losses.


@fault(
    piece="policy_loss_of",
    summary="the actor's loss is +Q: it learns what the critics think worst",
    expected=("update-opposes-reward", "reward-declining"),
    catalogue="F26",
)
def wrong_sign(policy_loss_of: Line) -> Line:
    """A minus that was lost; every norm is as in a healthy training."""
    return negated(policy_loss_of)


@fault(
    piece="value_loss_of",
    summary=(
        "the value loss is taken of detached values: it is there in every log and trains nothing"
    ),
    expected=("dead-term", "dead-block"),
    catalogue="F36",
)
def critic_detached(value_loss_of: Line) -> Line:
    """The detach that belongs to the targets, on the values."""
    return first_detached(value_loss_of)


@fault(
    piece="entropy_loss_of",
    summary="the actor's log-probability is detached: the loss contains the entropy, but it"
    " trains no weight",
    expected=("dead-term",),
    catalogue="F19",
)
def log_prob_detached(entropy_loss_of: Line) -> Line:
    """The temperature's loss needs it detached, the actor's does not."""
    return first_detached(entropy_loss_of)


@fault(
    piece="log_prob_of",
    summary="the log-probability is that of the Gaussian before the tanh: not of the actions that "
    "are taken",
    expected=("sampler-mismatch", "score-not-zero-mean"),
    catalogue="F25",
)
def log_prob_no_correction(log_prob_of: LogProb) -> LogProb:
    """- log(1 - tanh²(u)) is missing, so that saturated actions look as unsure as any."""
    from gradiometer_labs.pendulum.model import log_normal

    return lambda u, policy: log_normal(u, policy).sum(-1)


@fault(
    piece="log_prob_of",
    summary="the tanh's slope 1 - a² is computed in bfloat16: where it rounds to 0, its logarithm "
    "is not finite",
    expected=("nonfinite-gradient",),
    catalogue="F32",
)
def nan_layer(log_prob_of: LogProb) -> LogProb:
    """As under autocast, without the usual ε. All is well until the first sample beyond |u| =
    3.5."""
    from gradiometer_labs.pendulum.model import log_normal

    def broken(u: Tensor, policy: Policy) -> Tensor:
        log_slope = (1 - u.bfloat16().tanh().square()).log()
        return (log_normal(u, policy) - log_slope).sum(-1)

    return broken


@fault(
    piece="temperature_loss_of",
    summary="the temperature rises while the entropy is above its target: soon the entropy is all "
    "that counts",
    expected=("entropy-never-falls", "regulariser-dominates"),
    catalogue="F18",
)
def temperature_wrong_sign(temperature_loss_of: Line) -> Line:
    """Its gradient is H - H̄, and the paper's is written for log π = -H."""
    return negated(temperature_loss_of)


# Settings.


@fault(
    piece="config",
    summary=(
        "rewards are a hundred times as large: so are all values, and errors ten thousand times"
    ),
    expected=("reward-scale",),
    catalogue="F8",
)
def reward_x100(config: Config) -> Config:
    """A scale that was forgotten."""
    return dataclasses.replace(config, reward_scale=100 * config.reward_scale)


fault.wrong_setting(
    "lr_high",
    times="learning_rate",
    summary="the learning rate is ten, a hundred or a thousand times as high",
    expected=("step-too-large", "critic-diverges"),
    catalogue="F15",
    doses=(10, 100, 1000),
)


fault.wrong_setting(
    "lr_low",
    times="learning_rate",
    summary="the learning rate is divided by 30, 100 or 1000",
    expected=("policy-frozen",),
    catalogue="F16",
    doses=(1 / 30, 1 / 100, 1 / 1000),
)


# Adam forgives a constant factor, down to its ε.
fault.wrong_setting(
    "clip_tiny",
    to="max_grad_norm",
    summary="gradients are cut to a length of 0.01, 0.001 or 0.0001",
    expected=("over-clipping",),
    catalogue="F31",
    doses=(1e-2, 1e-3, 1e-4),
)
