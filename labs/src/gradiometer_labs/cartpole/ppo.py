"""PPO (Schulman et al. 2017): read it from top to bottom.

Shapes: T steps of a rollout, N environments, B = T·N transitions, M of them in a minibatch.
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
    "PpoPieces",
    "PpoRollout",
    "advantages_of",
    "collect",
    "policy_loss_of",
    "rounds",
    "update",
]


def advantages_of(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    done: Tensor,
    config: Config,
) -> Tensor:
    """Generalised advantage estimates (Schulman et al. 2016), all [T, N]."""
    # δ_t = r_t + γ V(s_{t+1}) (1 - terminated_t) - V(s_t);  Â_t = δ_t + γ λ (1 - done_t) Â_{t+1}
    delta = rewards + config.gamma * next_values * ~terminated - values
    carry = config.gamma * config.gae_lambda * ~done
    advantages = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        advantages[t] = following = delta[t] + carry[t] * following
    return advantages


def policy_loss_of(log_ratio: Tensor, advantages: Tensor, clip_coef: float) -> Tensor:
    """The clipped surrogate: -E[min(ρ Â, clip(ρ, 1 - ε, 1 + ε) Â)]."""
    ratio = log_ratio.exp()
    return -torch.min(
        ratio * advantages, ratio.clamp(1 - clip_coef, 1 + clip_coef) * advantages
    ).mean()


def divided(loss: Tensor, parts: int) -> Tensor:
    """The part of one micro-batch in the mean over the minibatch."""
    return loss / parts


def clip(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    max_norm: float,
) -> Tensor:
    """Cut the gradient to `max_norm`, once the loss scale is out of it; returns its norm before."""
    scaler.unscale_(optimizer)
    return nn.utils.clip_grad_norm_(model.parameters(), max_norm)


@dataclass(frozen=True, slots=True)
class PpoRollout:
    """What the old policy did, time and environments laid end to end: [B], observations [B, 4]."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    earned: Tensor
    """From the environment's own rewards, whatever the critic says."""
    readings: dict[str, float] = field(kw_only=True)
    """What the old policy's samples and targets say about themselves."""


@torch.no_grad()
def collect(
    setup: TrainingSetup[ActorCritic], observation: Array, pieces: PpoPieces
) -> tuple[PpoRollout, Array]:
    """A rollout of T steps, and the observation the next one starts from."""
    config, device, model = pieces.config, setup.device, setup.model
    steps: list[tuple[Tensor, ...]] = []
    for _ in range(config.num_steps):
        observed = pieces.observed(observation, device)
        logits = model.logits(observed)
        action = pieces.sample(logits.log_softmax(-1))
        observation, reward, terminated, truncated, info = setup.envs.step(action.cpu().numpy())
        done = terminated | truncated
        # An ended environment has been reset already: the state its last action led to is in
        # final_obs
        successor = observation.copy()
        if done.any():
            successor[done] = np.stack(info["final_obs"][done])
        outcome = [
            torch.as_tensor(each, device=device)
            for each in (reward.astype(np.float32), terminated, done)
        ]
        steps.append((observed, logits, action, pieces.observed(successor, device), *outcome))
        setup.episodes.add(reward, done)
    stacked = [torch.stack(column) for column in zip(*steps, strict=True)]
    observations, logits, actions, successors, rewards, terminations, dones = stacked
    log_probs = pieces.log_prob_of(logits.log_softmax(-1), actions)
    values, next_values = model.values(observations), model.values(successors)
    advantages = pieces.advantages_of(
        pieces.scaled(rewards, config), values, next_values, terminations, dones, config
    )
    returns = advantages + values
    earned = evidence.earned(
        rewards, terminations, dones, gamma=config.gamma, longest=config.max_reward
    )
    columns = (observations, actions, log_probs, values, advantages, returns, earned)
    readings = {
        "action_share": evidence.action_share(actions),
        "score_z": evidence.sampling_z(pieces.log_prob_of, logits, actions, observations),
        **evidence.end_correlation(returns, rewards, terminations, dones),
    }
    return PpoRollout(*(each.flatten(0, 1) for each in columns), readings=readings), observation


@dataclass(frozen=True, kw_only=True)
class PpoPieces(policy.PolicyPieces):
    """The lines of PPO that a fault may change."""

    collect: Callable[..., tuple[PpoRollout, Array]] = collect
    advantages_of: Callable[..., Tensor] = advantages_of
    policy_loss_of: Callable[[Tensor, Tensor, float], Tensor] = policy_loss_of
    divided: Callable[[Tensor, int], Tensor] = divided
    clip: Callable[..., Tensor] = clip


