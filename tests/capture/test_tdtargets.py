"""What values are trained towards, in a DQN and in an actor-critic with one wrong line each."""

from __future__ import annotations

import random
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import gradiometer as gm
from gradiometer.doctor.diagnosis import diagnose

STEPS = 450


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def error(values: Tensor, targets: Tensor, bug: str) -> Tensor:
    if bug.startswith("by hand"):
        return (values - targets).pow(2).mean()
    return functional.smooth_l1_loss(values, targets)


def learn(folder: Path, bug: str = "") -> None:
    """A DQN on CartPole; some bugs are of what is stored, some of the targets."""
    torch.manual_seed(0)
    rng = random.Random(0)
    online, target = network(4, 2), network(4, 2)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2)
    env = gym.make("CartPole-v1", max_episode_steps=40)
    kept = []
    state = env.reset(seed=0)[0]
    with gm.watch(online, optimizer, run=folder, budget=None, quiet=True):
        for step in range(STEPS):
            action = rng.randrange(2)
            following, reward, terminated, truncated, _ = env.step(action)
            seen = following if "after" in bug else state
            kept.append((seen, action, float(reward), following, float(terminated)))
            if "first" not in bug:
                state = following
            if terminated or truncated:
                state = env.reset()[0]
            if step < 100:
                continue
            columns = zip(*rng.sample(kept, 64), strict=True)
            states, actions, rewards, nexts, ends = (torch.tensor(np.array(x)) for x in columns)
            with torch.no_grad():
                ahead = target(nexts).max(1).values
            ends = ends * 0 if "ends" in bug else ends
            rewards = rewards * 0 if "rewards" in bug else rewards * (0.1 if "scaled" in bug else 1)
            goals = (rewards + 0.99 * (1 - ends) * ahead).float()
            values = online(states).gather(1, actions[:, None]).squeeze(1)
            optimizer.zero_grad()
            error(values, goals, bug).backward()
            optimizer.step()
            if step % 20 == 0:
                target.load_state_dict(online.state_dict())


def facts(folder: Path) -> set[tuple[str, str]]:
    """Findings with basis `proved`, and what their evidence says first."""
    with gm.load(folder) as run:
        assert not run.events("fault")
        kinds = ("recipe-mismatch", "misaligned-data")
        return {
            (kind, str(event.detail.get("recipe", event.detail.get("how"))))
            for kind in kinds
            for event in run.events(kind)
        }


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["", "by hand", "scaled"])
def test_right_targets_are_checked_and_nothing_is_claimed(tmp_path: Path, bug: str) -> None:
    learn(tmp_path / "run", bug)
    assert facts(tmp_path / "run") == set()
    with gm.load(tmp_path / "run") as run:
        states = run.tables("proofs")[-1].content
    assert (states["recipe-mismatch"], states["misaligned-data"]) == ("ok", "ok")
    assert not {"recipe-mismatch", "misaligned-data"} & {
        each.id for each in diagnose(tmp_path / "run").findings
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "fact", "title"),
    [
        ("ends", ("recipe-mismatch", "ends-not-masked"), "run on over the ends"),
        ("by hand, ends", ("recipe-mismatch", "ends-not-masked"), "run on over the ends"),
        ("rewards", ("recipe-mismatch", "reward-missing"), "The reward is not in"),
        ("after", ("misaligned-data", "after"), "the observation after their action"),
        ("first", ("misaligned-data", "first"), "the first observation of its episode"),
    ],
)
def test_one_wrong_line_is_named(
    tmp_path: Path, bug: str, fact: tuple[str, str], title: str
) -> None:
    learn(tmp_path / "run", bug)
    assert facts(tmp_path / "run") == {fact}
    first = diagnose(tmp_path / "run").findings[0]
    assert (first.id, first.basis, first.severity) == (fact[0], "proved", "critical")
    assert title in first.title


@pytest.mark.slow
def test_a_critic_of_states_and_actions_is_found_by_its_columns(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    critic = network(4, 1)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    env = gym.make("Pendulum-v1")
    env.action_space.seed(0)
    kept = []
    state = env.reset(seed=0)[0]
    with gm.watch(critic, optimizer, run=tmp_path / "run", budget=None, quiet=True):
        for step in range(500):
            action = env.action_space.sample()
            following, reward, terminated, truncated, _ = env.step(action)
            kept.append((following, action, np.float32(reward)))  # and not what it was chosen for
            state = env.reset()[0] if terminated or truncated else following
            if step < 100:
                continue
            columns = zip(*rng.sample(kept, 64), strict=True)
            states, actions, rewards = (torch.tensor(np.array(x)) for x in columns)
            optimizer.zero_grad()
            values = critic(torch.cat([states, actions], 1))[:, 0]
            functional.mse_loss(values, rewards).backward()
            optimizer.step()
    assert state is not None
    assert facts(tmp_path / "run") == {("misaligned-data", "after")}
