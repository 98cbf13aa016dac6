"""Soft actor-critic: two critics in one module, a learned temperature, a step at a time."""

import argparse
import copy
import math

import gymnasium as gym
import numpy as np
import torch
from torch import nn

LIMIT = 2.0  # of the torque


class Twins(nn.Module):
    """Two critics of a state and an action, as two columns."""

    def __init__(self, width=64):
        super().__init__()
        self.members = nn.ModuleList(
            nn.Sequential(
                nn.Linear(4, width),
                nn.ReLU(),
                nn.Linear(width, width),
                nn.ReLU(),
                nn.Linear(width, 1),
            )
            for _ in range(2)
        )

    def forward(self, states, actions):
        both = torch.cat([states, actions], dim=-1)
        return torch.cat([member(both) for member in self.members], dim=-1)


class Policy(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.head = nn.Linear(width, 2)

    def forward(self, states):
        """An action and the logarithm of its density."""
        centre, spread = self.head(self.body(states)).chunk(2, dim=-1)
        normal = torch.distributions.Normal(centre, spread.clamp(-5, 1).exp())
        free = normal.rsample()
        squeezed = LIMIT * torch.tanh(free)
        # The density of a squeezed action: log(1 - tanh²) in a form that does not overflow.
        slope = math.log(LIMIT) + 2 * (math.log(2) - free - nn.functional.softplus(-2 * free))
        return squeezed, (normal.log_prob(free) - slope).sum(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-steps", type=int, default=6_000)
    parser.add_argument("--gamma", type=float, default=0.98)
    parser.add_argument("--follow", type=float, default=0.01)
    parser.add_argument("--random-steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    rng = np.random.default_rng(options.seed)
    env = gym.make("Pendulum-v1")
    policy, critics = Policy(), Twins()
    slow = copy.deepcopy(critics).requires_grad_(False)
    log_temperature = torch.zeros((), requires_grad=True)
    of_critics = torch.optim.Adam(critics.parameters(), lr=1e-3)
    of_policy = torch.optim.Adam(policy.parameters(), lr=1e-3)
    of_temperature = torch.optim.Adam([log_temperature], lr=1e-3)
    wanted_entropy = -1.0

    columns = [np.zeros((options.total_steps, size), np.float32) for size in (3, 1, 1, 3, 1)]
    state, earned = env.reset(seed=options.seed)[0], 0.0
    for step in range(options.total_steps):
        if step < options.random_steps:
            action = rng.uniform(-LIMIT, LIMIT, 1).astype(np.float32)
        else:
            with torch.no_grad():
                action = policy(torch.as_tensor(state))[0].numpy()
        following, reward, terminated, truncated, _ = env.step(action)
        for column, value in zip(
            columns, (state, action, reward, following, terminated), strict=True
        ):
            column[step] = value
        state, earned = following, earned + float(reward)
        if terminated or truncated:
            print(f"step={step} episode_return={earned:.1f}")
            state, earned = env.reset()[0], 0.0
        if step < options.random_steps:
            continue

        rows = rng.integers(0, step + 1, options.batch)
        states, actions, rewards, nexts, ends = (torch.from_numpy(each[rows]) for each in columns)
        temperature = log_temperature.exp().detach()
        with torch.no_grad():
            next_actions, next_log_probs = policy(nexts)
            ahead = slow(nexts, next_actions).amin(-1) - temperature * next_log_probs
            goals = rewards[:, 0] + options.gamma * (1 - ends[:, 0]) * ahead
        worth = critics(states, actions)
        critic_loss = (worth[:, 0] - goals).square().mean() + (worth[:, 1] - goals).square().mean()
        of_critics.zero_grad()
        critic_loss.backward()
        of_critics.step()

        fresh, log_probs = policy(states)
        policy_loss = (temperature * log_probs - critics(states, fresh).amin(-1)).mean()
        of_policy.zero_grad()
        policy_loss.backward()
        of_policy.step()

        temperature_loss = -log_temperature * (log_probs.detach() + wanted_entropy).mean()
        of_temperature.zero_grad()
        temperature_loss.backward()
        of_temperature.step()
        with torch.no_grad():
            for behind, ahead_of in zip(slow.parameters(), critics.parameters(), strict=True):
                behind.lerp_(ahead_of, options.follow)


if __name__ == "__main__":
    main()
