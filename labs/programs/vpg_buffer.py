"""Policy gradient with a GAE buffer, two networks and two optimizers, losses in functions."""

import argparse

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions.categorical import Categorical
from torch.optim import Adam


def mlp(sizes, activation=nn.Tanh):
    layers = []
    for j in range(len(sizes) - 1):
        layers.append(nn.Linear(sizes[j], sizes[j + 1]))
        if j < len(sizes) - 2:
            layers.append(activation())
    return nn.Sequential(*layers)


class MLPActorCritic(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.pi = mlp([obs_dim, 64, 64, act_dim])
        self.v = mlp([obs_dim, 64, 64, 1])

    def dist(self, obs):
        return Categorical(logits=self.pi(obs))

    def step(self, obs):
        with torch.no_grad():
            pi = self.dist(obs)
            a = pi.sample()
            return a.numpy(), self.v(obs).squeeze(-1).numpy(), pi.log_prob(a).numpy()


def discount_cumsum(x, discount):
    found = np.zeros_like(x)
    last = 0.0
    for t in reversed(range(len(x))):
        last = x[t] + discount * last
        found[t] = last
    return found


class Buffer:
    def __init__(self, gamma=0.99, lam=0.97):
        self.gamma, self.lam = gamma, lam
        self.clear()

    def clear(self):
        self.obs, self.act, self.logp = [], [], []
        self.adv, self.ret, self.rew, self.val = [], [], [], []

    def store(self, obs, act, rew, val, logp):
        self.obs.append(obs)
        self.act.append(act)
        self.logp.append(logp)
        self.rew.append(rew)
        self.val.append(val)

    def finish_path(self, last_val=0.0):
        rews = np.append(self.rew, last_val).astype(np.float32)
        vals = np.append(self.val, last_val).astype(np.float32)
        deltas = rews[:-1] + self.gamma * vals[1:] - vals[:-1]
        self.adv += discount_cumsum(deltas, self.gamma * self.lam).tolist()
        self.ret += discount_cumsum(rews, self.gamma)[:-1].tolist()
        self.rew, self.val = [], []

    def get(self):
        adv = np.array(self.adv, np.float32)
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        data = {
            "obs": torch.as_tensor(np.array(self.obs)),
            "act": torch.as_tensor(np.array(self.act)),
            "ret": torch.as_tensor(np.array(self.ret, np.float32)),
            "adv": torch.as_tensor(adv),
            "logp": torch.as_tensor(np.array(self.logp)),
        }
        self.clear()
        return data


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pi-lr", type=float, default=1e-2)
    parser.add_argument("--vf-lr", type=float, default=3e-3)
    parser.add_argument("--train-v-iters", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    env = gym.make("CartPole-v1", max_episode_steps=200)
    ac, buf = MLPActorCritic(4, 2), Buffer()
    pi_optimizer = Adam(ac.pi.parameters(), lr=args.pi_lr)
    vf_optimizer = Adam(ac.v.parameters(), lr=args.vf_lr)

    def compute_loss_pi(data):
        logp = ac.dist(data["obs"]).log_prob(data["act"])
        return -(logp * data["adv"]).mean()

    def compute_loss_v(data):
        return ((ac.v(data["obs"]).squeeze(-1) - data["ret"]) ** 2).mean()

    def update():
        data = buf.get()
        pi_optimizer.zero_grad()
        loss_pi = compute_loss_pi(data)
        loss_pi.backward()
        pi_optimizer.step()
        for _ in range(args.train_v_iters):
            vf_optimizer.zero_grad()
            loss_v = compute_loss_v(data)
            loss_v.backward()
            vf_optimizer.step()

    o, _ = env.reset(seed=args.seed)
    ep_ret, returns = 0.0, []
    for epoch in range(args.epochs):
        for t in range(args.steps):
            a, v, logp = ac.step(torch.as_tensor(o, dtype=torch.float32))
            next_o, r, terminated, truncated, _ = env.step(int(a))
            ep_ret += r
            buf.store(o, a, r, v, logp)
            o = next_o
            if terminated or truncated or t == args.steps - 1:
                last = 0.0
                if not terminated:
                    _, last, _ = ac.step(torch.as_tensor(o, dtype=torch.float32))
                buf.finish_path(last)
                if terminated or truncated:
                    returns.append(ep_ret)
                ep_ret, (o, _) = 0.0, env.reset()
        update()
        print(f"Epoch {epoch}  AverageEpRet {np.mean(returns[-20:]):.1f}")


if __name__ == "__main__":
    main()
