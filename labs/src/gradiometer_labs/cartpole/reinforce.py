"""REINFORCE (Williams 1992) with a learned baseline: whole episodes, the reward to go, one step for
each batch of them.

Shapes: N episodes side by side, T steps of the longest, B steps of all of them laid end to end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradiometer.maths import scores
from gradiometer_labs.cartpole import evidence, policy
from gradiometer_labs.cartpole.config import Config
from gradiometer_labs.cartpole.model import ActorCritic
from gradiometer_labs.cartpole.setup import Array, Rounds, TrainingSetup

__all__ = [
    "EpisodeBatch",
    "ReinforcePieces",
    "baseline_of",
    "play",
    "reinforce_loss_of",
    "returns_of",
    "rounds",
]


def returns_of(rewards: Tensor, config: Config) -> Tensor:
    """The discounted reward to go, [T, N]: G_t = r_t + γ G_{t+1}; rewards are zero where an episode
    is over."""
    returns = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        returns[t] = following = rewards[t] + config.gamma * following
    return returns


@torch.no_grad()
def baseline_of(model: ActorCritic, observations: Tensor, returns: Tensor) -> Tensor:
    """What is subtracted from the returns, [B]: the critic as it was before it saw them."""
    return model.values(observations)


def reinforce_loss_of(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """-E[log π(a|s) Â]."""
    return -(log_probs * advantages).mean()


@dataclass(frozen=True, kw_only=True)
class ReinforcePieces(policy.PolicyPieces):
    """The lines of REINFORCE that a fault may change."""

    returns_of: Callable[[Tensor, Config], Tensor] = returns_of
    baseline_of: Callable[[ActorCritic, Tensor, Tensor], Tensor] = baseline_of
    reinforce_loss_of: Callable[[Tensor, Tensor], Tensor] = reinforce_loss_of


@dataclass(frozen=True, slots=True)
class EpisodeBatch:
    """Whole episodes of one policy, laid end to end: [B], observations [B, 4]."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    returns: Tensor
    earned: Tensor
    """From the environment's own rewards."""
    readings: dict[str, float] = field(kw_only=True)
    """What the samples and targets say about themselves."""


@torch.no_grad()
def play(
    setup: TrainingSetup[ActorCritic], observation: Array, pieces: ReinforcePieces
) -> tuple[EpisodeBatch, Array]:
    """One episode of each environment, and the observations the next ones start from."""
    config, envs = pieces.config, setup.envs.envs
    steps: list[tuple[Tensor, ...]] = []
    alive = np.ones(len(envs), dtype=bool)
    while alive.any():
        observed = pieces.observed(observation, setup.device)
        logits = setup.model.logits(observed)
        actions = pieces.sample(logits.log_softmax(-1))
        observation, reward = observation.copy(), np.zeros(len(envs), dtype=np.float32)
        ended, cut = np.zeros_like(alive), np.zeros_like(alive)
        for env in np.flatnonzero(alive):
            observation[env], reward[env], ended[env], cut[env], _ = envs[env].step(
                int(actions[env])
            )
        outcome = [
            torch.as_tensor(each, device=setup.device)
            for each in (reward, ended, ended | cut, alive)
        ]
        steps.append((observed, logits, actions, *outcome))
        alive = alive & ~ended & ~cut
    stacked = [torch.stack(column) for column in zip(*steps, strict=True)]
    observations, logits, chosen, rewards, terminations, dones, lived = stacked
    setup.episodes.returns += rewards.sum(0).tolist()
    setup.episodes.lengths += lived.sum(0).tolist()

    log_probs = pieces.log_prob_of(logits.log_softmax(-1), chosen)
    values = setup.model.values(observations)
    returns = pieces.returns_of(pieces.scaled(rewards, config), config)
    earned = evidence.earned(
        rewards, terminations, dones, gamma=config.gamma, longest=config.max_reward
    )
    columns = (observations, chosen, log_probs, values, returns, earned)
    readings = {
        "action_share": evidence.action_share(chosen[lived]),
        "score_z": evidence.sampling_z(
            pieces.log_prob_of, logits[lived], chosen[lived], observations[lived]
        ),
        **evidence.end_correlation(returns, rewards, terminations, dones),
    }
    fresh = np.stack([env.reset()[0] for env in envs])
    return EpisodeBatch(*(each[lived] for each in columns), readings=readings), fresh


def update(
    setup: TrainingSetup[ActorCritic], batch: EpisodeBatch, pieces: ReinforcePieces
) -> dict[str, Any]:
    """One optimizer step on all episodes; returns what to log."""
    config, model = pieces.config, setup.model
    baseline = pieces.baseline_of(model, batch.observations, batch.returns)
    advantages = pieces.normalised(batch.returns - baseline)
    logits, values = model(batch.observations)
    log_probs = pieces.log_prob_of(logits.log_softmax(-1), batch.actions)

    policy_loss = pieces.reinforce_loss_of(log_probs, advantages)
    value_loss = pieces.value_loss_of(values, batch.returns)
    entropy = pieces.entropy_of(logits).mean()
    terms: dict[str, Any] = {
        "policy": policy_loss,
        "entropy": -config.ent_coef * entropy,
        "value": config.vf_coef * value_loss,
    }
    setup.optimizer.zero_grad()
    with setup.meter.terms(**terms) as loss:  # their sum
        loss.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
    if norm.isfinite():
        setup.optimizer.step()
    return {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": float(entropy.detach()),
        "advantages": advantages,
        "explained_variance": policy.explained_variance(baseline, batch.returns),
        "explained_variance_before": policy.explained_variance(batch.values, batch.returns),
    }


def rounds(setup: TrainingSetup[ActorCritic], pieces: ReinforcePieces) -> Rounds:
    """Play a batch of episodes, make one step, and again."""
    config, observation, env_steps, number = pieces.config, setup.observation, 0, 0
    while env_steps < config.total_steps:
        learning_rate = pieces.learning_rate_at(config, env_steps / config.total_steps)
        setup.optimizer.param_groups[0]["lr"] = learning_rate
        batch, observation = play(setup, observation, pieces)
        env_steps += len(batch.actions)
        setup.meter.at(env_steps=env_steps, rollout=number)
        number += 1
        logged = update(setup, batch, pieces)
        yield (
            env_steps,
            logged | summary(setup.model, batch, pieces) | {"learning_rate": learning_rate},
        )


@torch.no_grad()
def summary(model: ActorCritic, batch: EpisodeBatch, pieces: ReinforcePieces) -> dict[str, Any]:
    """What to log of a batch and of what the step on it did."""
    after = pieces.log_prob_of(model.logits(batch.observations).log_softmax(-1), batch.actions)
    log_ratio = after - batch.log_probs
    ratio_off = log_ratio.expm1()
    return batch.readings | {
        "approx_kl": (ratio_off - log_ratio).mean(),
        "ratio": log_ratio.exp(),
        "value_mean": batch.values.mean(),
        "returns": batch.returns,
        "observation": batch.observations,
        "reward_gain": scores.reward_gain(batch.earned, log_ratio),
    }
