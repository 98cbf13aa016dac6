"""What the tsp lab can be told; torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradiometer.errors import UnknownName, UsageError
from gradiometer.labs.config import LabConfig, Progress

__all__ = ["ALGORITHMS", "BASELINES", "REDUCTIONS", "Config", "Progress"]

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
    """Over the rollouts of an instance: sum or mean for every algorithm, or source, a sum for maxk_pomo and a mean else."""
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
    """Updates between two validations; null validates at the end only, where there always is one."""
    save_every: int = 100
    """Updates between two checkpoints; the last update has one too."""
    resume: str | None = None
    """The last.ckpt of a training to go on with; `steps` counts from its beginning."""
    every: int = 10
    """The meter measures one update in this many."""
    tier: str = "standard"
    """How much the meter measures: light or standard."""

    def __post_init__(self) -> None:
        LabConfig.__post_init__(self)
        for name, known in (("algorithm", ALGORITHMS), ("baseline", BASELINES), ("reduction", REDUCTIONS)):
            if getattr(self, name) not in known:
                raise UnknownName(name, getattr(self, name), known, hint=f"There is: {', '.join(known)}.")
        for name in ("steps", "batch_size", "embed_dim", "num_layers", "num_heads", "save_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} leaves nothing to train: use 1 or more")
        if self.num_loc < MIN_LOC:
            raise UsageError(f"num_loc={self.num_loc} leaves no choice of a tour: use {MIN_LOC} or more")
        if self.num_rollouts < 2:
            raise UsageError(f"num_starts={self.num_starts}: rollouts are weighed against each other, use 2 or more")
        if self.val_size < 0:
            raise UsageError(f"val_size={self.val_size} is negative: use 0 for no validation")
        if self.val_every is not None and self.val_every < 1:
            raise UsageError(f"val_every={self.val_every}: use 1 or more, or null to validate at the end only")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise UsageError(f"max_grad_norm={self.max_grad_norm}: use a number above 0, or null to cut nothing")
        if self.start is not None and self.resume is not None:
            raise UsageError("start= and resume= are two places to begin at: give one of them")
        if self.embed_dim % self.num_heads:
            raise UsageError(
                f"embed_dim={self.embed_dim} cannot be shared by num_heads={self.num_heads}: use a multiple"
            )
        for name in ("learning_rate", "alpha"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name}={getattr(self, name)}: use a number from 0 up")
        if self.algorithm == "maxk_pomo":
            self._check_k()

    def _check_k(self) -> None:
        num_rollouts = f"{self.num_rollouts} rollouts (num_starts, or else num_loc)"
        lowest = 1 if self.baseline in ("none", "sample_loo", "sample_loo_scaled") else 2
        highest = self.num_rollouts - self.baseline.startswith("sample_loo")
        if not lowest <= self.k <= highest:
            raise UsageError(f"k={self.k} with baseline={self.baseline} and {num_rollouts}: use {lowest} to {highest}")

    @property
    def num_rollouts(self) -> int:
        """Rollouts of one instance: n."""
        return self.num_loc if self.num_starts is None else self.num_starts
