"""SAC (Haarnoja et al. 2018) on Pendulum-v1, watched by a meter: read it from top to bottom.

Shapes: N environments, B transitions of an update; observations [., 3], actions [., 1]. A policy is
the mean and the log standard deviation of a Gaussian; u is a sample of it and tanh(u) the action,
in (-1, 1).
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

import gradiometer as gm
from gradiometer_labs import faults
from gradiometer_labs.config import torch_device
from gradiometer_labs.control import CONTROL_SEED, ControlRewards
from gradiometer_labs.episodes import Episodes, return_of
from gradiometer_labs.pendulum import measure
from gradiometer_labs.pendulum.config import EPISODE, Config, TrainingProgress
from gradiometer_labs.pendulum.model import (
    LogProb,
    Policy,
    SacModel,
    TwinCritic,
    init_hidden_,
    log_prob_of,
)
from gradiometer_labs.replay import Replay
from gradiometer_labs.watching import watched
from gradiometer_labs.weights import load_weights

Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Config", "Pieces", "Result", "SacBatch", "SacModel", "TrainingProgress", "train"]

TORQUE = 2.0
"""Of the action 1."""
SPEED = 8.0
"""The largest angular velocity, which is the third number of an observation; the others are a
cosine and a sine."""
LATEST = 20
"""Episodes that a mean return is over: by the next 20 the policy is another one."""


@dataclass(frozen=True, slots=True)
class SacBatch:
    """Transitions as the networks see them: observations [B, 3], actions [B, 1], rewards [B]."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How the training ended."""

    mean_return: float
    """Over the last 20 episodes."""
    episodes: int
    env_steps: int
    entropy: float
    """Of the policy over the last round, in nats."""
    run: Path | None
    model: SacModel


def observed(observation: Array) -> Array:
    """Every number of it within [-1, 1], [N, 3]."""
    return observation / np.array([1.0, 1.0, SPEED], dtype=np.float32)


def sampled(policy: Policy) -> Tensor:
    """u = μ + σ ε: the gradient goes through the sample, [B, 1]."""
    mean, log_std = policy
    return mean + log_std.exp() * torch.randn_like(mean)


def kept_rewards(rewards: Array) -> Array:
    """The rewards as they are put beside the transitions of the same step, [N]."""
    return rewards


def places_of(size: int, batch_size: int, device: torch.device) -> Tensor:
    """Uniform over all that the replay holds, [B]."""
    return torch.randint(size, (batch_size,), device=device)


def target_of(critic: TwinCritic) -> TwinCritic:
    """A critic of its own, with the same weights."""
    return copy.deepcopy(critic).requires_grad_(False)


@torch.no_grad()
def follow(target: TwinCritic, critic: TwinCritic, tau: float) -> None:
    """θ' ← θ' + τ (θ - θ')."""
    for theirs, ours in zip(target.parameters(), critic.parameters(), strict=True):
        theirs.lerp_(ours, tau)


def value_loss_of(values: Tensor, targets: Tensor) -> Tensor:
    """Half the mean squared error of both critics, values [2, B], targets [B]."""
    return 0.5 * (values - targets).square().mean(-1).sum()


def policy_loss_of(values: Tensor) -> Tensor:
    """-E[min(Q₁, Q₂)] at the policy's own actions, [2, B]."""
    return -values.amin(0).mean()


def entropy_loss_of(log_probs: Tensor, alpha: Tensor) -> Tensor:
    """α E[log π(a|s)]: a cost for being sure."""
    return alpha * log_probs.mean()


def temperature_loss_of(log_alpha: Tensor, entropy: Tensor, target_entropy: float) -> Tensor:
    """log α · (H - H̄): the temperature falls while the entropy is above its target."""
    return log_alpha * (entropy - target_entropy)


def adam(parameters: Iterable[nn.Parameter], config: Config) -> torch.optim.Optimizer:
    """One kernel for all tensors: they are small, and calling costs more than computing."""
    return torch.optim.Adam(parameters, lr=config.learning_rate, eps=1e-5, fused=True)


def actor_optimizer_of(actor: nn.Sequential, config: Config) -> torch.optim.Optimizer:
    """All of the actor."""
    return adam(actor.parameters(), config)


