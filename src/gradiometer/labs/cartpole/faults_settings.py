"""Settings of the cartpole lab that are wrong by orders of magnitude: the classic ones, in three doses."""

from __future__ import annotations

from gradiometer.labs.faults import wrong_setting

__all__: list[str] = []

LAB = ("cartpole",)
PPO = ("algorithm=ppo",)

# 1e-3 typed without its minus, or taken over from SGD.
wrong_setting(
    "lr_high",
    labs=LAB,
    times="learning_rate",
    summary="the learning rate is that many times as high",
    expected=("step-too-large", "ratio-explosion"),
    catalogue="F15",
    needs=PPO,
    doses=(10, 100, 1000),
)

# The same for values that are bootstrapped from themselves.
wrong_setting(
    "dqn_lr_high",
    labs=LAB,
    times="learning_rate",
    summary="the learning rate is that many times as high",
    expected=("step-too-large", "critic-diverges"),
    catalogue="F15",
    needs=("algorithm=dqn",),
    doses=(10, 100, 1000),
)

# As of a recipe for fine-tuning a large model.
wrong_setting(
    "lr_low",
    labs=LAB,
    times="learning_rate",
    summary="the learning rate is divided by 30, 100 or 1000",
    expected=("policy-frozen",),
    catalogue="F16",
    needs=PPO,
    doses=(1 / 30, 1 / 100, 1 / 1000),
)

# max_norm of another optimizer, or of a summed loss.
wrong_setting(
    "clip_tiny",
    labs=LAB,
    to="max_grad_norm",
    summary="gradients are cut to this length, which is far below their own: Adam's ε is larger than what is left",
    expected=("over-clipping", "clip-always-active"),
    catalogue="F31",
    needs=PPO,
    doses=(1e-2, 1e-3, 1e-5),
)

# 0.01 meant for rewards of another scale.
wrong_setting(
    "entropy_coef_high",
    labs=LAB,
    times="ent_coef",
    summary="the entropy bonus counts that many times as much: staying random pays more than balancing",
    expected=("entropy-never-falls", "regulariser-dominates"),
    catalogue="F18",
    needs=PPO,
    doses=(30, 100, 1000),
)

# A coefficient for returns of order one hundredth.
wrong_setting(
    "value_coef_high",
    labs=LAB,
    times="vf_coef",
    summary="the value loss counts that many times as much, in a trunk it shares with the policy: the critic has it for itself",
    expected=("critic-dominates",),
    catalogue="F37",
    needs=("algorithm=ppo", "shared_trunk=true"),
    doses=(100, 1000, 10_000),
)
