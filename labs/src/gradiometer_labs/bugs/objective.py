"""The lines of the objective, each a function of its own.

    L = [ Σ_it -min(ρ_it Â_i, clip(ρ_it) Â_i) + β k3_it - c H_it + μ (N/M) nll_it ] / N

with ρ = π/π_old, over the N tokens of the micro-batches of an update, nll over the M of them that
belong to right answers. Shapes: P groups of G answers of A tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradiometer_labs.bugs.config import Config

__all__ = [
    "Counts",
    "advantages_of",
    "backward",
    "clipped",
    "entropy_of",
    "group_statistics_of",
    "k3_of",
    "log_softmax",
    "log_weights_of",
    "nll_scale_of",
    "normaliser_of",
    "others_statistics_of",
    "sampled_log_probs_of",
    "train_data_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Tokens of the micro-batch at hand, [], of each one of its update, and of each one of the
    rollout."""

    micro: Tensor
    update: Tensor
    rollout: Tensor


def group_statistics_of(rewards: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each group, [P, G] -> [P, 1] twice."""
    return rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True)


def others_statistics_of(rewards: Tensor) -> tuple[Tensor, Tensor]:
    """For each answer the mean and standard deviation of the others in its group, [P, G] -> [P, G]
    twice."""
    size = rewards.shape[1]
    others = ~torch.eye(size, dtype=torch.bool, device=rewards.device)
    left = rewards.unsqueeze(1).expand(-1, size, -1)[:, others].view(-1, size, size - 1)
    return left.mean(-1), left.std(-1)


def advantages_of(rewards: Tensor, statistics: tuple[Tensor, Tensor], config: Config) -> Tensor:
    """How much better an answer is than its baseline, in standard deviations; as it is where the
    others are all the same."""
    baseline, std = statistics
    gained = rewards - baseline
    if not config.norm_adv_by_std_in_grpo:
        return gained
    if config.use_leave_one_out_baseline:
        return torch.where(std > 0, gained / (std + 1e-6), gained)
    return gained / (std + 1e-4)


def log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities of the tokens, [..., V]."""
    return logits.log_softmax(-1)


def sampled_log_probs_of(log_policy: Tensor, tokens: Tensor) -> Tensor:
    """What the sampler says of the tokens it drew, [..., V] and [...] -> [...]."""
    return log_policy.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def log_weights_of(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """log ρ, token by token."""
    return log_probs - old_log_probs


def clipped(log_weights: Tensor, advantages: Tensor, clip_coef: float) -> Tensor:
    """PPO's pessimistic surrogate as a loss, token by token: -min(ρ Â, clip(ρ, 1 - ε, 1 + ε) Â)."""
    weights = log_weights.exp()
    return -torch.min(
        weights * advantages, weights.clamp(1 - clip_coef, 1 + clip_coef) * advantages
    )


def entropy_of(log_policy: Tensor) -> Tensor:
    """H = -Σ_a π(a) log π(a) in nats, [..., V] -> [...]."""
    return -(log_policy.exp() * log_policy).sum(-1)


def k3_of(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Schulman's estimate of the KL divergence from the reference, token by token."""
    log_ratio = ref_log_probs - log_probs
    return log_ratio.exp() - log_ratio - 1


def normaliser_of(tokens: Counts) -> Tensor:
    """What sums over tokens are divided by: the tokens of the update, so that each of them counts
    the same."""
    return tokens.update.sum()


def nll_scale_of(tokens: Counts, right: Counts) -> Tensor:
    """N/M, which turns a division by all N tokens of the update into one by the M of right
    answers."""
    return tokens.update.sum() / right.update.sum().clamp(min=1)


def train_data_of(
    *,
    tokens: Tensor,
    mask: Tensor,
    advantages: Tensor,
    old_log_probs: Tensor,
    ref_log_probs: Tensor,
    rewards: Tensor,
) -> dict[str, Tensor]:
    """What the loss may look at, a row for each answer."""
    return {
        "tokens": tokens,
        "mask": mask,
        "advantages": advantages,
        "old_log_probs": old_log_probs,
        "ref_log_probs": ref_log_probs,
        "rewards": rewards,
    }


def backward(loss: Tensor, config: Config) -> None:
    """A micro-batch's part of the gradient: its sums are divided by the tokens of the whole update
    already."""
    loss.backward()  # type: ignore[no-untyped-call]
