"""The settings of the sokoban lab that RAGEN and verl have too, under their dotted names;
torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gradiometer.errors import UsageError
from gradiometer.maths.groups import BUCKET_MODES, RolloutFilter
from gradiometer_labs.config import SettingsCheck, tracker_names

__all__ = [
    "ActorConfig",
    "ActorRolloutRefConfig",
    "AlgorithmConfig",
    "CriticConfig",
    "EnvBatchConfig",
    "EnvConfigs",
    "EsManagerConfig",
    "OptimConfig",
    "RayInit",
    "RayKwargs",
    "RolloutConfig",
    "SystemConfig",
    "TrainerConfig",
]

RESUME_MODES = ("disable", "auto", "resume_path")
# maths.losses has these two; it imports torch
KL_LOSS_TYPES = ("kl", "k1", "mse", "k2", "low_var_kl", "low-var-kl", "k3")
LOSS_AGG_MODES = (
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
ADV_ESTIMATORS = ("gae", "grpo")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """`trainer.*`: how long, what is kept, and when the gradients are analysed."""

    total_training_steps: int = 120
    """Training steps: rollouts, analysis when due, update."""
    gradient_analysis_mode: bool = True
    """Whether the gradients of the loss terms are analysed by reward-variance bucket."""
    gradient_analysis_every: int = 50
    """At steps 1, 1 + every, 1 + 2·every, ..."""
    exit_after_gradient_analysis: bool = False
    """Stop at the first analysis, before the actor is updated."""
    gradient_analysis_env_groups: int | None = None
    """Groups of a batch of its own for the analysis; null takes the number of the training
    batch."""
    gradient_analysis_group_size: int | None = None
    """Rollouts per group of that batch; with both null the training batch is analysed."""
    gradient_analysis_null: bool = False
    """Also what each number reads when rewards are permuted inside groups; one more backward."""
    logger: str = "console"
    """Where numbers go: console, and trackers such as wandb or tensorboard."""
    project_name: str = "gradiometer"
    """The project of a W&B run."""
    experiment_name: str | None = None
    """Names the run's folder when run= does not, and the W&B run."""
    default_local_dir: str | None = None
    """Where the global_step_<N> folders go; null puts them into the run's folder."""
    resume_mode: str = "disable"
    """disable, auto (the newest checkpoint in default_local_dir, if any) or resume_path."""
    resume_from_path: str | None = None
    """A global_step_<N> folder, for resume_mode=resume_path."""
    save_freq: int = -1
    """A checkpoint every so many steps; -1 never."""
    test_freq: int = 10
    """A validation every so many steps; -1 never."""
    val_before_train: bool = True
    """A validation before the first step."""
    n_gpus_per_node: int = 1
    """Accepted; this lab runs on one device."""
    nnodes: int = 1
    """Accepted; this lab runs on one machine."""

    def __post_init__(self) -> None:
        check = SettingsCheck(self, "trainer.")
        check.at_least(1, "total_training_steps", "gradient_analysis_every")
        check.at_least(1, "gradient_analysis_env_groups")
        if self.gradient_analysis_group_size is not None:
            group_of_two("trainer.gradient_analysis_group_size", self.gradient_analysis_group_size)
        check.at_least(-1, "save_freq", "test_freq")
        check.one_of(RESUME_MODES, "resume_mode")
        tracker_names("trainer.logger", self.logger)
        if self.experiment_name is not None and not re.fullmatch(
            r"(?!\.)[^/\\]+", self.experiment_name
        ):
            raise UsageError(
                f"trainer.experiment_name={self.experiment_name} names a folder: leave out slashes"
                " and a leading dot; run= takes a whole path"
            )
        self._check_resume()

    def _check_resume(self) -> None:
        path, mode = self.resume_from_path, self.resume_mode
        if mode == "resume_path" and not path:
            raise UsageError(
                "trainer.resume_mode=resume_path needs trainer.resume_from_path=.../global_step_<N>"
            )
        if path and mode != "resume_path":
            raise UsageError(
                f"trainer.resume_from_path={path} is not read under trainer.resume_mode={mode}: "
                "set trainer.resume_mode=resume_path too"
            )
        if not path:
            return
        if self.resume_step is None:
            raise UsageError(
                f"trainer.resume_from_path={path} is not a checkpoint: give the folder"
                " global_step_<N> itself, not one above or inside it"
            )
        if self.total_training_steps <= self.resume_step:
            raise UsageError(
                f"trainer.total_training_steps={self.total_training_steps} leaves nothing to do"
                f" after step {self.resume_step}: use {self.resume_step + 1} or more"
            )

    @property
    def resume_step(self) -> int | None:
        """N of resume_from_path=.../global_step_<N>."""
        found = re.search(r"(?:^|[/\\])global_step_(\d+)[/\\]*$", self.resume_from_path or "")
        return int(found[1]) if found else None

    def analyses_at(self, step: int) -> bool:
        """Whether training step 1, 2, ... is analysed: (step - 1) % every == 0."""
        return self.gradient_analysis_mode and (step - 1) % self.gradient_analysis_every == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """`*.optim.*`: AdamW."""

    lr: float = 5e-4
    """Step size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorConfig:
    """`actor_rollout_ref.actor.*`: the loss and its minimisation."""

    use_kl_loss: bool = True
    """Whether the loss has a KL term to the reference, the policy before the first step."""
    kl_loss_type: str = "low_var_kl"
    """k1 (kl), k2 (mse) or k3 (low_var_kl)."""
    kl_loss_coef: float = 0.001
    """Weight of the KL term."""
    entropy_coeff: float = 0.001
    """Weight of the entropy bonus."""
    entropy_from_logits_with_chunking: bool = False
    """Accepted; the logits of this lab are small."""
    filter_loss_scaling: str = "none"
    """none: the loss is not rescaled by how much the rollout filter kept."""
    loss_agg_mode: str = "token-mean"
    """How token losses become one number."""
    clip_ratio_low: float = 0.2
    """How far below 1 the probability ratio may fall and still be paid for."""
    clip_ratio_high: float = 0.28
    """How far above 1."""
    clip_ratio_c: float = 3.0
    """The bound of the loss where the advantage is negative (dual clip)."""
    ppo_epochs: int = 1
    """Passes over a batch."""
    ppo_mini_batch_size: int | None = None
    """Rollouts per optimizer step; null takes 32, or all there are."""
    ppo_micro_batch_size_per_gpu: int = 32
    """Rollouts per forward pass, at most; gradients add up."""
    grad_clip: float = 1.0
    """Gradients longer than this are cut to it."""
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        prefix = "actor_rollout_ref.actor"
        check = SettingsCheck(self, f"{prefix}.")
        check.one_of(KL_LOSS_TYPES, "kl_loss_type")
        check.one_of(LOSS_AGG_MODES, "loss_agg_mode")
        if self.filter_loss_scaling != "none":
            raise UsageError(
                f"{prefix}.filter_loss_scaling={self.filter_loss_scaling} has no meaning in this"
                " lab: use none"
            )
        check.at_least(0, "kl_loss_coef", "entropy_coeff")
        check.at_least(1, "ppo_epochs", "ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu")
        check.between(0, 1, "clip_ratio_low")
        check.above_zero("clip_ratio_high", "grad_clip")
        if not self.clip_ratio_c > 1:
            raise UsageError(f"{prefix}.clip_ratio_c={self.clip_ratio_c}: use a number above 1")
        SettingsCheck(self.optim, f"{prefix}.optim.").above_zero("lr")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """`actor_rollout_ref.rollout.*`: which rollouts are kept, and how they are bucketed."""

    temperature: float = 1.0
    """Of the sampling; the losses use the same."""
    rollout_filter_value: float = 0.9
    """How much the filter keeps; its meaning is the strategy's."""
    rollout_filter_strategy: str = "top_p"
    """top_p, top_k, top_k_abs or min_p."""
    rollout_filter_top_p_prob_mode: str = "linear"
    """How top_p turns scores into shares: softmax or linear."""
    rollout_filter_type: str = "largest"
    """Which groups are kept: those of the largest or of the smallest score."""
    rollout_filter_metric: str = "reward_variance"
    """What a group is scored by."""
    rollout_filter_include_zero: bool = True
    """Whether groups of score zero take part."""
    gradient_analysis_num_buckets: int = 6
    """Buckets of the analysis, at most; `all` is one more."""
    gradient_analysis_bucket_mode: str = "quantile"
    """quantile, quantile_source (the remainder in the last bucket), fixed_rv or pass_rate."""
    gpu_memory_utilization: float = 0.3
    """Accepted; there is no inference server here."""

    def __post_init__(self) -> None:
        check = SettingsCheck(self, "actor_rollout_ref.rollout.")
        check.above_zero("temperature")
        check.at_least(1, "gradient_analysis_num_buckets")
        check.one_of(BUCKET_MODES, "gradient_analysis_bucket_mode")
        _ = self.rollout_filter  # which says what is wrong with it

    @property
    def rollout_filter(self) -> RolloutFilter:
        """The filter that these settings describe."""
        return RolloutFilter(
            strategy=self.rollout_filter_strategy,
            value=self.rollout_filter_value,
            type=self.rollout_filter_type,
            top_p_prob_mode=self.rollout_filter_top_p_prob_mode,
            metric=self.rollout_filter_metric,
            include_zero=self.rollout_filter_include_zero,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorRolloutRefConfig:
    """`actor_rollout_ref.*`."""

    actor: ActorConfig = field(default_factory=ActorConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticConfig:
    """`critic.*`: only for algorithm.adv_estimator=gae."""

    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=1e-3))
    grad_clip: float = 1.0
    """Gradients longer than this are cut to it."""
    cliprange_value: float = 10.0
    """How far a value may leave the old one and still be paid for."""
    ppo_epochs: int = 1
    """Passes over a batch, in mini-batches of the actor's size."""

    def __post_init__(self) -> None:
        check = SettingsCheck(self, "critic.")
        check.at_least(1, "ppo_epochs")
        check.above_zero("grad_clip", "cliprange_value")
        SettingsCheck(self.optim, "critic.optim.").above_zero("lr")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmConfig:
    """`algorithm.*`: from rewards to advantages."""

    adv_estimator: str = "gae"
    """gae (PPO with a critic) or grpo (rewards compared inside a group)."""
    gamma: float = 1.0
    """Discount."""
    lam: float = 0.95
    """Between one-step (0) and Monte-Carlo (1) advantages."""
    norm_adv_by_std_in_grpo: bool = True
    """Whether grpo divides by the group's standard deviation."""

    def __post_init__(self) -> None:
        check = SettingsCheck(self, "algorithm.")
        check.one_of(ADV_ESTIMATORS, "adv_estimator")
        check.between(0, 1, "gamma", "lam")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfigs:
    """`es_manager.*.env_configs.*`."""

    n_groups: list[int] | None = None
    """Groups of each kind of environment; there is one kind here, so [env_groups] or null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvBatchConfig:
    """`es_manager.train.*` and `es_manager.val.*`: a batch of groups of rollouts."""

    env_groups: int = 16
    """Levels."""
    group_size: int = 8
    """Rollouts of each level."""
    env_configs: EnvConfigs = field(default_factory=EnvConfigs)


@dataclass(frozen=True, slots=True, kw_only=True)
class EsManagerConfig:
    """`es_manager.*`: the batches of environments."""

    train: EnvBatchConfig = field(default_factory=EnvBatchConfig)
    val: EnvBatchConfig = field(default_factory=lambda: EnvBatchConfig(env_groups=64, group_size=1))

    def __post_init__(self) -> None:
        for prefix, batch in (("es_manager.train", self.train), ("es_manager.val", self.val)):
            SettingsCheck(batch, f"{prefix}.").at_least(1, "env_groups", "group_size")
            n_groups = batch.env_configs.n_groups
            if n_groups is not None and list(n_groups) != [batch.env_groups]:
                raise UsageError(
                    f"{prefix}.env_configs.n_groups={list(n_groups)} does not fit"
                    f" {prefix}.env_groups={batch.env_groups}: this lab has one kind of"
                    f" environment, use [{batch.env_groups}] or null"
                )
        group_of_two("es_manager.train.group_size", self.train.group_size)


def group_of_two(key: str, size: int) -> None:
    """A group whose rewards are to be compared has at least two rollouts."""
    if size < 2:
        raise UsageError(
            f"{key}={size}: rewards have no variance within a group of one, use 2 or more"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RayInit:
    """`ray_kwargs.ray_init.*`: accepted; this lab does not use Ray."""

    num_cpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RayKwargs:
    """`ray_kwargs.*`."""

    ray_init: RayInit = field(default_factory=RayInit)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemConfig:
    """`system.*`: accepted; device= says where the tensors live."""

    CUDA_VISIBLE_DEVICES: str | None = None
