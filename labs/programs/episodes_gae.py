"""Policy gradient on whole episodes: actor and critic apart, each with its optimizer."""

import argparse
from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical


def tower(width, out):
    return nn.Sequential(
        nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, out)
    )


@dataclass
class Episode:
    states: list = field(default_factory=list)
    actions: list = field(default_factory=list)
    rewards: list = field(default_factory=list)
    after: float = 0.0  # what the critic expects behind the last state


def backwards(numbers, decay, start=0.0):
    out, ahead = [], start
    for number in reversed(numbers):
        ahead = number + decay * ahead
        out.append(ahead)
    return out[::-1]


class Learner:
    def __init__(self, options):
        self.options = options
        self.actor, self.critic = tower(64, 2), tower(64, 1)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=options.actor_lr)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=options.critic_lr)

    @torch.no_grad()
    def choose(self, state):
        return Categorical(logits=self.actor(state)).sample().item()

    def credit(self, episode):
        with torch.no_grad():
            worth = self.critic(torch.stack(episode.states))[:, 0].tolist()
        worth.append(episode.after)
        errors = [
            reward + self.options.gamma * worth[i + 1] - worth[i]
            for i, reward in enumerate(episode.rewards)
        ]
        advantages = backwards(errors, self.options.gamma * self.options.lam)
        return advantages, backwards(episode.rewards, self.options.gamma, episode.after)

    def learn(self, episodes):
        states = torch.stack([state for each in episodes for state in each.states])
        actions = torch.tensor([action for each in episodes for action in each.actions])
        advantages, goals = [], []
        for each in episodes:
            ours, theirs = self.credit(each)
            advantages += ours
            goals += theirs
        advantages = torch.tensor(advantages)
        advantages = (advantages - advantages.mean()) / advantages.std()
        goals = torch.tensor(goals)

        chosen = Categorical(logits=self.actor(states)).log_prob(actions)
        self.actor_optimizer.zero_grad()
        (-chosen * advantages).mean().backward()
        self.actor_optimizer.step()
        for _ in range(self.options.critic_steps):
            self.critic_optimizer.zero_grad()
            (self.critic(states)[:, 0] - goals).square().mean().backward()
            self.critic_optimizer.step()


def play(env, learner, steps):
    """Episodes of so many steps together; the last is cut short."""
    episodes, totals = [Episode()], []
    state = torch.as_tensor(env.reset()[0])
    for left in reversed(range(steps)):
        action = learner.choose(state)
        following, reward, terminated, truncated, _ = env.step(action)
        episodes[-1].states.append(state)
        episodes[-1].actions.append(action)
        episodes[-1].rewards.append(float(reward))
        state = torch.as_tensor(following)
        if terminated or truncated or not left:
            if not terminated:
                with torch.no_grad():
                    episodes[-1].after = learner.critic(state).item()
            if terminated or truncated:
                totals.append(sum(episodes[-1].rewards))
            if left:
                episodes.append(Episode())
                state = torch.as_tensor(env.reset()[0])
    return episodes, totals


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--actor-lr", type=float, default=1e-2)
    parser.add_argument("--critic-lr", type=float, default=3e-3)
    parser.add_argument("--critic-steps", type=int, default=20)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--lam", type=float, default=0.97)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    env = gym.make("CartPole-v1", max_episode_steps=200)
    env.reset(seed=options.seed)
    learner, totals = Learner(options), []
    for number in range(options.rounds):
        episodes, finished = play(env, learner, options.steps)
        totals += finished
        learner.learn(episodes)
        print(f"round {number} mean_return {np.mean(totals[-20:]):.1f}")


if __name__ == "__main__":
    main()