def losses(
    model: ActorCritic, rollout: PpoRollout, index: Tensor, advantages: Tensor, pieces: PpoPieces
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The terms of the loss on the samples `index`, and what to log of them."""
    config = pieces.config
    logits, values = model(rollout.observations[index])
    log_probs = pieces.log_prob_of(logits.log_softmax(-1), rollout.actions[index])
    log_ratio = log_probs - rollout.log_probs[index]

    policy_loss = pieces.policy_loss_of(log_ratio, advantages, config.clip_coef)
    value_loss = pieces.value_loss_of(values, rollout.returns[index])
    entropy = pieces.entropy_of(logits).mean()
    terms = {
        "policy": policy_loss,
        "entropy": -config.ent_coef * entropy,
        "value": config.vf_coef * value_loss,
    }
    ratio_off = log_ratio.detach().expm1()
    return terms, {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
        "approx_kl": (ratio_off - log_ratio.detach()).mean(),
        "clip_fraction": (ratio_off.abs() > config.clip_coef).float().mean(),
    }


def update(
    setup: TrainingSetup[ActorCritic],
    scaler: torch.amp.GradScaler,
    rollout: PpoRollout,
    index: Tensor,
    pieces: PpoPieces,
) -> list[dict[str, Tensor]]:
    """One optimizer step on the minibatch `index`, [M]; returns what to log of each of its
    micro-batches."""
    config, parts = pieces.config, pieces.config.accumulate
    advantages = pieces.normalised(rollout.advantages[index])
    logged: list[dict[str, Tensor]] = []
    setup.optimizer.zero_grad()
    for part, part_advantages in zip(
        index.tensor_split(parts), advantages.tensor_split(parts), strict=True
    ):
        terms, seen = losses(setup.model, rollout, part, part_advantages, pieces)
        with setup.meter.terms(**terms) as loss:  # their sum
            scaler.scale(pieces.divided(loss, parts)).backward()  # type: ignore[no-untyped-call]
        logged.append(seen)
    norm = pieces.clip(setup.model, setup.optimizer, scaler, config.max_grad_norm)
    if (
        scaler.is_enabled() or norm.isfinite()
    ):  # a scaler skips the others by itself, and lowers its scale
        scaler.step(setup.optimizer)
    scaler.update()
    return logged


def rounds(setup: TrainingSetup[ActorCritic], pieces: PpoPieces) -> Rounds:
    """Collect, train on it for some epochs, and again."""
    config, meter = pieces.config, setup.meter
    scaler = torch.amp.GradScaler(setup.device.type, enabled=config.amp)
    observation = setup.observation
    num_rollouts = config.total_steps // config.batch_size
    for number in range(num_rollouts):
        learning_rate = pieces.learning_rate_at(config, number / num_rollouts)
        setup.optimizer.param_groups[0]["lr"] = learning_rate
        rollout, observation = pieces.collect(setup, observation, pieces)
        fresh = evidence.staleness(log_ratio_of(setup.model, rollout, pieces))
        env_steps = (number + 1) * config.batch_size
        updates: list[dict[str, Tensor]] = []
        for epoch in range(config.update_epochs):
            meter.at(env_steps=env_steps, rollout=number, epoch=epoch)
            order = torch.randperm(config.batch_size, device=setup.device)
            for index in order.tensor_split(config.num_minibatches):
                updates += update(setup, scaler, rollout, index, pieces)
        means = {
            name: float(torch.stack([each[name] for each in updates]).mean()) for name in updates[0]
        }
        settings = {"learning_rate": learning_rate} | (
            {"loss_scale": scaler.get_scale()} if config.amp else {}
        )
        yield env_steps, means | fresh | summary(setup.model, rollout, pieces) | settings


@torch.no_grad()
def log_ratio_of(model: ActorCritic, rollout: PpoRollout, pieces: PpoPieces) -> Tensor:
    """How far the policy is from the one that collected, on all its samples: log π − log π_old,
    [B]."""
    log_policy = model.logits(rollout.observations).log_softmax(-1)
    return pieces.log_prob_of(log_policy, rollout.actions) - rollout.log_probs


@torch.no_grad()
def summary(model: ActorCritic, rollout: PpoRollout, pieces: PpoPieces) -> dict[str, Any]:
    """What to log of a rollout and of what the updates on it did."""
    log_ratio = log_ratio_of(model, rollout, pieces)
    return rollout.readings | {
        "explained_variance": policy.explained_variance(rollout.values, rollout.returns),
        "value_mean": rollout.values.mean(),
        "returns": rollout.returns,
        "advantages": pieces.normalised(rollout.advantages),
        "observation": rollout.observations,
        "ratio": log_ratio.exp(),
        "reward_gain": scores.reward_gain(rollout.earned, log_ratio),
    }
