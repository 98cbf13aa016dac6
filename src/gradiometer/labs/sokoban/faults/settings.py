"""Faults that are a wrong number in the right place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from gradiometer.labs.faults import fault, wrong_setting
from gradiometer.labs.sokoban.config import Config

__all__: list[str] = []

Rate = Callable[[Config, float], float]


def _with_actor(config: Config, **changes: Any) -> Config:
    """The config with other `actor_rollout_ref.actor.*`."""
    rollout = config.actor_rollout_ref
    return dataclasses.replace(
        config, actor_rollout_ref=dataclasses.replace(rollout, actor=dataclasses.replace(rollout.actor, **changes))
    )


# A coefficient meant for a reward of another scale.
wrong_setting(
    "kl_strangles",
    labs=("sokoban",),
    times="actor_rollout_ref.actor.kl_loss_coef",
    summary="the KL term counts a thousand, ten thousand or a hundred thousand times as much: the policy stays where it was",
    expected=("kl-strangled", "regulariser-dominates"),
    catalogue="F22",
    needs=("actor_rollout_ref.actor.use_kl_loss=True",),
    doses=(1e3, 1e4, 1e5),
)


# A max_norm of another model.
wrong_setting(
    "clip_tiny",
    labs=("sokoban",),
    to="actor_rollout_ref.actor.grad_clip",
    summary="gradients are cut to a norm of 1e-2, 1e-3 or 1e-4; under Adam, which undoes a constant factor, mostly harmless",
    expected=("over-clipping", "clip-always-active"),
    catalogue="F31",
    doses=(1e-2, 1e-3, 1e-4),
)


@fault(
    "ppo_clip_tiny",
    labs=("sokoban",),
    piece="config",
    summary="three passes with a clip range of 0.02, 0.002 or 0.0002: nearly every ratio is outside, and stops learning",
    expected=("ppo-clip-saturated", "policy-frozen"),
    catalogue="F23",
    doses=(2e-2, 2e-3, 2e-4),
)
def ppo_clip_tiny(config: Config, *, dose: float) -> Config:
    """A range for log-ratios of whole sequences, given to tokens."""
    return _with_actor(config, clip_ratio_low=dose, clip_ratio_high=dose, ppo_epochs=3)


@fault(
    "lr_high",
    labs=("sokoban",),
    piece="learning_rate_at",
    summary="the actor's learning rate is 5, 10 or 100 times as high",
    expected=("step-too-large", "kl-runaway"),
    catalogue="F15",
    doses=(5, 10, 100),
)
def lr_high(learning_rate_at: Rate, *, dose: float) -> Rate:
    """A rate for a model that is not this one."""
    return lambda config, done: dose * learning_rate_at(config, done)


@fault(
    "lr_low",
    labs=("sokoban",),
    piece="learning_rate_at",
    summary="the actor's learning rate is 30, 100 or 1000 times as low",
    expected=("policy-frozen",),
    catalogue="F16",
    doses=(30, 100, 1000),
)
def lr_low(learning_rate_at: Rate, *, dose: float) -> Rate:
    """As 1e-6 for a model of a few thousand weights."""
    return lambda config, done: learning_rate_at(config, done) / dose


@fault(
    "critic_lr_zero",
    labs=("sokoban",),
    piece="critic_learning_rate_of",
    summary="the critic's learning rate is 0: it values every state at nothing, for ever",
    expected=("critic-explains-nothing", "not-in-optimizer"),
    catalogue="F36",
    needs=("algorithm.adv_estimator=gae",),
)
def critic_lr_zero(critic_learning_rate_of: Callable[[Config], float]) -> Callable[[Config], float]:
    """A schedule that was given the wrong optimizer."""
    return lambda config: 0.0
