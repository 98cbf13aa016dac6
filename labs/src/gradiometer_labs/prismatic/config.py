"""What the prismatic lab can be told; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from gradiometer.errors import UsageError
from gradiometer_labs.config import LabConfig, SettingsCheck, TrainingProgress

__all__ = ["MERGES", "ROUTER_TYPES", "Config", "TrainingProgress"]

ROUTER_TYPES = ("prismatic", "topk")
MERGES = ("batch", "sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LabConfig):
    """What `gradiometer train prismatic key=value ...` can change."""

    dynamics_db: bool = False
    """Also write dynamics.db into the run's folder while training."""
    steps: int = 1_500
    """Updates, each on text nobody has seen before."""
    batch_size: int = 32
    """Sequences of an update."""
    context: int = 64
    """Characters the model sees of a sequence."""
    prompt: int = 16
    """The first characters of a sequence: they are read and not predicted, and the Prismatic router
    looks at them."""
    router_type: str = "prismatic"
    """prismatic: the experts' weights are merged; topk: each character goes to a few experts."""
    num_experts: int | None = None
    """Experts of a layer; null is 3 for prismatic and 4 for topk."""
    perturbation_scale: float = 1.0
    """prismatic: how far the perturbed weights are moved, as a multiple of their own size."""
    sparsity: float = 0.1
    """prismatic: the share of an expert's weights that is perturbed, half of it the largest and
    half the smallest."""
    merge: str = "batch"
    """prismatic: one merge for the whole batch, or one for each sample."""
    top_k: int = 2
    """topk: experts that a character goes to."""
    aux_coef: float = 0.01
    """topk: weight of the loss that balances the load."""
    num_layers: int = 2
    """Layers, each an attention and a block of experts."""
    width: int = 64
    """Width of the model; an expert's hidden layer is twice as wide."""
    num_heads: int = 4
    """Heads of each attention; they share the width."""
    learning_rate: float = 1e-2
    """AdamW's step size at the start; it falls linearly to zero."""
    max_grad_norm: float = 1.0
    """Gradients longer than this are cut to it."""
    val_size: int = 256
    """Sequences to validate on, nobody trains on them; 0 leaves it out."""
    val_every: int = 100
    """Updates between two validations; the last update has one too."""

    def __post_init__(self) -> None:
        LabConfig.__post_init__(self)
        check = SettingsCheck(self)
        check.one_of(ROUTER_TYPES, "router_type")
        check.one_of(MERGES, "merge")
        check.at_least(1, "steps", "batch_size", "val_every")
        check.at_least(1, "num_layers", "width", "num_heads")
        check.shared_by_heads("width")
        if self.context < 2:
            raise UsageError(
                f"context={self.context} leaves nothing to predict after a prompt: use 2 or more"
            )
        if not 1 <= self.prompt < self.context:
            raise UsageError(
                f"prompt={self.prompt} with context={self.context}: use 1 to {self.context - 1}"
            )
        if self.val_size < 0:
            raise UsageError(f"val_size={self.val_size} is negative: use 0 for no validation")
        check.from_zero("learning_rate", "perturbation_scale", "aux_coef")
        check.above_zero("max_grad_norm", finite=False)
        check.between(0, 1, "sparsity", why="is a share of the weights")
        self._check_experts()

    def _check_experts(self) -> None:
        if self.pool < 2:
            raise UsageError(
                f"num_experts={self.num_experts} leaves a router nothing to choose: use 2 or more"
            )
        if self.router_type == "topk" and not 1 <= self.top_k <= self.pool:
            raise UsageError(f"top_k={self.top_k} of {self.pool} experts: use 1 to {self.pool}")

    @property
    def pool(self) -> int:
        """Experts of a layer: N."""
        if self.num_experts is not None:
            return self.num_experts
        return 3 if self.router_type == "prismatic" else 4
