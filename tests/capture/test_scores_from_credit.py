"""score_z and reward_gain of a script that logs neither, against the same computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.distributions import Categorical, Normal

import gradiometer as gm
from gradiometer.capture.environment import GAMMA
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.maths import scores
from gradiometer.maths.credit import correlation, returns_to_go

ROWS, UPDATES = 96, 12


class Line(gym.Env[Any, Any]):
    """Rewards for going where it points; it never ends of itself."""

    observation_space = spaces.Box(-10.0, 10.0, (3,), np.float32)

    def __init__(self, *, continuous: bool) -> None:
        box, discrete = spaces.Box(-100.0, 100.0, (1,), np.float32), spaces.Discrete(2)
        self.action_space: Any = box if continuous else discrete

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._seen(), {}

    def _seen(self) -> Any:
        self.points = self.np_random.normal(size=3).astype(np.float32)
        return self.points

    def step(self, action: Any) -> Any:
        pays = float(np.ravel(action)[0]) * float(self.points[0])
        self.t += 1
        return self._seen(), pays, False, self.t % 24 == 0, {}


def trained(run: Path, *, continuous: bool, sampler: str = "policy") -> list[dict[str, float]]:
    """PPO in two passes; what the numbers are by hand, of each update."""
    torch.manual_seed(0)
    env, net = Line(continuous=continuous), nn.Linear(3, 1 if continuous else 2)
    with torch.no_grad():
        net.bias.copy_(torch.tensor([0.8] if continuous else [0.8, -0.8]))
    policy = (
        (lambda x: Normal(net(x), 0.5)) if continuous else (lambda x: Categorical(logits=net(x)))
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    obs, by_hand = env.reset(seed=1)[0], []
    with gm.watch(net, optimizer, run=run, quiet=True, budget=None):
        for _ in range(UPDATES):
            rows: list[tuple[Any, ...]] = []
            for _ in range(ROWS):
                with torch.no_grad():
                    said = policy(torch.as_tensor(obs))
                    action = said.sample()
                    if sampler == "other":
                        action = torch.randn(1) if continuous else torch.randint(0, 2, ())
                after, reward, _, cut, _ = env.step(action.numpy())
                rows.append((obs, action, reward, cut))
                obs = env.reset()[0] if cut else after
            states = torch.as_tensor(np.array([row[0] for row in rows]))
            actions = torch.stack([row[1] for row in rows])
            paid, cuts = (np.array([row[k] for row in rows], np.float64) for k in (2, 3))
            with torch.no_grad():
                old = policy(states).log_prob(actions).reshape(ROWS, -1).sum(1)
                residuals = _residuals(policy(states), actions, continuous=continuous)
            made = torch.as_tensor(paid - paid.mean(), dtype=torch.float32)
            for epoch in range(2):
                new = policy(states).log_prob(actions).reshape(ROWS, -1).sum(1)
                ratio = torch.exp(new - old)
                loss = -torch.min(ratio * made, ratio.clamp(0.8, 1.2) * made).mean()
                optimizer.zero_grad()
                loss.backward()
                if epoch == 1:
                    earned = returns_to_go(paid[:, None], cuts[:, None] > 0, GAMMA).reshape(-1)
                    heard = slice(0 if by_hand else 1, None)  # it was reset before anybody listened
                    gain = correlation((new - old)[heard].detach().double().numpy(), earned[heard])
                    z = scores.score_z(residuals, residuals.new_empty(ROWS, 0))
                    assert gain is not None
                    by_hand.append({"credit/score_z": z, "credit/reward_gain": gain})
                optimizer.step()
    return by_hand


def _residuals(policy: Any, actions: torch.Tensor, *, continuous: bool) -> torch.Tensor:
    if continuous:
        z = (actions - policy.loc) / policy.scale
        return torch.cat([z, z.square() - 1], dim=1)
    return nn.functional.one_hot(actions, 2).float() - policy.probs


@pytest.mark.slow
@pytest.mark.parametrize("continuous", [False, True])
def test_both_are_what_they_are_by_hand(tmp_path: Path, continuous: bool) -> None:
    by_hand = trained(tmp_path / "run", continuous=continuous)
    with gm.load(tmp_path / "run") as run:
        for name in ("credit/score_z", "credit/reward_gain"):
            steps, values = run.series(name)
            first = 0 if name == "credit/score_z" else 1
            of = {2 * n + first: each[name] for n, each in enumerate(by_hand)}
            assert len(steps) >= 8
            np.testing.assert_allclose(values, [of[int(step)] for step in steps], atol=2e-3)
        assert np.median(run.series("credit/score_z")[1]) < 4
        assert "score-not-zero-mean" not in [each.id for each in diagnose(run).findings]


@pytest.mark.slow
def test_actions_of_another_sampler_are_found(tmp_path: Path) -> None:
    trained(tmp_path / "run", continuous=False, sampler="other")
    with gm.load(tmp_path / "run") as run:
        assert np.median(run.series("credit/score_z")[1]) > 4
        found = [x for x in diagnose(run).findings if x.id == "score-not-zero-mean"]
    assert [each.basis for each in found] == ["statistical"]
