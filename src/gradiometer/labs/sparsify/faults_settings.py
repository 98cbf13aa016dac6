"""Faults of the sparsify lab that are a wrong setting, as someone once typed it."""

from __future__ import annotations

from gradiometer.labs.faults import wrong_setting

__all__: list[str] = []

LAB = ("sparsify",)

wrong_setting(
    "lr_high",
    labs=LAB,
    times="learning_rate",
    summary="the learning rate is a hundred times too high",
    expected=("step-too-large",),
    catalogue="F15",
    doses=(10, 100, 1000),
)

wrong_setting(
    "lr_low",
    labs=LAB,
    times="learning_rate",
    summary="the learning rate is a hundred times too low: nothing is wrong, and nothing happens",
    expected=("policy-frozen",),
    catalogue="F16",
    doses=(1 / 30, 1 / 100, 1 / 1000),
)

wrong_setting(
    "clip_tiny",
    labs=LAB,
    to="grad_clip",
    summary="gradients are clipped to a thousandth: Adam forgives the scale, not that every gradient counts alike",
    expected=("over-clipping", "clip-always-active"),
    catalogue="F31",
    doses=(1e-2, 1e-3, 1e-5),
)

# Times the dose; the source's 0.01, once it works, is such a one beside a mean over a thousand rows.
wrong_setting(
    "entropy_coef_high",
    labs=LAB,
    times="entropy_coef",
    summary="the entropy bonus counts a hundred times as much: the policy stays random, whatever is earned",
    expected=("entropy-never-falls", "regulariser-dominates"),
    catalogue="F18",
    doses=(10, 100, 1000),
)

wrong_setting(
    "value_coef_high",
    labs=LAB,
    times="vf_coef",
    summary="the value loss counts a hundred times as much, on a trunk that it shares with the policy",
    expected=("critic-dominates", "terms-conflict"),
    catalogue="F37",
    needs=("baseline.type=learned", "model.separate_value=false"),
    doses=(10, 100, 1000),
)
