"""The lines of this training that a fault may change, and the losses that are made of them.

Shapes: N rollouts of T tokens, V words. The loss of a token stands where the token stands; column 0
is never chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gradiometer.maths import losses
from gradiometer_labs.sokoban.advantages import advantages_of, group_advantages, normalised
from gradiometer_labs.sokoban.config import Config, EnvConfig
from gradiometer_labs.sokoban.levels import SokobanLevel
from gradiometer_labs.sokoban.model import value_of
from gradiometer_labs.sokoban.rewards import format_of, verdicts_of, weighed
from gradiometer_labs.sokoban.tokens import Dialogue

if TYPE_CHECKING:
    from gradiometer_labs.sokoban.batches import Batch

__all__ = ["Pieces", "TokenLosses", "log_policy_of", "log_probs_of", "task_losses", "token_losses"]


def levels_of(env: EnvConfig, seeds: Sequence[int]) -> list[SokobanLevel]:
    """The levels to train on, one for each seed."""
    return [env.level(seed) for seed in seeds]


def answer_limit_of(dialogue: Dialogue) -> int:
    """How many tokens an answer may have, its end included."""
    return dialogue.answer_limit


def sampler_logits_of(logits: Tensor, temperature: float) -> Tensor:
    """What the next token is drawn from, [N, V]: the same as the losses take it to be drawn
    from."""
    return logits / temperature


def batch_at(step: int, collect: Callable[[int], Batch]) -> Batch:
    """The rollouts a step trains on: fresh ones."""
    return collect(step)


def labels_of(tokens: Tensor) -> Tensor:
    """The token that was said after each but the last, [N, T] to [N, T - 1]: what the logits are to
    foretell."""
    return tokens[:, 1:]


def value_loss_of(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Half the squared error of each value, or of the value clipped to the old one's neighbourhood,
    the larger; [N, T]."""
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns).square(), (clipped - returns).square())


def learning_rate_at(config: Config, done_fraction: float) -> float:
    """The same from start to end, so that a training that is resumed to run longer goes on as it
    was."""
    return config.actor_rollout_ref.actor.optim.lr


def critic_learning_rate_of(config: Config) -> float:
    """The critic has its own."""
    return config.critic.optim.lr


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Plain functions, each of which may be broken by a fault; see `gradiometer_labs/faults.py`."""

    config: Config
    levels_of: Callable[[EnvConfig, Sequence[int]], list[SokobanLevel]] = levels_of
    answer_limit_of: Callable[[Dialogue], int] = answer_limit_of
    sampler_logits_of: Callable[[Tensor, float], Tensor] = sampler_logits_of
    verdicts_of: Callable[[Tensor], Tensor] = verdicts_of
    format_of: Callable[[Tensor, Tensor, Tensor], Tensor] = format_of
    weighed: Callable[[Mapping[str, Tensor], Mapping[str, float]], dict[str, Tensor]] = weighed
    batch_at: Callable[[int, Callable[[int], Batch]], Batch] = batch_at
    labels_of: Callable[[Tensor], Tensor] = labels_of
    advantages_of: Callable[..., Tensor] = advantages_of
    group_advantages: Callable[..., Tensor] = group_advantages
    normalised: Callable[[Tensor, Tensor], Tensor] = normalised
    entropy_of: Callable[[Tensor], Tensor] = losses.entropy
    policy_loss_of: Callable[..., Tensor] = losses.policy_loss
    kl_loss_of: Callable[..., Tensor] = losses.kl_loss
    value_of: Callable[[Tensor, Tensor, Tensor], Tensor] = value_of
    value_loss_of: Callable[[Tensor, Tensor, Tensor, float], Tensor] = value_loss_of
    learning_rate_at: Callable[[Config, float], float] = learning_rate_at
    critic_learning_rate_of: Callable[[Config], float] = critic_learning_rate_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """What one forward pass says about every token, [N, T] each."""

    terms: dict[str, Tensor]
    """task, entropy, and kl if the loss has it; coefficients applied, so that their sum is the
    loss."""
    log_probs: Tensor
    entropy: Tensor
    kl: Tensor | None


def token_losses(actor: PreTrainedModel, rows: Mapping[str, Tensor], pieces: Pieces) -> TokenLosses:
    """The terms of the actor's loss for each token: what is trained on, and what is analysed."""
    settings = pieces.config.actor_rollout_ref.actor
    logits = _logits(actor, rows["tokens"], pieces.config.actor_rollout_ref.rollout.temperature)
    labels = pieces.labels_of(rows["tokens"])
    # Of tokens that were not chosen, padding above all, an overflow would come back as NaN: 0 · ∞
    log_probs = _placed(losses.token_log_probs(logits, labels)).masked_fill(rows["mask"] == 0, 0.0)
    entropy = _placed(pieces.entropy_of(logits))
    terms = {
        "task": task_losses(log_probs, rows["old_log_probs"], rows["advantages"], pieces),
        "entropy": -settings.entropy_coeff * entropy,
    }
    kl = None
    if settings.use_kl_loss:
        kl = pieces.kl_loss_of(log_probs, rows["ref_log_probs"], settings.kl_loss_type)
        terms["kl"] = settings.kl_loss_coef * kl
    return TokenLosses(terms=terms, log_probs=log_probs, entropy=entropy, kl=kl)


def task_losses(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, pieces: Pieces
) -> Tensor:
    """What is to be gained, [N, T]: the clipped surrogate."""
    settings = pieces.config.actor_rollout_ref.actor
    return pieces.policy_loss_of(
        log_probs,
        old_log_probs,
        advantages,
        clip_low=settings.clip_ratio_low,
        clip_high=settings.clip_ratio_high,
        clip_c=settings.clip_ratio_c,
    )


def log_probs_of(
    actor: PreTrainedModel,
    tokens: Tensor,
    temperature: float,
    labels_of: Callable[[Tensor], Tensor] = labels_of,
) -> Tensor:
    """log π of every token given those before it, [N, T]; column 0 is 0."""
    return _placed(losses.token_log_probs(_logits(actor, tokens, temperature), labels_of(tokens)))


def log_policy_of(actor: PreTrainedModel, tokens: Tensor) -> Tensor:
    """log π of every word after each token but the last, [N, T - 1, V]."""
    return _logits(actor, tokens, 1.0).log_softmax(-1)


def _logits(actor: PreTrainedModel, tokens: Tensor, temperature: float) -> Tensor:
    """What each token was drawn from, [N, T - 1, V]. Padding is on the right, where a causal model
    does not look."""
    logits: Tensor = actor(input_ids=tokens[:, :-1], use_cache=False).logits.float() / temperature
    return logits


def _placed(of_next: Tensor) -> Tensor:
    return nn.functional.pad(of_next, (1, 0))
