"""PPO (Schulman et al. 2017) on CartPole-v1, watched by a meter: read it from top to bottom.

Shapes: T steps of a rollout, N environments, B = T·N transitions, M of them in a minibatch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

import gradiometer as gm
from gradiometer.capture.settings import Tier
from gradiometer.labs import faults
from gradiometer.labs.cartpole.config import Config, Progress
from gradiometer.labs.config import torch_device
from gradiometer.labs.episodes import Episodes

Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["ActorCritic", "Config", "Pieces", "Progress", "Result", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How the training ended."""

    mean_return: float
    """Over the last 100 episodes."""
    episodes: int
    env_steps: int
    entropy: float
    """Of the policy on the last rollout, in nats."""
    run: Path | None
    model: ActorCritic


class ActorCritic(nn.Module):
    """Two networks that share nothing, so that a gradient in one can be laid at its own loss."""

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        self.actor = mlp(num_inputs, num_actions, gain=0.01)
        self.critic = mlp(num_inputs, 1, gain=1.0)


def mlp(num_inputs: int, num_outputs: int, *, gain: float) -> nn.Sequential:
    """Two tanh layers of 64; a small last `gain` starts the policy uniform."""
    layers = [nn.Linear(num_inputs, 64), nn.Linear(64, 64), nn.Linear(64, num_outputs)]
    for layer, layer_gain in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, layer_gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def advantages_of(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, done: Tensor, config: Config
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


def normalised(advantages: Tensor) -> Tensor:
    """Mean zero, standard deviation one over the minibatch, [M]."""
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def entropy_of(logits: Tensor) -> Tensor:
    """H = -Σ_a π(a) log π(a) in nats, [M, A] -> [M]."""
    log_probs = logits.log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def policy_loss_of(log_ratio: Tensor, advantages: Tensor, clip_coef: float) -> Tensor:
    """The clipped surrogate: -E[min(ρ Â, clip(ρ, 1 - ε, 1 + ε) Â)]."""
    ratio = log_ratio.exp()
    return -torch.min(ratio * advantages, ratio.clamp(1 - clip_coef, 1 + clip_coef) * advantages).mean()


def value_loss_of(values: Tensor, returns: Tensor) -> Tensor:
    """Half the mean squared error of the critic."""
    return 0.5 * (values - returns).square().mean()


def learning_rate_at(config: Config, done_fraction: float) -> float:
    """Linear from `learning_rate` to zero."""
    return config.learning_rate * (1 - done_fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The lines of this training that a fault may change; see `labs/faults.py`."""

    config: Config
    advantages_of: Callable[..., Tensor] = advantages_of
    normalised: Callable[[Tensor], Tensor] = normalised
    entropy_of: Callable[[Tensor], Tensor] = entropy_of
    policy_loss_of: Callable[[Tensor, Tensor, float], Tensor] = policy_loss_of
    value_loss_of: Callable[[Tensor, Tensor], Tensor] = value_loss_of
    learning_rate_at: Callable[[Config, float], float] = learning_rate_at


@dataclass(frozen=True, slots=True)
class Rollout:
    """What the old policy did, time and environments laid end to end: [B], observations [B, 4]."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


@torch.no_grad()
def collect(
    envs: SyncVectorEnv[Any, Any], model: ActorCritic, observation: Array, episodes: Episodes, pieces: Pieces
) -> tuple[Rollout, Array]:
    """A rollout of T steps, and the observation the next one starts from."""
    config, device = pieces.config, next(model.parameters()).device
    steps: list[tuple[Tensor, ...]] = []
    for _ in range(config.num_steps):
        observed = torch.as_tensor(observation, device=device)
        log_policy = model.actor(observed).log_softmax(-1)
        action = torch.multinomial(log_policy.exp(), 1)
        log_prob = log_policy.gather(-1, action).squeeze(-1)
        observation, reward, terminated, truncated, info = envs.step(action.squeeze(-1).cpu().numpy())
        done = terminated | truncated
        # An ended environment has been reset already: the state its last action led to is in final_obs
        successor = observation.copy()
        if done.any():
            successor[done] = np.stack(info["final_obs"][done])
        outcome = (reward.astype(np.float32), successor, terminated, done)
        seen = [torch.as_tensor(array, device=device) for array in outcome]
        steps.append((observed, action.squeeze(-1), log_prob, *seen))
        episodes.add(reward, done)
    stacked = [torch.stack(column) for column in zip(*steps, strict=True)]
    observations, actions, log_probs, rewards, successors, terminations, dones = stacked
    values, next_values = model.critic(observations).squeeze(-1), model.critic(successors).squeeze(-1)
    scaled = config.reward_scale * rewards
    advantages = pieces.advantages_of(scaled, values, next_values, terminations, dones, config)
    returns = advantages + values
    flat = [each.flatten(0, 1) for each in (observations, actions, log_probs, values, advantages, returns)]
    return Rollout(*flat), observation


def update(
    model: ActorCritic,
    optimizer: torch.optim.Optimizer,
    meter: gm.Meter,
    rollout: Rollout,
    index: Tensor,
    pieces: Pieces,
) -> dict[str, Tensor]:
    """One optimizer step on the minibatch `index`, [M]; returns what to log."""
    config = pieces.config
    logits = model.actor(rollout.observations[index])
    values = model.critic(rollout.observations[index]).squeeze(-1)
    log_probs = logits.log_softmax(-1).gather(-1, rollout.actions[index].unsqueeze(-1)).squeeze(-1)
    log_ratio = log_probs - rollout.log_probs[index]

    policy_loss = pieces.policy_loss_of(log_ratio, pieces.normalised(rollout.advantages[index]), config.clip_coef)
    value_loss = pieces.value_loss_of(values, rollout.returns[index])
    entropy = pieces.entropy_of(logits).mean()
    terms: dict[str, Any] = {
        "policy": policy_loss,
        "entropy": -config.ent_coef * entropy,
        "value": config.vf_coef * value_loss,
    }

    optimizer.zero_grad()
    with meter.terms(**terms) as loss:  # their sum
        loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
    optimizer.step()

    ratio_off = log_ratio.detach().expm1()
    return {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
        "approx_kl": (ratio_off - log_ratio.detach()).mean(),
        "clip_fraction": (ratio_off.abs() > config.clip_coef).float().mean(),
    }


def train(config: Config, progress: Callable[[Progress], None] | None = None) -> Result:
    """Train from scratch; all that is random comes from `config.seed`."""
    pieces = faults.apply(config.fault, "cartpole", Pieces(config=config))
    config, device = pieces.config, torch_device(config.device)
    torch.manual_seed(config.seed)
    model = ActorCritic(num_inputs=4, num_actions=2).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate, eps=1e-5)
    envs = SyncVectorEnv([make_env] * config.num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    # seed, seed + 1, ... would give neighbouring seeds nearly the same environments
    observation, _ = envs.reset(seed=np.random.SeedSequence(config.seed).generate_state(config.num_envs).tolist())
    episodes = Episodes(config.num_envs)
    num_rollouts = config.total_steps // config.batch_size
    with closing(envs), watched(model, optimizer, config) as meter:
        for number in range(num_rollouts):
            learning_rate = pieces.learning_rate_at(config, number / num_rollouts)
            optimizer.param_groups[0]["lr"] = learning_rate
            rollout, observation = collect(envs, model, observation, episodes, pieces)
            env_steps = (number + 1) * config.batch_size
            updates: list[dict[str, Tensor]] = []
            for epoch in range(config.update_epochs):
                meter.at(env_steps=env_steps, rollout=number, epoch=epoch)
                minibatches = torch.randperm(config.batch_size, device=device).tensor_split(config.num_minibatches)
                updates += [update(model, optimizer, meter, rollout, index, pieces) for index in minibatches]
            means = {name: float(torch.stack([each[name] for each in updates]).mean()) for name in updates[0]}
            unexplained = float((rollout.returns - rollout.values).var() / rollout.returns.var())
            meter.log(**means, **episodes.news(), explained_variance=1 - unexplained, learning_rate=learning_rate)
            if progress is not None:
                progress(Progress(done=env_steps, total=config.total_steps, mean_return=episodes.mean_return))
    return Result(
        mean_return=episodes.mean_return,
        episodes=len(episodes.returns),
        env_steps=env_steps,
        entropy=means["entropy"],
        run=meter.run,
        model=model,
    )


def make_env() -> gymnasium.Env[Any, Any]:
    """One pole; its episodes are cut off at 500 steps."""
    return gymnasium.make("CartPole-v1")


def watched(model: ActorCritic, optimizer: torch.optim.Optimizer, config: Config) -> gm.Meter:
    """The instrument around this training."""
    return gm.watch(
        model,
        optimizer,
        run=config.run,
        every=config.every,
        budget=None,  # the same steps on every machine
        tier=cast(Tier, config.tier),
        blocks={"actor": "^actor", "critic": "^critic"},
        config=dataclasses.asdict(config),
        seed=config.seed,
    )
