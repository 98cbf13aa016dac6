"""What the cartpole lab can be told; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from gradiometer.errors import UsageError
from gradiometer.labs.config import LabConfig, Progress

__all__ = ["Config", "Progress"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LabConfig):
    """What `gradiometer train cartpole key=value ...` can change."""

    total_steps: int = 100_000
    """Environment steps, summed over the environments; whole rollouts only."""
    num_envs: int = 8
    """Environments that run side by side."""
    num_steps: int = 125
    """Steps of each environment in a rollout."""
    num_minibatches: int = 4
    """Minibatches a rollout is cut into, anew in each epoch."""
    update_epochs: int = 10
    """Passes over a rollout."""
    learning_rate: float = 1e-3
    """Adam's step size at the start; it falls linearly to zero."""
    gamma: float = 0.99
    """Discount of the return."""
    gae_lambda: float = 0.95
    """Between one-step (0) and Monte-Carlo (1) advantages."""
    clip_coef: float = 0.2
    """How far the probability ratio may leave 1 and still be paid for."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients longer than this are cut to it."""
    reward_scale: float = 0.02
    """Times each reward, so that the critic's targets are of order one; reported returns are not scaled."""
    every: int = 10
    """The meter measures one optimizer step in this many."""
    tier: str = "standard"
    """How much the meter measures: light or standard."""

    def __post_init__(self) -> None:
        LabConfig.__post_init__(self)
        for name in ("num_envs", "num_steps", "num_minibatches", "update_epochs"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} leaves nothing to train on: use 1 or more")
        rollout = f"a rollout of num_envs={self.num_envs} × num_steps={self.num_steps} = {self.batch_size} transitions"
        if self.total_steps < self.batch_size:
            raise UsageError(f"total_steps={self.total_steps} is shorter than {rollout}: use {self.batch_size} or more")
        if self.batch_size < 2 * self.num_minibatches:  # one transition has no standard deviation
            raise UsageError(f"num_minibatches={self.num_minibatches} is too many for {rollout}: leave each at least 2")

    @property
    def batch_size(self) -> int:
        """Transitions in a rollout: B = T·N."""
        return self.num_envs * self.num_steps
