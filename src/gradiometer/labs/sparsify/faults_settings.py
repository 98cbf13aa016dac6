"""Faults of the sparsify lab that are a wrong setting, as someone once typed it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gradiometer.labs.faults import fault

if TYPE_CHECKING:
    from gradiometer.labs.sparsify.config import Config

__all__: list[str] = []

LAB = ("sparsify",)


@fault(
    "lr_high",
    labs=LAB,
    piece="config",
    summary="the learning rate is a hundred times too high",
    expected=("step-too-large",),
    catalogue="F15",
    doses=(10, 100, 1000),
)
def lr_high(config: Config, *, dose: float) -> Config:
    """Times the dose."""
    return dataclasses.replace(config, learning_rate=dose * config.learning_rate)


@fault(
    "lr_low",
    labs=LAB,
    piece="config",
    summary="the learning rate is a hundred times too low: nothing is wrong, and nothing happens",
    expected=("policy-frozen",),
    catalogue="F16",
    doses=(1 / 30, 1 / 100, 1 / 1000),
)
def lr_low(config: Config, *, dose: float) -> Config:
    """Times the dose."""
    return dataclasses.replace(config, learning_rate=dose * config.learning_rate)


@fault(
    "clip_tiny",
    labs=LAB,
    piece="config",
    summary="gradients are clipped to a thousandth: Adam forgives the scale, not that every gradient counts alike",
    expected=("over-clipping", "clip-always-active"),
    catalogue="F31",
    doses=(1e-2, 1e-3, 1e-5),
)
def clip_tiny(config: Config, *, dose: float) -> Config:
    """The dose is the threshold."""
    return dataclasses.replace(config, grad_clip=dose)


@fault(
    "entropy_coef_high",
    labs=LAB,
    piece="config",
    summary="the entropy bonus counts a hundred times as much: the policy stays random, whatever is earned",
    expected=("entropy-never-falls", "regulariser-dominates"),
    catalogue="F18",
    doses=(10, 100, 1000),
)
def entropy_coef_high(config: Config, *, dose: float) -> Config:
    """Times the dose; the source's 0.01, once it works, is such a one beside a mean over a thousand rows."""
    return dataclasses.replace(config, entropy_coef=dose * config.entropy_coef)


@fault(
    "value_coef_high",
    labs=LAB,
    piece="config",
    summary="the value loss counts a hundred times as much, on a trunk that it shares with the policy",
    expected=("critic-dominates", "terms-conflict"),
    catalogue="F37",
    needs=("baseline.type=learned", "model.separate_value=false"),
    doses=(10, 100, 1000),
)
def value_coef_high(config: Config, *, dose: float) -> Config:
    """Times the dose."""
    return dataclasses.replace(config, vf_coef=dose * config.vf_coef)
