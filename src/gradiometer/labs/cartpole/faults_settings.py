"""Settings of the cartpole lab that are wrong by orders of magnitude: the classic ones, in three doses."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gradiometer.labs.faults import fault

if TYPE_CHECKING:
    from gradiometer.labs.cartpole.config import Config

__all__: list[str] = []

LAB = ("cartpole",)
PPO = ("algorithm=ppo",)


@fault(
    "lr_high",
    labs=LAB,
    piece="config",
    summary="the learning rate is that many times as high",
    expected=("step-too-large", "ratio-explosion"),
    catalogue="F15",
    needs=PPO,
    doses=(10, 100, 1000),
)
def lr_high(config: Config, *, dose: float) -> Config:
    """1e-3 typed without its minus, or taken over from SGD."""
    return dataclasses.replace(config, learning_rate=dose * config.learning_rate)


@fault(
    "dqn_lr_high",
    labs=LAB,
    piece="config",
    summary="the learning rate is that many times as high",
    expected=("step-too-large", "critic-diverges"),
    catalogue="F15",
    needs=("algorithm=dqn",),
    doses=(10, 100, 1000),
)
def dqn_lr_high(config: Config, *, dose: float) -> Config:
    """The same for values that are bootstrapped from themselves."""
    return dataclasses.replace(config, learning_rate=dose * config.learning_rate)


@fault(
    "lr_low",
    labs=LAB,
    piece="config",
    summary="the learning rate is that many times too low",
    expected=("policy-frozen",),
    catalogue="F16",
    needs=PPO,
    doses=(30, 100, 1000),
)
def lr_low(config: Config, *, dose: float) -> Config:
    """As of a recipe for fine-tuning a large model."""
    return dataclasses.replace(config, learning_rate=config.learning_rate / dose)


@fault(
    "clip_tiny",
    labs=LAB,
    piece="config",
    summary="gradients are cut to this length, which is far below their own: Adam's ε is larger than what is left",
    expected=("over-clipping", "clip-always-active"),
    catalogue="F31",
    needs=PPO,
    doses=(1e-2, 1e-3, 1e-5),
)
def clip_tiny(config: Config, *, dose: float) -> Config:
    """max_norm of another optimizer, or of a summed loss."""
    return dataclasses.replace(config, max_grad_norm=dose)


@fault(
    "entropy_coef_high",
    labs=LAB,
    piece="config",
    summary="the entropy bonus counts that many times as much: staying random pays more than balancing",
    expected=("entropy-never-falls", "regulariser-dominates"),
    catalogue="F18",
    needs=PPO,
    doses=(30, 100, 1000),
)
def entropy_coef_high(config: Config, *, dose: float) -> Config:
    """0.01 meant for rewards of another scale."""
    return dataclasses.replace(config, ent_coef=dose * config.ent_coef)


@fault(
    "value_coef_high",
    labs=LAB,
    piece="config",
    summary="the value loss counts that many times as much, in a trunk it shares with the policy: the critic has it for itself",
    expected=("critic-dominates",),
    catalogue="F37",
    needs=("algorithm=ppo", "shared_trunk=true"),
    doses=(100, 1000, 10_000),
)
def value_coef_high(config: Config, *, dose: float) -> Config:
    """A coefficient for returns of order one hundredth."""
    return dataclasses.replace(config, vf_coef=dose * config.vf_coef)
