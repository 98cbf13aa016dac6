"""PPO on a small control problem: bring drifting boats to their berth and keep them there.

Plain PyTorch, with nothing of Gradiometer in it: `python train.py`, or `gradiometer run train.py`.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.distributions import Normal

__all__ = ["main"]

BOATS, LENGTH, GAMMA, LAMBDA = 16, 50, 0.97, 0.95


class Boats:
    """Many boats at once. State: distance to the berth, speed. Action: thrust, from -1 to 1."""

    def reset(self) -> Tensor:
        self.distance = 4 * torch.rand(BOATS) - 2
        self.speed = torch.rand(BOATS) - 0.5
        return self.state()

    def state(self) -> Tensor:
        return torch.stack([self.distance, self.speed], dim=-1)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        self.speed = 0.95 * self.speed + 0.2 * action.squeeze(-1).clamp(-1, 1) + 0.05
        self.distance = (self.distance + 0.2 * self.speed).clamp(-4, 4)
        return self.state(), -0.1 * self.distance.square() - 0.01 * self.speed.square()


class Pilot(nn.Module):
    """A Gaussian policy and its critic."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        self.critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        self.log_std = nn.Parameter(torch.zeros(1))

    def policy(self, state: Tensor) -> Normal:
        return Normal(self.actor(state), self.log_std.exp())

    def value(self, state: Tensor) -> Tensor:
        return torch.squeeze(self.critic(state), -1)


def log_prob_of(policy: Normal, action: Tensor) -> Tensor:
    """Of a whole action: the sum over its parts."""
    return policy.log_prob(action).sum(-1)


@torch.no_grad()
def rollout(model: Pilot, boats: Boats) -> tuple[list[Tensor], float]:
    """One episode of every boat, and its advantages (GAE)."""
    state, kept = boats.reset(), []
    for _ in range(LENGTH):
        policy = model.policy(state)
        action = policy.sample()
        following, reward = boats.step(action)
        kept.append((state, action, log_prob_of(policy, action), reward, model.value(state)))
        state = following
    states, actions, log_probs, rewards, values = (
        torch.stack(part) for part in zip(*kept, strict=True)
    )
    advantages, last, after = torch.zeros_like(rewards), torch.zeros(BOATS), torch.zeros(BOATS)
    for t in reversed(range(LENGTH)):
        last = rewards[t] + GAMMA * after - values[t] + GAMMA * LAMBDA * last
        advantages[t], after = last, values[t]
    batch = (states, actions, log_probs, advantages, advantages + values)
    return [part.flatten(0, 1) for part in batch], rewards.sum(0).mean().item()


def update(
    model: Pilot, optimizer: torch.optim.Optimizer, batch: list[Tensor], entropy_coef: float
) -> float:
    """Two passes over the rollout in small batches."""
    for indices in (torch.randperm(BOATS * LENGTH).split(400) for _ in range(2)):
        for index in indices:
            states, actions, old_log_probs, advantages, returns = (part[index] for part in batch)
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            policy = model.policy(states)
            ratio = (log_prob_of(policy, actions) - old_log_probs).exp()
            clipped = ratio.clamp(0.8, 1.2)
            policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
            value_loss = (model.value(states) - returns).square().mean()
            entropy = policy.entropy().mean()
            loss = policy_loss + 0.5 * value_loss - entropy_coef * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    return entropy.item()


def main() -> None:
    """Train, and print a line an update."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--entropy-coef", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model, boats = Pilot(), Boats()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for number in range(args.updates):
        batch, reward = rollout(model, boats)
        entropy = update(model, optimizer, batch, args.entropy_coef)
        print(f"update {number} return {reward:.2f} entropy {entropy:.3f}", flush=True)


if __name__ == "__main__":
    main()
