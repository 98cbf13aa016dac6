"""What the pendulum lab can be told; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from gradiometer.errors import UsageError
from gradiometer_labs.config import LabConfig, SettingsCheck, TrainingProgress

__all__ = ["EPISODE", "Config", "TrainingProgress"]

EPISODE = 200
"""Steps of an episode: Pendulum-v1 cuts each one off there and ends none before, so environments
stay in step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LabConfig):
    """What `gradiometer train pendulum key=value ...` can change."""

    total_steps: int = 51_200
    """Environment steps, summed over the environments; whole rounds of episodes only."""
    num_envs: int = 8
    """Environments that run side by side."""
    update_every: int = 5
    """Steps of all environments between two updates; the first episodes only fill the replay."""
    batch_size: int = 64
    """Transitions of an update."""
    buffer_size: int = 50_000
    """Transitions the replay holds; the oldest are overwritten."""
    learning_rate: float = 2e-3
    """Adam's step size, for the actor, the critics and the temperature."""
    gamma: float = 0.95
    """Discount of the return."""
    tau: float = 0.05
    """How far the target critics follow the critics at each update."""
    alpha: float = 0.1
    """Temperature, the weight of the entropy; where the training starts from if learn_alpha."""
    learn_alpha: bool = True
    """Whether the temperature is tuned so that the policy's entropy is target_entropy."""
    target_entropy: float = -1.0
    """In nats; the usual choice is minus the number of action dimensions."""
    max_grad_norm: float = 1.0
    """Longer gradients are cut to it, those of the actor and of the critics each by themselves."""
    reward_scale: float = 0.05
    """Times each reward, so that the critics' targets are of order one; reported returns are not
    scaled."""

    def __post_init__(self) -> None:
        LabConfig.__post_init__(self)
        check = SettingsCheck(self)
        counts = ("num_envs", "update_every", "batch_size")
        check.at_least(1, *counts, why="leaves nothing to train on")
        if self.update_every > EPISODE:
            raise UsageError(
                f"update_every={self.update_every} is longer than an episode of {EPISODE} steps:"
                f" use {EPISODE} or less"
            )
        if self.total_steps < 2 * self.round_size:
            raise UsageError(
                f"total_steps={self.total_steps} is too short: the first episodes of"
                f" num_envs={self.num_envs} only fill the replay, use {2 * self.round_size} or more"
            )
        if self.buffer_size < self.round_size:
            raise UsageError(
                f"buffer_size={self.buffer_size} does not hold one episode of each environment: use"
                f" {self.round_size} or more"
            )
        if not 0 <= self.gamma < 1:
            raise UsageError(
                f"gamma={self.gamma}: episodes that never end need a discount of 0 or more and"
                " below 1"
            )
        check.above_zero("alpha", why="is no temperature")
        if not 0 < self.tau <= 1:
            raise UsageError(f"tau={self.tau} is no share: use a number above 0 and up to 1")

    @property
    def round_size(self) -> int:
        """Transitions of one episode of each environment."""
        return self.num_envs * EPISODE
