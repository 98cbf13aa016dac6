"""Which actions a DQN takes, by what its own network says of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import gradiometer as gm
from gradiometer.doctor.diagnosis import diagnose

CHEAP: dict[str, Any] = {"budget": None, "quiet": True, "tier": "light", "terms": "manual"}


class Values(nn.Module):
    """As minimalRL has it: `forward` is called by its name when it acts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x).relu())
        return out

    def act(self, state: np.ndarray, rate: float, rng: random.Random, how: str) -> int:
        if how == "asks seldom" and rng.random() < rate:
            return rng.randrange(2)
        out = self.forward(torch.from_numpy(state))
        if how != "asks seldom" and rng.random() < rate:
            return rng.randrange(2)
        return int(out.argmin() if how in ("worst", "costs") else out.argmax())


def learn(folder: Path, how: str, first: float, last: float, steps: int = 1500) -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    online = Values()
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    env = gym.make("CartPole-v1")
    kept, state = [], env.reset(seed=0)[0]
    with gm.watch(online, optimizer, run=folder, **CHEAP):
        for step in range(steps):
            action = online.act(state, first + (last - first) * step / steps, rng, how)
            following, reward, ended, cut, _ = env.step(
                1 - action if how == "its own numbers" else action
            )
            paid = -float(reward) if how == "costs" else float(reward)
            kept.append((state, action, paid, following, float(ended)))
            state = env.reset()[0] if ended or cut else following
            if step < 100 or step % 8:
                continue
            columns = zip(*rng.sample(kept, 32), strict=True)
            states, actions, rewards, nexts, ends = (torch.tensor(np.array(x)) for x in columns)
            with torch.no_grad():
                ahead = online(nexts).min(1) if how == "costs" else online(nexts).max(1)
                goals = (rewards + 0.99 * (1 - ends) * ahead.values).float()
            trained = 1 - actions if how == "trains the other" else actions
            values = online(states).gather(1, trained[:, None]).squeeze(1)
            optimizer.zero_grad()
            functional.mse_loss(values, goals).backward()
            optimizer.step()


def rates(folder: Path) -> np.ndarray:
    with gm.load(folder) as run:
        assert not run.events("fault")
        return np.asarray(run.series("credit/exploration_rate")[1])


@pytest.mark.parametrize("how", ["asks always", "asks seldom"])
def test_random_actions_are_counted_however_the_program_asks(tmp_path: Path, how: str) -> None:
    learn(tmp_path / "run", how, 0.9, 0.1)
    found = rates(tmp_path / "run")
    assert len(found) >= 6
    assert found[:2].mean() == pytest.approx(0.8, abs=0.15)
    assert found[-1] == pytest.approx(0.2, abs=0.15)
    ids = {each.id for each in diagnose(tmp_path / "run").findings}
    assert not {"exploration-schedule", "update-opposes-reward"} & ids


@pytest.mark.parametrize("how", ["asks always", "asks seldom"])
def test_an_epsilon_that_never_falls_is_told(tmp_path: Path, how: str) -> None:
    learn(tmp_path / "run", how, 0.9, 0.9, steps=2000)
    assert "exploration-schedule" in {each.id for each in diagnose(tmp_path / "run").findings}


def test_taking_the_worst_action_is_told(tmp_path: Path) -> None:
    learn(tmp_path / "run", "worst", 0.05, 0.05, steps=900)
    first = diagnose(tmp_path / "run").findings[0]
    assert (first.id, first.basis) == ("update-opposes-reward", "proved")
    assert "values least" in first.title


def test_the_least_value_is_the_best_where_values_are_costs(tmp_path: Path) -> None:
    learn(tmp_path / "run", "costs", 0.05, 0.05, steps=900)
    found = diagnose(tmp_path / "run").findings
    assert [each.id for each in found if each.basis == "proved"] == []


@pytest.mark.parametrize(("how", "told"), [("trains the other", True), ("its own numbers", False)])
def test_values_of_other_actions_are_told_where_the_network_acts_by_the_same_numbers(
    tmp_path: Path, how: str, told: bool
) -> None:
    learn(tmp_path / "run", how, 0.1, 0.1, steps=900)
    found = [each for each in diagnose(tmp_path / "run").findings if each.id == "misaligned-data"]
    assert bool(found) is told
    assert all("other actions" in each.title for each in found)
