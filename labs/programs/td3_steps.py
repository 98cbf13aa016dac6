"""TD3: twin critics, delayed actor, smoothed targets."""

import argparse
import copy

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Tanh()
        )

    def forward(self, obs):
        return 2.0 * self.net(obs)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1, self.q2 = (
            nn.Sequential(
                nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
            )
            for _ in range(2)
        )

    def forward(self, obs, action):
        joined = torch.cat([obs, action], 1)
        return self.q1(joined), self.q2(joined)


def soft_update(target, source, tau):
    for t, s in zip(target.parameters(), source.parameters(), strict=True):
        t.data.lerp_(s.data, tau)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-timesteps", type=int, default=8_000)
    args = parser.parse_args()
    gamma, tau, policy_freq, start = 0.98, 0.01, 2, 500
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    env = gym.make("Pendulum-v1")
    actor, critic = Actor(), Critic()
    actor_target, critic_target = copy.deepcopy(actor), copy.deepcopy(critic)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    memory, total = [], 0.0
    obs, _ = env.reset(seed=args.seed)
    for step in range(args.total_timesteps):
        if step < start:
            action = rng.uniform(-2, 2, 1).astype(np.float32)
        else:
            with torch.no_grad():
                action = actor(torch.as_tensor(obs)).numpy()
            action = np.clip(action + rng.normal(0, 0.2, 1), -2, 2).astype(np.float32)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        memory.append((obs, action, np.float32([reward]), next_obs, np.float32([terminated])))
        obs = next_obs
        total += reward
        if terminated or truncated:
            print(f"step {step} return {total:.1f}")
            total, (obs, _) = 0.0, env.reset()
        if step < start:
            continue
        picked = [memory[i] for i in rng.integers(0, len(memory), 128)]
        s, a, r, s2, d = (torch.as_tensor(np.array(part)) for part in zip(*picked, strict=True))
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(a)).clamp(-0.5, 0.5)
            a2 = (actor_target(s2) + noise).clamp(-2, 2)
            target_q1, target_q2 = critic_target(s2, a2)
            backup = r + gamma * (1 - d) * torch.min(target_q1, target_q2)
        q1, q2 = critic(s, a)
        critic_loss = F.mse_loss(q1, backup) + F.mse_loss(q2, backup)
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        if step % policy_freq == 0:
            actor_loss = -critic(s, actor(s))[0].mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            soft_update(actor_target, actor, tau)
            soft_update(critic_target, critic, tau)


if __name__ == "__main__":
    main()
