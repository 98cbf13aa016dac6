"""DQN (Mnih et al. 2015) with replay, a target network and a schedule of ε: read it from top to
bottom.

Shapes: N environments, M transitions of an update, A actions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradiometer_labs.cartpole import evidence
from gradiometer_labs.cartpole import setup as shared
from gradiometer_labs.cartpole.config import Config
from gradiometer_labs.cartpole.model import QNetwork
from gradiometer_labs.cartpole.setup import Array, Rounds, TrainingSetup
from gradiometer_labs.config import torch_device
from gradiometer_labs.replay import Replay

__all__ = [
    "DqnPieces",
    "Transitions",
    "draw",
    "exploration_rate_at",
    "next_values_of",
    "q_of",
    "rounds",
    "td_targets_of",
    "update",
]

NEWEST = 64
"""Steps of each environment that the targets of last states are looked at in."""


@dataclass(frozen=True, slots=True)
class Transitions:
    """Steps of environments: [...] each, observations and successors [..., 4]."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    """As the environment gave them."""
    successors: Tensor
    """The states the actions led to, also where the episode ended there."""
    terminated: Tensor
    done: Tensor
    """Terminated, or cut off."""


def exploration_rate_at(config: Config, done_fraction: float) -> float:
    """ε: linear over the first part of the training, then level."""
    dqn = config.dqn
    way = min(1.0, done_fraction / dqn.epsilon_share) if dqn.epsilon_share > 0 else 1.0
    return dqn.first_epsilon + way * (dqn.last_epsilon - dqn.first_epsilon)


def q_of(values: Tensor, actions: Tensor) -> Tensor:
    """Q(s, a) of the actions that were taken: [M, A], [M] -> [M]."""
    return values.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def next_values_of(online: Tensor, target: Tensor, *, double: bool) -> Tensor:
    """max_a Q'(s', a), or Q'(s', argmax_a Q(s', a)) where the online network chooses; [M, A] each
    -> [M]."""
    return q_of(target, online.argmax(-1)) if double else target.max(-1).values


def td_targets_of(rewards: Tensor, next_values: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """r + γ (1 - terminated) max_a Q'(s', a), [M]; an episode that was cut off would have gone
    on."""
    return rewards + gamma * next_values * ~terminated


def td_loss_of(values: Tensor, targets: Tensor) -> Tensor:
    """Huber's: a squared error that grows no faster than the error from 1 on."""
    return nn.functional.smooth_l1_loss(values, targets)


def target_of(online: nn.Module) -> nn.Module:
    """The network that the targets are made with: a copy that lags."""
    return copy.deepcopy(online).requires_grad_(False)


def renew(target: nn.Module, online: nn.Module) -> None:
    """The target becomes what the network is now."""
    target.load_state_dict(online.state_dict())


def keep(replay: Replay[Transitions], transitions: Transitions) -> None:
    """Remember one step of all environments, a row of the replay."""
    replay.add_row(transitions)


def draw(replay: Replay[Transitions], number: int, config: Config) -> Transitions:
    """Transitions drawn evenly and put back, [number, ...]."""
    device = torch_device(config.device)
    steps = torch.randint(len(replay), (number,), device=device)
    envs = torch.randint(config.num_envs, (number,), device=device)
    return replay.at(steps, envs)


@dataclass(frozen=True, kw_only=True)
class DqnPieces(shared.SharedPieces):
    """The lines of DQN that a fault may change."""

    exploration_rate_at: Callable[[Config, float], float] = exploration_rate_at
    q_of: Callable[[Tensor, Tensor], Tensor] = q_of
    td_targets_of: Callable[[Tensor, Tensor, Tensor, float], Tensor] = td_targets_of
    target_of: Callable[[nn.Module], nn.Module] = target_of
    renew: Callable[[nn.Module, nn.Module], None] = renew
    keep: Callable[[Replay[Transitions], Transitions], None] = keep


