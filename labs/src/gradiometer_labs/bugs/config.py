"""What the bugs lab can be told; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from gradiometer.errors import UsageError
from gradiometer_labs.config import LabConfig, SettingsCheck, TrainingProgress

__all__ = ["Config", "TrainingProgress"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LabConfig):
    """What `gradiometer train bugs key=value ...` can change; names are those of TRL, verl and
    NeMo-RL."""

    steps: int = 100
    """Rollouts, each with its updates; 0 ends after the imitation."""
    num_prompts: int = 8
    """Questions of a rollout; the answers to one of them are a group, and a micro-batch."""
    group_size: int = 8
    """Answers to a question."""
    gradient_accumulation_steps: int = 4
    """Micro-batches of an update; a rollout has num_prompts of them."""
    max_digits: int = 4
    """The longest question; each has between one digit and this many."""
    warm_start_steps: int = 250
    """Steps in which a clumsy teacher is imitated before; what comes of it is the reference. Left
    out with start=."""
    clumsiness: float = 0.35
    """How often the teacher gets a digit wrong."""
    learning_rate: float = 1e-3
    """AdamW's step size."""
    clip_coef: float = 0.2
    """How far the probability ratio may leave 1 and still be paid for."""
    kl_coef: float = 0.02
    """Weight of the KL divergence from the reference."""
    entropy_coef: float = 0.002
    """Weight of the entropy bonus."""
    nll_coef: float = 0.0
    """Weight of the likelihood of right answers, 0.1 in VAPO; 0 leaves the term out."""
    max_grad_norm: float = 1.0
    """Gradients longer than this are cut to it."""
    norm_adv_by_std_in_grpo: bool = True
    """Whether advantages are divided by the standard deviation."""
    use_leave_one_out_baseline: bool = False
    """Whether an answer is compared with the others of its group only."""
    num_experts: int = 0
    """Experts of each feed-forward block but the first; 0 is dense."""
    top_k: int = 2
    """Experts that a token goes to."""
    aux_coef: float = 0.0
    """Weight of the loss that balances the experts' load; 0 leaves the term out."""
    num_layers: int = 2
    """Layers, each an attention and a feed-forward block."""
    width: int = 32
    """Width of the model; a feed-forward block is twice as wide inside."""
    num_heads: int = 2
    """Heads of each attention; they share the width."""
    every: int = 2
    """The meter measures one update in this many, and the experts with it."""

    def __post_init__(self) -> None:
        LabConfig.__post_init__(self)
        check = SettingsCheck(self)
        check.at_least(1, "num_prompts", "gradient_accumulation_steps", "max_digits")
        check.at_least(1, "num_layers", "width", "num_heads")
        check.at_least(0, "steps", "warm_start_steps", why="is negative")
        if self.group_size < 2:
            raise UsageError(
                f"group_size={self.group_size} leaves nothing to compare an answer with: use 2 or"
                " more"
            )
        if self.use_leave_one_out_baseline and self.group_size < 3:
            raise UsageError(
                f"group_size={self.group_size} leaves one other, which has no spread: use 3 or more"
            )
        if self.num_prompts % self.gradient_accumulation_steps:
            found = f"num_prompts={self.num_prompts} micro-batches"
            raise UsageError(
                f"gradient_accumulation_steps={self.gradient_accumulation_steps} does not divide"
                f" {found}: use a divisor"
            )
        check.shared_by_heads("width")
        check.from_zero("learning_rate", "clip_coef")
        check.from_zero("kl_coef", "entropy_coef", "nll_coef", "aux_coef")
        check.above_zero("max_grad_norm", finite=False)
        check.between(0, 1, "clumsiness", why="is a share of the digits")
        self._check_experts()

    def _check_experts(self) -> None:
        if self.num_experts == 1 or self.num_experts < 0:
            raise UsageError(
                f"num_experts={self.num_experts}: use 0 for a dense block, or 2 or more"
            )
        if self.num_experts and self.num_layers < 2:
            raise UsageError(
                f"num_experts={self.num_experts} has no layer, the first one is dense: use"
                " num_layers=2 or more"
            )
        if self.num_experts and not 1 <= self.top_k <= self.num_experts:
            raise UsageError(
                f"top_k={self.top_k} of {self.num_experts} experts: use 1 to {self.num_experts}"
            )
        if self.aux_coef and not self.num_experts:
            raise UsageError(
                f"aux_coef={self.aux_coef} balances nothing: there are experts with num_experts=4"
            )

    @property
    def updates(self) -> int:
        """Updates after each rollout."""
        return self.num_prompts // self.gradient_accumulation_steps
