"""What the cartpole lab can be told; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradiometer.errors import UsageError
from gradiometer_labs.config import LabConfig, SettingsCheck, TrainingProgress

__all__ = ["ALGORITHMS", "Config", "DqnConfig", "TrainingProgress"]

ALGORITHMS = ("ppo", "dqn", "reinforce")
NUM_ACTIONS = 2
"""Of CartPole: push left, push right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DqnConfig:
    """What only algorithm=dqn reads; its steps are those of all environments together."""

    buffer_size: int = 20_000
    """Transitions that are remembered, the newest ones."""
    learning_starts: int = 1_000
    """Transitions before the first update."""
    updates_per_step: int = 2
    """Updates after each step of the environments side by side."""
    replay_batch: int = 128
    """Transitions of an update."""
    target_every: int = 50
    """Updates between two copies of the network into its target."""
    first_epsilon: float = 1.0
    """Share of random actions at the start."""
    last_epsilon: float = 0.02
    """And when the schedule has ended."""
    epsilon_share: float = 0.25
    """Of the training, over which it falls linearly."""
    double: bool = True
    """The online network chooses the next action, the target values it (van Hasselt et al.
    2016)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LabConfig):
    """What `gradiometer train cartpole key=value ...` can change."""

    algorithm: str = "ppo"
    """ppo, dqn or reinforce."""
    total_steps: int = 100_000
    """Environment steps, summed over the environments; whole rollouts only."""
    num_envs: int = 8
    """Environments that run side by side; for reinforce the episodes of an update."""
    num_steps: int = 125
    """Steps of each environment in a rollout; for dqn between two points of the log."""
    num_minibatches: int = 4
    """Minibatches a rollout is cut into, anew in each epoch."""
    update_epochs: int = 10
    """Passes over a rollout."""
    accumulate: int = 1
    """Micro-batches a minibatch goes backward in; their gradients add up to one step."""
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
    """Times each reward, so that the critic's targets are of order one; reported returns are not
    scaled."""
    shared_trunk: bool = False
    """Whether actor and critic share their hidden layers; ppo and reinforce."""
    amp: bool = False
    """Whether a GradScaler scales the loss, as half precision needs it; the numbers stay float32.
    ppo only."""
    max_reward: float = 500.0
    """The most an episode can earn, at 1 a step: it is cut off there."""
    num_actions: int = NUM_ACTIONS
    """What the policy chooses among; CartPole has no other number, and a reader of the run wants to
    know."""
    dqn: DqnConfig = field(default_factory=DqnConfig)
    """What only algorithm=dqn reads."""

    def __post_init__(self) -> None:
        LabConfig.__post_init__(self)
        check = SettingsCheck(self)
        check.one_of(ALGORITHMS, "algorithm")
        counts = ("num_envs", "num_steps", "num_minibatches", "update_epochs", "accumulate")
        check.at_least(1, *counts, why="leaves nothing to train on")
        if self.num_actions != NUM_ACTIONS:
            raise UsageError(
                f"num_actions={self.num_actions}: a cart is pushed left or right, leave it at"
                f" {NUM_ACTIONS}"
            )
        if not self.max_reward >= 1:
            raise UsageError(
                f"max_reward={self.max_reward:g} cuts episodes off before their first step: use 1"
                " or more"
            )
        self._check_rollout()
        self._check_replay()

    def _check_rollout(self) -> None:
        rollout = (
            f"a rollout of num_envs={self.num_envs} × num_steps={self.num_steps} ="
            f" {self.batch_size} transitions"
        )
        if self.total_steps < self.batch_size:
            raise UsageError(
                f"total_steps={self.total_steps} is shorter than {rollout}: use {self.batch_size}"
                " or more"
            )
        if self.batch_size < 2 * self.num_minibatches:  # one transition has no standard deviation
            raise UsageError(
                f"num_minibatches={self.num_minibatches} is too many for {rollout}: leave each at"
                " least 2"
            )
        if self.accumulate > self.batch_size // self.num_minibatches:
            size = self.batch_size // self.num_minibatches
            raise UsageError(
                f"accumulate={self.accumulate} is too many for a minibatch of {size} transitions"
            )

    def _check_replay(self) -> None:
        counts = ("updates_per_step", "replay_batch", "target_every")
        SettingsCheck(self.dqn, "dqn.").at_least(1, *counts, why="leaves nothing to train on")
        if not 1 <= self.dqn.learning_starts <= self.dqn.buffer_size:
            starts, size = self.dqn.learning_starts, self.dqn.buffer_size
            raise UsageError(
                f"dqn.learning_starts={starts} is never reached with dqn.buffer_size={size}: use 1"
                f" to {size}"
            )

    @property
    def batch_size(self) -> int:
        """Transitions in a rollout: B = T·N."""
        return self.num_envs * self.num_steps