def critic_optimizer_of(critic: TwinCritic, config: Config) -> torch.optim.Optimizer:
    """Both critics."""
    return adam(critic.parameters(), config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The lines of this training that a fault may change; see `gradiometer_labs/faults.py`."""

    config: Config
    init_hidden_: Callable[[nn.Linear], None] = init_hidden_
    observed: Callable[[Array], Array] = observed
    act: Callable[[Policy], Tensor] = sampled
    kept_rewards: Callable[[Array], Array] = kept_rewards
    places_of: Callable[[int, int, torch.device], Tensor] = places_of
    log_prob_of: LogProb = log_prob_of
    target_of: Callable[[TwinCritic], TwinCritic] = target_of
    follow: Callable[[TwinCritic, TwinCritic, float], None] = follow
    value_loss_of: Callable[[Tensor, Tensor], Tensor] = value_loss_of
    policy_loss_of: Callable[[Tensor], Tensor] = policy_loss_of
    entropy_loss_of: Callable[[Tensor, Tensor], Tensor] = entropy_loss_of
    temperature_loss_of: Callable[[Tensor, Tensor, float], Tensor] = temperature_loss_of
    actor_optimizer_of: Callable[[nn.Sequential, Config], torch.optim.Optimizer] = (
        actor_optimizer_of
    )
    critic_optimizer_of: Callable[[TwinCritic, Config], torch.optim.Optimizer] = critic_optimizer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What is trained, and with what."""

    model: SacModel
    target: TwinCritic
    optimizers: dict[str, torch.optim.Optimizer]


@torch.no_grad()
def collect(
    envs: SyncVectorEnv[Any, Any],
    model: SacModel,
    replay: Replay[SacBatch],
    observation: Array,
    episodes: Episodes,
    pieces: Pieces,
) -> tuple[measure.Step, Array]:
    """One step of each environment into the replay; what was done, and the observation to go on
    from."""
    device, scale = model.log_alpha.device, pieces.config.reward_scale
    seen = torch.as_tensor(pieces.observed(observation), device=device)
    policy = model.policy(seen)
    u = pieces.act(policy)
    observation, reward, _, done, info = envs.step(TORQUE * u.tanh().cpu().numpy())
    # An ended environment has been reset already: the state its last action led to is in final_obs
    successor = np.stack(info["final_obs"]) if done.all() else observation
    kept, rewards = (
        torch.as_tensor(scale * each, dtype=torch.float32, device=device)
        for each in (pieces.kept_rewards(reward), reward)
    )
    after = torch.as_tensor(pieces.observed(successor), device=device)
    replay.add(SacBatch(seen, u.tanh(), kept, after))
    episodes.add(reward, done)
    return measure.Step(seen, u, *policy, kept, rewards), observation


@torch.no_grad()
def targets_of(agent: Agent, batch: SacBatch, pieces: Pieces) -> Tensor:
    """What the critics should say, [B]."""
    # y = r + γ (min(Q₁', Q₂')(s', a') - α log π(a'|s')),  a' ~ π(.|s'); no state is the last one,
    # so none is masked
    policy = agent.model.policy(batch.next_observations)
    u = sampled(policy)
    values: Tensor = agent.target(batch.next_observations, u.tanh()).amin(0)
    soft = values - agent.model.log_alpha.exp() * pieces.log_prob_of(u, policy)
    return batch.rewards + pieces.config.gamma * soft


def update(agent: Agent, meter: gm.Meter, batch: SacBatch, pieces: Pieces) -> dict[str, Tensor]:
    """One step of the critics, the temperature and the actor, all from the same weights; returns
    what to log."""
    config, model = pieces.config, agent.model
    targets = targets_of(agent, batch, pieces)
    values = model.critic(batch.observations, batch.actions)
    policy = model.policy(batch.observations)
    u = sampled(policy)
    log_probs = pieces.log_prob_of(u, policy)
    with held(model.critic):
        own_values = model.critic(batch.observations, u.tanh())
    entropy = -log_probs.detach().mean()

    value_loss = pieces.value_loss_of(values, targets)
    policy_loss = pieces.policy_loss_of(own_values)
    terms: dict[str, Any] = {
        "value": value_loss,
        "policy": policy_loss,
        "entropy": pieces.entropy_loss_of(log_probs, model.log_alpha.detach().exp()),
    }
    if config.learn_alpha:
        terms["temperature"] = pieces.temperature_loss_of(
            model.log_alpha, entropy, config.target_entropy
        )

    for optimizer in agent.optimizers.values():
        optimizer.zero_grad()
    with meter.terms(
        **terms
    ) as loss:  # their sum: no two of them train the same weights but policy and entropy
        loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.critic.parameters(), config.max_grad_norm)
    nn.utils.clip_grad_norm_(model.actor.parameters(), config.max_grad_norm)
    for optimizer in agent.optimizers.values():
        optimizer.step()
    pieces.follow(agent.target, model.critic, config.tau)
    return {
        "value_loss": value_loss.detach(),
        "policy_loss": policy_loss.detach(),
        "entropy": entropy,
        "q_value": values.detach().amin(0).mean(),
        "targets": targets,
    }


