"""Everything that learns, and what it is measured against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gradiometer_labs.sokoban.config import Config
from gradiometer_labs.sokoban.model import Critic, frozen, make_actor, make_critic
from gradiometer_labs.sokoban.tokens import Dialogue
from gradiometer_labs.sokoban.warmstart import warm_start
from gradiometer_labs.weights import load_weights

__all__ = ["Learner", "make_learner", "warm_up"]


@dataclass(slots=True, kw_only=True)
class Learner:
    """Actor and critic with their optimizers, and the reference: the actor as it was before the
    first training step."""

    actor: PreTrainedModel
    actor_optimizer: torch.optim.Optimizer
    reference: PreTrainedModel
    critic: Critic | None
    """None for grpo."""
    critic_optimizer: torch.optim.Optimizer | None
    tokenizer: PreTrainedTokenizerBase
    dialogue: Dialogue
    step: int = 0
    """The last training step that is over."""


def make_learner(config: Config, device: torch.device) -> Learner:
    """One whose weights come from the seed, from model_path or from a file; reference and critic
    start where it does."""
    actor, tokenizer = make_actor(config, device)
    load_weights(actor, config.start)
    critic = make_critic(actor) if config.algorithm.adv_estimator == "gae" else None
    return Learner(
        actor=actor,
        actor_optimizer=_adam(actor, config.actor_rollout_ref.actor.optim.lr),
        reference=frozen(actor),
        critic=critic,
        critic_optimizer=None if critic is None else _adam(critic, config.critic.optim.lr),
        tokenizer=tokenizer,
        dialogue=Dialogue(tokenizer, max_actions=config.env.max_actions_per_turn),
    )


def warm_up(
    learner: Learner, config: Config, progress: Callable[[int], None] | None = None
) -> float | None:
    """Imitate the solver; actor, reference and critic start from there. Returns the last loss, None
    without any step."""
    pupil = frozen(learner.actor).requires_grad_(
        True
    )  # a copy, so that the meter sees the training proper only
    loss = warm_start(pupil, learner.dialogue, config, progress)
    learner.actor.load_state_dict(pupil.state_dict())
    learner.reference.load_state_dict(pupil.state_dict())
    if learner.critic is not None:
        learner.critic.backbone.load_state_dict(pupil.base_model.state_dict())
    return loss


def _adam(model: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
