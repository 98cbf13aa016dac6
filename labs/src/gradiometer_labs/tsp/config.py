"""What the tsp lab can be told; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from gradiometer.errors import UsageError
from gradiometer_labs.config import LabConfig, SettingsCheck, TrainingProgress

__all__ = ["ALGORITHMS", "BASELINES", "REDUCTIONS", "Config", "TrainingProgress"]

ALGORITHMS = ("pomo", "leader_reward", "maxk_pomo")
BASELINES = ("none", "sample_loo", "sample_loo_scaled", "subloo", "hybrid", "hybrid_source")
REDUCTIONS = ("sum", "mean", "source")

MIN_LOC = 4  # three cities have one tour


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LabConfig):
    """What `gradiometer train tsp key=value ...` can change."""

    problem: str = "tsp"
    """What is to be solved: a name of the registry of problems."""
    steps: int = 1_000
    """Updates, each on instances nobody has seen before."""
    batch_size: int = 32
    """Instances of an update."""
    num_loc: int = 20
    """Cities of an instance."""
    num_starts: int | None = None
    """Rollouts of an instance, one from each of its first cities; null is one from every city."""
    algorithm: str = "pomo"
    """How rewards become weights: pomo, leader_reward, maxk_pomo."""
    k: int = 8
    """maxk_pomo: the best of how many rollouts is to be good."""
    baseline: str = "subloo"
    """maxk_pomo: none, sample_loo, sample_loo_scaled, subloo, hybrid or hybrid_source."""
    alpha: float = 1.0
    """leader_reward: how much more the best rollout counts."""
    reduction: str = "sum"
    """Over the rollouts of an instance: sum or mean for every algorithm, or source, a sum for
    maxk_pomo and a mean else."""
    embed_dim: int = 64
    """Width of the model."""
    num_layers: int = 3
    """Layers of the encoder."""
    num_heads: int = 4
    """Heads of each attention; they share the width."""
    learning_rate: float = 5e-4
    """Adam's step size at the start; it falls linearly to zero."""
    max_grad_norm: float | None = None
    """Gradients longer than this are cut to it; null cuts none."""
    val_size: int = 200
    """Instances the trained policy is validated on, greedily; 0 leaves it out."""
    val_every: int | None = None
    """Updates between two validations; null validates at the end only, where there always is
    one."""
    save_every: int = 100
    """Updates between two checkpoints; the last update has one too."""
    resume: str | None = None
    """The last.ckpt of a training to go on with; `steps` counts from its beginning."""

    def __post_init__(self) -> None:
        LabConfig.__post_init__(self)
        check = SettingsCheck(self)
        check.one_of(ALGORITHMS, "algorithm")
        check.one_of(BASELINES, "baseline")
        check.one_of(REDUCTIONS, "reduction")
        counts = ("steps", "batch_size", "embed_dim", "num_layers", "num_heads", "save_every")
        check.at_least(1, *counts, why="leaves nothing to train")
        if self.num_loc < MIN_LOC:
            raise UsageError(
                f"num_loc={self.num_loc} leaves no choice of a tour: use {MIN_LOC} or more"
            )
        if self.num_rollouts < 2:
            raise UsageError(
                f"num_starts={self.num_starts}: rollouts are weighed against each other, use 2 or"
                " more"
            )
        if self.val_size < 0:
            raise UsageError(f"val_size={self.val_size} is negative: use 0 for no validation")
        if self.val_every is not None and self.val_every < 1:
            raise UsageError(
                f"val_every={self.val_every}: use 1 or more, or null to validate at the end only"
            )
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise UsageError(
                f"max_grad_norm={self.max_grad_norm}: use a number above 0, or null to cut nothing"
            )
        if self.start is not None and self.resume is not None:
            raise UsageError("start= and resume= are two places to begin at: give one of them")
        check.shared_by_heads("embed_dim")
        check.from_zero("learning_rate", "alpha")
        if self.algorithm == "maxk_pomo":
            self._check_k()

    def _check_k(self) -> None:
        num_rollouts = f"{self.num_rollouts} rollouts (num_starts, or else num_loc)"
        lowest = 1 if self.baseline in ("none", "sample_loo", "sample_loo_scaled") else 2
        highest = self.num_rollouts - self.baseline.startswith("sample_loo")
        if not lowest <= self.k <= highest:
            raise UsageError(
                f"k={self.k} with baseline={self.baseline} and {num_rollouts}: use {lowest} to"
                f" {highest}"
            )

    @property
    def num_rollouts(self) -> int:
        """Rollouts of one instance: n."""
        return self.num_loc if self.num_starts is None else self.num_starts
