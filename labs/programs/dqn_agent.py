"""DQN as a class: arrays as replay memory, soft target updates, double Q-learning, MSE."""

import argparse

import gymnasium as gym
import numpy as np
import torch
from torch import nn


def network():
    return nn.Sequential(
        nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2)
    )


class Memory:
    def __init__(self, size):
        self.obs, self.next_obs = (np.zeros((size, 4), np.float32) for _ in range(2))
        self.actions = np.zeros(size, np.int64)
        self.rewards, self.dones = (np.zeros(size, np.float32) for _ in range(2))
        self.size, self.place, self.full = size, 0, 0

    def add(self, obs, action, reward, next_obs, done):
        i = self.place
        self.obs[i], self.next_obs[i] = obs, next_obs
        self.actions[i], self.rewards[i], self.dones[i] = action, reward, done
        self.place, self.full = (i + 1) % self.size, max(self.full, i + 1)

    def sample(self, count, rng):
        i = rng.integers(0, self.full, count)
        arrays = (self.obs[i], self.actions[i], self.rewards[i], self.next_obs[i], self.dones[i])
        return map(torch.from_numpy, arrays)


class DQNAgent:
    def __init__(self, lr=1e-3, gamma=0.99, tau=0.01):
        self.online, self.target = network(), network()
        self.target.load_state_dict(self.online.state_dict())
        self.gamma, self.tau = gamma, tau
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=lr)

    def act(self, obs, epsilon, rng):
        if rng.random() < epsilon:
            return int(rng.integers(2))
        with torch.no_grad():
            return int(self.online(torch.from_numpy(obs)).argmax())

    def learn(self, obs, actions, rewards, next_obs, dones):
        with torch.no_grad():
            best = self.online(next_obs).argmax(1, keepdim=True)
            following = self.target(next_obs).gather(1, best).squeeze(1)
            td_target = rewards + self.gamma * following * (1.0 - dones)
        q_values = self.online(obs).gather(1, actions.unsqueeze(1)).squeeze(1)
        td_loss = ((q_values - td_target) ** 2).mean()
        self.optimizer.zero_grad()
        td_loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
        self.optimizer.step()
        for mine, theirs in zip(self.target.parameters(), self.online.parameters(), strict=True):
            mine.data.mul_(1.0 - self.tau).add_(theirs.data, alpha=self.tau)
        return td_loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-timesteps", type=int, default=20_000)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    env = gym.make("CartPole-v1", max_episode_steps=200)
    agent, memory = DQNAgent(), Memory(10_000)
    obs, _ = env.reset(seed=args.seed)
    total, returns = 0.0, []
    for step in range(args.total_timesteps):
        epsilon = max(0.05, 1.0 - step / 5_000)
        action = agent.act(obs, epsilon, rng)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        memory.add(obs, action, reward, next_obs, terminated)
        obs = next_obs
        total += reward
        if terminated or truncated:
            returns.append(total)
            total, (obs, _) = 0.0, env.reset()
            if len(returns) % 20 == 0:
                print(f"step: {step}, return: {np.mean(returns[-20:]):.1f}")
        if step > 1_000 and step % 4 == 0:
            agent.learn(*memory.sample(128, rng))


if __name__ == "__main__":
    main()
