"""What the prismatic lab can be told; torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradiometer.errors import UnknownName, UsageError
from gradiometer.labs.config import LabConfig, Progress
from gradiometer.metrics import TIERS

__all__ = ["MERGES", "ROUTER_TYPES", "Config", "Progress"]

ROUTER_TYPES = ("prismatic", "topk")
MERGES = ("batch", "sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LabConfig):
    """What `gradiometer train prismatic key=value ...` can change."""

    steps: int = 1_500
    """Updates, each on text nobody has seen before."""
    batch_size: int = 32
    """Sequences of an update."""
    context: int = 64
    """Characters the model sees of a sequence."""
    prompt: int = 16
    """The first characters of a sequence: they are read and not predicted, and the Prismatic router looks at them."""
    router_type: str = "prismatic"
    """prismatic: the experts' weights are merged; topk: each character goes to a few experts."""
    num_experts: int | None = None
    """Experts of a layer; null is 3 for prismatic and 4 for topk."""
    perturbation_scale: float = 1.0
    """prismatic: how far the perturbed weights are moved, as a multiple of their own size."""
    sparsity: float = 0.1
    """prismatic: the share of an expert's weights that is perturbed, half of it the largest and half the smallest."""
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
    every: int = 10
    """The meter measures one update in this many, and the experts with it."""
    tier: str = "standard"
    """How much the meter measures: light, standard or deep."""

    def __post_init__(self) -> None:
        LabConfig.__post_init__(self)
        for name, known in (("router_type", ROUTER_TYPES), ("merge", MERGES), ("tier", TIERS)):
            if getattr(self, name) not in known:
                raise UnknownName(name, getattr(self, name), known, hint=f"There is: {', '.join(known)}.")
        for name in ("steps", "batch_size", "num_layers", "width", "num_heads", "val_every", "every"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)}: use 1 or more")
        if self.width % self.num_heads:
            raise UsageError(f"width={self.width} cannot be shared by num_heads={self.num_heads}: use a multiple")
        if self.context < 2:
            raise UsageError(f"context={self.context} leaves nothing to predict after a prompt: use 2 or more")
        if not 1 <= self.prompt < self.context:
            raise UsageError(f"prompt={self.prompt} with context={self.context}: use 1 to {self.context - 1}")
        if self.val_size < 0:
            raise UsageError(f"val_size={self.val_size} is negative: use 0 for no validation")
        for name in ("learning_rate", "perturbation_scale", "aux_coef"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name}={getattr(self, name)}: use a number from 0 up")
        if not self.max_grad_norm > 0:
            raise UsageError(f"max_grad_norm={self.max_grad_norm}: use a number above 0")
        if not 0 <= self.sparsity <= 1:
            raise UsageError(f"sparsity={self.sparsity} is a share of the weights: use 0 to 1")
        self._check_experts()

    def _check_experts(self) -> None:
        if self.pool < 2:
            raise UsageError(f"num_experts={self.num_experts} leaves a router nothing to choose: use 2 or more")
        if self.router_type == "topk" and not 1 <= self.top_k <= self.pool:
            raise UsageError(f"top_k={self.top_k} of {self.pool} experts: use 1 to {self.pool}")

    @property
    def pool(self) -> int:
        """Experts of a layer: N."""
        if self.num_experts is not None:
            return self.num_experts
        return 3 if self.router_type == "prismatic" else 4
