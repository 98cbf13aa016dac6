"""PPO with a Gaussian policy; every loss in a method of its own, one dict of losses."""

import argparse

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import nn
from torch.distributions import Normal


class Reach(gym.Env):
    """Push a point to the middle of a line within thirty steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.speed, self.t = self.np_random.uniform(-2, 2), 0.0, 0
        return self._seen(), {}

    def _seen(self):
        return np.array([self.place, self.speed], np.float32)

    def step(self, action):
        push = float(np.clip(action[0], -1.0, 1.0))
        self.speed = 0.8 * self.speed + 0.3 * push
        self.place += self.speed
        self.t += 1
        lost = abs(self.place) > 4.0
        reward = 1.0 - self.place**2 - 0.1 * push**2 - 20.0 * lost
        return self._seen(), reward, lost, self.t >= 30, {}


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1))
        self.log_std = nn.Parameter(torch.zeros(1))
        self.value = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1))

    def dist(self, obs):
        return Normal(self.mean(obs), self.log_std.exp().expand(len(obs), 1))


class Learner:
    def __init__(self, model, lr, gamma=0.95, lam=0.95, clip=0.2, vf=0.5, ent=0.001):
        self.model, self.gamma, self.lam, self.clip = model, gamma, lam, clip
        self.vf, self.ent = vf, ent
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def advantages(self, rewards, ends, cuts, values, next_values):
        found, last = np.zeros_like(rewards), 0.0
        for t in reversed(range(len(rewards))):
            delta = rewards[t] + self.gamma * (1.0 - ends[t]) * next_values[t] - values[t]
            last = delta + self.gamma * self.lam * (1.0 - max(ends[t], cuts[t])) * last
            found[t] = last
        return found

    def losses(self, batch):
        dist = self.model.dist(batch["obs"])
        log_prob = dist.log_prob(batch["actions"]).sum(-1)
        ratio = torch.exp(log_prob - batch["log_probs"])
        clipped = torch.clamp(ratio, 1.0 - self.clip, 1.0 + self.clip)
        gain = torch.min(ratio * batch["advantages"], clipped * batch["advantages"])
        values = self.model.value(batch["obs"]).squeeze(-1)
        return {
            "policy": -gain.mean(),
            "value": self.vf * F.mse_loss(values, batch["returns"]),
            "entropy": -self.ent * dist.entropy().sum(-1).mean(),
        }

    def update(self, batch, epochs=10, size=256):
        for _ in range(epochs):
            for index in torch.randperm(len(batch["obs"])).split(size):
                part = {name: tensor[index] for name, tensor in batch.items()}
                losses = self.losses(part)
                loss = sum(losses.values())
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
                self.optimizer.step()


def rollout(env, model, obs, count):
    kept = {name: [] for name in ("obs", "actions", "log_probs", "rewards", "ends", "cuts", "next")}
    returns, total = [], 0.0
    for _ in range(count):
        with torch.no_grad():
            dist = model.dist(torch.as_tensor(obs)[None])
            action = dist.sample()
            log_prob = dist.log_prob(action).sum(-1)
        seen, reward, terminated, truncated, _ = env.step(action[0].numpy())
        total += reward
        for name, value in zip(
            kept, (obs, action[0], log_prob[0], reward, terminated, truncated, seen), strict=True
        ):
            kept[name].append(value)
        obs = seen
        if terminated or truncated:
            returns.append(total)
            total, (obs, _) = 0.0, env.reset()
    return kept, returns, obs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    env, model = Reach(), ActorCritic()
    learner = Learner(model, args.lr)
    obs, _ = env.reset(seed=args.seed)
    for iteration in range(args.iterations):
        kept, returns, obs = rollout(env, model, obs, 1024)
        states = torch.as_tensor(np.array(kept["obs"]))
        with torch.no_grad():
            values = model.value(states).squeeze(-1).numpy()
            next_values = model.value(torch.as_tensor(np.array(kept["next"]))).squeeze(-1).numpy()
        rewards = np.array(kept["rewards"], np.float32)
        ends, cuts = (np.array(kept[name], np.float32) for name in ("ends", "cuts"))
        advantages = learner.advantages(rewards, ends, cuts, values, next_values)
        scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        batch = {
            "obs": states,
            "actions": torch.stack(kept["actions"]),
            "log_probs": torch.stack(kept["log_probs"]),
            "advantages": torch.as_tensor(scaled),
            "returns": torch.as_tensor(advantages + values),
        }
        learner.update(batch)
        print(f"iteration {iteration} return {np.mean(returns):.2f}")


if __name__ == "__main__":
    main()
