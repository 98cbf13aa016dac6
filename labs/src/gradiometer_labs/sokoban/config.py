"""What the sokoban lab can be told; torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from gradiometer.errors import UsageError
from gradiometer.store.sinks import Sink, wandb
from gradiometer_labs.config import LabConfig, SettingsCheck, TrainingProgress, tracker_names
from gradiometer_labs.sokoban.levels import SokobanLevel, generate
from gradiometer_labs.sokoban.sources import (
    ActorRolloutRefConfig,
    AlgorithmConfig,
    CriticConfig,
    EsManagerConfig,
    RayKwargs,
    SystemConfig,
    TrainerConfig,
)

__all__ = [
    "Config",
    "EnvConfig",
    "ModelConfig",
    "RewardConfig",
    "TrainingProgress",
    "WarmStartConfig",
]

SMALLEST_ROOM, LARGEST_ROOM = 4, 20
REWARD_KINDS = ("game", "verifier")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """`model.*`: the small Qwen2 that is made when model_path is null."""

    hidden_size: int = 96
    """Width; a multiple of num_heads."""
    num_layers: int = 3
    """Transformer blocks."""
    num_heads: int = 4
    """Attention heads; the width of each is even (rotary positions)."""
    intermediate_size: int = 256
    """Width of the feed-forward layers."""

    def __post_init__(self) -> None:
        sizes = ("hidden_size", "num_layers", "num_heads", "intermediate_size")
        SettingsCheck(self, "model.").at_least(1, *sizes)
        if self.hidden_size % (2 * self.num_heads):
            raise UsageError(
                f"model.hidden_size={self.hidden_size} does not divide into"
                f" model.num_heads={self.num_heads} heads of even width: use a multiple of"
                f" {2 * self.num_heads}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """`env.*`: the levels and the game."""

    size: int = 6
    """Rows and columns of the room, walls included; 4 to 20."""
    num_boxes: int = 1
    """Boxes, and targets."""
    num_walls: int = 0
    """Walls inside the room."""
    min_pushes: int = 1
    """No level is solved with fewer pushes."""
    max_pushes: int = 4
    """Every level can be solved with this many."""
    max_turns: int = 5
    """A game that is not solved ends here."""
    max_actions_per_turn: int = 3
    """Actions of an answer that are carried out, at most."""

    def __post_init__(self) -> None:
        check = SettingsCheck(self, "env.")
        check.between(SMALLEST_ROOM, LARGEST_ROOM, "size")
        check.at_least(1, "max_turns", "max_actions_per_turn")
        try:
            self.level(0)
        except UsageError as problem:
            raise UsageError(f"env: {problem}") from problem

    def level(self, level_seed: int) -> SokobanLevel:
        """The level of that seed, the same every time."""
        return generate(
            level_seed,
            size=self.size,
            num_boxes=self.num_boxes,
            num_walls=self.num_walls,
            min_pushes=self.min_pushes,
            max_pushes=self.max_pushes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """`reward.*`: what a game is paid."""

    kind: str = "game"
    """game: every action, as the environment pays it; verifier: once, at the end, by two functions
    that are added up."""
    solved: float = 1.0
    """Weight of the verifier's verdict, 1 for a solved level."""
    format: float = 0.0
    """Weight of the share of answers that say as many moves as a turn has room for."""

    def __post_init__(self) -> None:
        check = SettingsCheck(self, "reward.")
        check.one_of(REWARD_KINDS, "kind")
        check.at_least(0, "solved", "format")
        if self.solved == self.format == 0:
            raise UsageError(
                "reward.solved=0 and reward.format=0 leave nothing to earn: set one of them above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartConfig:
    """`warm_start.*`: imitation of the solver before the first training step."""

    steps: int = 480
    """Optimizer steps; 0 starts from random weights."""
    learning_rate: float = 2e-3
    """AdamW's step size."""
    batch_size: int = 32
    """Solver games per step."""
    num_levels: int = 2048
    """Levels the solver plays, other ones than those of the training."""
    noise: float = 0.4
    """How often any of the four moves is taught instead of the solver's, so that there is something
    left to learn."""

    def __post_init__(self) -> None:
        check = SettingsCheck(self, "warm_start.")
        check.at_least(0, "steps")
        check.above_zero("learning_rate")
        check.at_least(1, "batch_size", "num_levels")
        check.between(0, 1, "noise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LabConfig):
    """What `gradiometer train sokoban key=value ...` can change."""

    model_path: str | None = None
    """A Hugging Face causal language model, by folder or name; null makes a small one."""
    preset: str = "none"
    """Overrides under one name, applied before the others: none or grad_analysis."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    actor_rollout_ref: ActorRolloutRefConfig = field(default_factory=ActorRolloutRefConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    es_manager: EsManagerConfig = field(default_factory=EsManagerConfig)
    ray_kwargs: RayKwargs = field(default_factory=RayKwargs)
    system: SystemConfig = field(default_factory=SystemConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    every: int = 1
    """The meter measures one optimizer step in this many."""

    CONFIG_NAMES: ClassVar[Mapping[str, tuple[str, ...]]] = {"_2_sokoban": ()}
    PRESETS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "none": (),
        "grad_analysis": (
            "trainer.total_training_steps=101",
            "trainer.gradient_analysis_mode=true",
            "trainer.gradient_analysis_every=50",
            "trainer.gradient_analysis_env_groups=128",
            "trainer.gradient_analysis_group_size=16",
            "trainer.val_before_train=true",
            "trainer.test_freq=10",
            "es_manager.train.env_groups=8",
            "es_manager.train.group_size=16",
            "actor_rollout_ref.rollout.rollout_filter_strategy=top_p",
            "actor_rollout_ref.rollout.rollout_filter_value=0.9",
            "actor_rollout_ref.rollout.rollout_filter_top_p_prob_mode=softmax",
            "actor_rollout_ref.rollout.rollout_filter_metric=reward_variance",
            "actor_rollout_ref.rollout.rollout_filter_type=largest",
        ),
    }
    NO_EFFECT: ClassVar[frozenset[str]] = frozenset(
        {
            "trainer.n_gpus_per_node",
            "trainer.nnodes",
            "actor_rollout_ref.actor.entropy_from_logits_with_chunking",
            "actor_rollout_ref.actor.filter_loss_scaling",
            "actor_rollout_ref.rollout.gpu_memory_utilization",
            "ray_kwargs.ray_init.num_cpus",
            "system.CUDA_VISIBLE_DEVICES",
        }
    )

    def __post_init__(self) -> None:
        LabConfig.__post_init__(self)
        SettingsCheck(self).one_of(self.PRESETS, "preset")
        batch, mini_batch = self.es_manager.train, self.actor_rollout_ref.actor.ppo_mini_batch_size
        rollouts = batch.env_groups * batch.group_size
        if mini_batch is not None and mini_batch > rollouts:
            raise UsageError(
                f"actor_rollout_ref.actor.ppo_mini_batch_size={mini_batch} is more than the"
                f" {rollouts} rollouts of es_manager.train: use {rollouts} or less, or null"
            )
        if self.trainer.save_freq > 0 and self.checkpoint_dir is None:
            raise UsageError(
                "trainer.save_freq has nowhere to save to: set run= or trainer.default_local_dir="
            )

    @property
    def run_name(self) -> str | None:
        """The run's folder is called so when run= does not say."""
        return self.trainer.experiment_name

    @property
    def trackers(self) -> list[str | Sink]:
        """sinks= and trainer.logger together; W&B by the names of the source."""
        names = tracker_names("trainer.logger", f"{self.sinks},{self.trainer.logger}")
        named = wandb(project=self.trainer.project_name, run_name=self.trainer.experiment_name)
        return [named if name == "wandb" else name for name in names]

    @property
    def checkpoint_dir(self) -> Path | None:
        """Where global_step_<N> folders go."""
        if self.trainer.default_local_dir is not None:
            return Path(self.trainer.default_local_dir)
        return None if self.run is None else Path(self.run) / "checkpoints"

    @property
    def analysis_batch(self) -> tuple[int, int] | None:
        """(env_groups, group_size) of the analysis's own batch; None analyses the training
        batch."""
        groups, size = (
            self.trainer.gradient_analysis_env_groups,
            self.trainer.gradient_analysis_group_size,
        )
        if groups is None and size is None:
            return None
        train = self.es_manager.train
        return (
            train.env_groups if groups is None else groups,
            train.group_size if size is None else size,
        )