@contextmanager
def held(critic: TwinCritic) -> Iterator[None]:
    """A gradient passes through to the actions and leaves the weights alone: the actor must not
    train its judge."""
    critic.requires_grad_(False)
    try:
        yield
    finally:
        critic.requires_grad_(True)


def train(config: Config, progress: Callable[[TrainingProgress], None] | None = None) -> Result:
    """Train from scratch, or from `start=`; all that is random comes from `config.seed`."""
    pieces = faults.apply(config.fault, "pendulum", Pieces(config=config))
    config, device = pieces.config, torch_device(config.device)
    torch.manual_seed(config.seed)
    agent = agent_of(pieces, device)
    replay, episodes = Replay(config.buffer_size, SacBatch), Episodes(config.num_envs)
    rounds: deque[measure.Step] = deque(maxlen=2)
    envs = SyncVectorEnv([make_env] * config.num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    # seed, seed + 1, ... would give neighbouring seeds nearly the same environments
    observation, _ = envs.reset(
        seed=np.random.SeedSequence(config.seed).generate_state(config.num_envs).tolist()
    )
    blocks = {"actor": "^actor", "critic": "^critic"}
    control = ControlRewards(
        random_reward=return_of(
            lambda _, rng: rng.uniform(-MAX_TORQUE, MAX_TORQUE, 1),
            make_env,
            seed=CONTROL_SEED,
            episodes=16,
        )
    )
    progress, facts = control.announced(progress), control.facts
    with (
        closing(envs),
        watched(agent.model, agent.optimizers, config, facts=facts, blocks=blocks) as meter,
    ):
        for number in range(config.total_steps // config.round_size):
            steps: list[measure.Step] = []
            updates: list[dict[str, Tensor]] = []
            for t in range(EPISODE):
                step, observation = collect(
                    envs, agent.model, replay, observation, episodes, pieces
                )
                steps.append(step)
                if number > 0 and t % config.update_every == 0:
                    meter.at(
                        env_steps=number * config.round_size + (t + 1) * config.num_envs,
                        rollout=number,
                    )
                    index = pieces.places_of(len(replay), config.batch_size, device)
                    updates.append(update(agent, meter, replay.at(index), pieces))
            rounds.append(measure.stacked(steps))
            if updates:
                meter.log(numbers_of(rounds, updates, agent, pieces), **episodes.news())
            if progress is not None:
                done, mean_return = (
                    (number + 1) * config.round_size,
                    float(np.mean(episodes.returns[-LATEST:])),
                )
                progress(
                    TrainingProgress(done=done, total=config.total_steps, mean_return=mean_return)
                )
    return Result(
        mean_return=float(np.mean(episodes.returns[-LATEST:])),
        episodes=len(episodes.returns),
        env_steps=(number + 1) * config.round_size,
        entropy=float(torch.stack([each["entropy"] for each in updates]).mean()),
        run=meter.run,
        model=agent.model,
    )


def numbers_of(
    rounds: deque[measure.Step], updates: list[dict[str, Tensor]], agent: Agent, pieces: Pieces
) -> dict[str, Any]:
    """What is logged of a round: means over its updates, its value targets, and what `measure` asks
    its episodes."""
    before, played = rounds
    stacked = {name: torch.stack([each[name] for each in updates]) for name in updates[0]}
    targets = stacked.pop("targets")
    return {
        **{name: float(values.mean()) for name, values in stacked.items()},
        **measure.measured(
            played, before, agent.model, agent.target, pieces.log_prob_of, pieces.config.gamma
        ),
        "returns": targets,
        "observation": played.observations,
        "entropy_coef": float(agent.model.log_alpha.detach().exp()),
        "learning_rate": pieces.config.learning_rate,
    }


def agent_of(pieces: Pieces, device: torch.device) -> Agent:
    """The networks, and what trains them; the actor's optimizer is the last to step."""
    config = pieces.config
    model = SacModel(config.alpha, pieces.init_hidden_)
    load_weights(model, config.start)
    model.to(device)
    optimizers = {
        "critic": pieces.critic_optimizer_of(model.critic, config),
        "actor": pieces.actor_optimizer_of(model.actor, config),
    }
    if config.learn_alpha:
        optimizers = {"temperature": adam([model.log_alpha], config), **optimizers}
    else:
        model.log_alpha.requires_grad_(False)
    return Agent(model=model, target=pieces.target_of(model.critic), optimizers=optimizers)


MAX_TORQUE = 2.0
"""Of Pendulum-v1, either way."""


def make_env() -> gymnasium.Env[Any, Any]:
    """One pendulum; its episodes are cut off at 200 steps."""
    return gymnasium.make("Pendulum-v1", disable_env_checker=True)