@torch.no_grad()
def act(
    setup: TrainingSetup[QNetwork], observation: Array, epsilon: float, pieces: DqnPieces
) -> tuple[Transitions, Array]:
    """One step of all environments, greedy but for a share ε of random actions; and what is
    observed next."""
    observed = pieces.observed(observation, setup.device)
    action = setup.model(observed).argmax(-1)
    random = torch.randint(pieces.config.num_actions, action.shape, device=setup.device)
    action = torch.where(torch.rand(action.shape, device=setup.device) < epsilon, random, action)
    observation, reward, terminated, truncated, info = setup.envs.step(action.cpu().numpy())
    done = terminated | truncated
    successor = (
        observation.copy()
    )  # of an ended episode the state it ended in, not the next one's first
    if done.any():
        successor[done] = np.stack(info["final_obs"][done])
    setup.episodes.add(reward, done)
    rewards = torch.as_tensor(reward.astype(np.float32), device=setup.device)
    transitions = Transitions(
        observations=observed,
        actions=action,
        rewards=rewards,
        successors=pieces.observed(successor, setup.device),
        terminated=torch.as_tensor(terminated, device=setup.device),
        done=torch.as_tensor(done, device=setup.device),
    )
    return transitions, observation


@torch.no_grad()
def targets_of(
    online: nn.Module, target: nn.Module, batch: Transitions, pieces: DqnPieces
) -> Tensor:
    """What Q(s, a) is to become, one for each transition."""
    config = pieces.config
    next_values = next_values_of(
        online(batch.successors), target(batch.successors), double=config.dqn.double
    )
    return pieces.td_targets_of(
        pieces.scaled(batch.rewards, config), next_values, batch.terminated, config.gamma
    )


def update(
    setup: TrainingSetup[QNetwork], target: nn.Module, batch: Transitions, pieces: DqnPieces
) -> dict[str, Tensor]:
    """One optimizer step; returns what to log of it."""
    targets = targets_of(setup.model, target, batch, pieces)
    values = pieces.q_of(setup.model(batch.observations), batch.actions)
    loss = td_loss_of(values, targets)
    setup.optimizer.zero_grad()
    with setup.meter.terms(value=loss) as total:
        total.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(setup.model.parameters(), pieces.config.max_grad_norm)
    if norm.isfinite():
        setup.optimizer.step()
    return {"value_loss": loss.detach(), "q_value": values.detach().mean()}


def rounds(setup: TrainingSetup[QNetwork], pieces: DqnPieces) -> Rounds:
    """Act and learn in turns."""
    config, dqn, online = pieces.config, pieces.config.dqn, setup.model
    target, observation, num_updates = pieces.target_of(online), setup.observation, 0
    replay = Replay(max(1, dqn.buffer_size // config.num_envs), Transitions)
    num_rounds = config.total_steps // config.batch_size
    for number in range(num_rounds):
        learning_rate = pieces.learning_rate_at(config, number / num_rounds)
        setup.optimizer.param_groups[0]["lr"] = learning_rate
        updates: list[dict[str, Tensor]] = []
        for step in range(config.num_steps):
            env_steps = number * config.batch_size + (step + 1) * config.num_envs
            epsilon = pieces.exploration_rate_at(config, env_steps / config.total_steps)
            transitions, observation = act(setup, observation, epsilon, pieces)
            pieces.keep(replay, transitions)
            if env_steps < dqn.learning_starts:
                continue
            setup.meter.at(env_steps=env_steps, rollout=number)
            for _ in range(dqn.updates_per_step):
                batch = draw(replay, dqn.replay_batch, config)
                updates.append(update(setup, target, batch, pieces))
                num_updates += 1
                if num_updates % dqn.target_every == 0:
                    pieces.renew(target, online)
        means = (
            {
                name: float(torch.stack([each[name] for each in updates]).mean())
                for name in updates[0]
            }
            if updates
            else {}
        )
        settings = {"learning_rate": learning_rate, "exploration_rate": epsilon}
        yield (
            env_steps,
            (means | settings | summary(online, target, replay, pieces) if updates else {}),
        )


@torch.no_grad()
def summary(
    online: QNetwork, target: nn.Module, replay: Replay[Transitions], pieces: DqnPieces
) -> dict[str, Any]:
    """What to log of the newest transitions and of the two networks."""
    newest = replay.newest(NEWEST)
    targets = targets_of(online, target, newest, pieces)
    ends = evidence.end_correlation(targets, newest.rewards, newest.terminated, newest.done)
    trained_on = replay.spread(NEWEST).observations.flatten(0, 1)
    return ends | {
        "returns": targets,
        "observation": newest.observations,
        "action_share": evidence.action_share(newest.actions),
        "target_distance": evidence.target_distance(online, target),
        "dormant_fraction": evidence.dormant_fraction(online.activations(trained_on)),
    }
