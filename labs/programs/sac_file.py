"""SAC with twin critics and a tuned temperature."""

import argparse

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim


class SoftQNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(3 + 1, 64)
        self.fc2 = nn.Linear(64, 64)
        self.fc3 = nn.Linear(64, 1)

    def forward(self, x, a):
        x = torch.cat([x, a], 1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Actor(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.fc1 = nn.Linear(3, 64)
        self.fc2 = nn.Linear(64, 64)
        self.fc_mean = nn.Linear(64, 1)
        self.fc_logstd = nn.Linear(64, 1)
        self.scale = scale

    def get_action(self, x):
        x = F.relu(self.fc2(F.relu(self.fc1(x))))
        mean, log_std = self.fc_mean(x), torch.tanh(self.fc_logstd(x))
        log_std = -5 + 0.5 * (2 + 5) * (log_std + 1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        x_t = normal.rsample()
        y_t = torch.tanh(x_t)
        log_prob = normal.log_prob(x_t)
        log_prob = log_prob - torch.log(self.scale * (1 - y_t.pow(2)) + 1e-6)
        return y_t * self.scale, log_prob.sum(1, keepdim=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-timesteps", type=int, default=6_000)
    parser.add_argument("--gamma", type=float, default=0.98)
    parser.add_argument("--tau", type=float, default=0.01)
    parser.add_argument("--learning-starts", type=int, default=500)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    env = gym.make("Pendulum-v1")
    actor = Actor(2.0)
    qf1, qf2, qf1_target, qf2_target = (SoftQNetwork() for _ in range(4))
    qf1_target.load_state_dict(qf1.state_dict())
    qf2_target.load_state_dict(qf2.state_dict())
    q_optimizer = optim.Adam([*qf1.parameters(), *qf2.parameters()], lr=1e-3)
    actor_optimizer = optim.Adam(actor.parameters(), lr=1e-3)
    log_alpha = torch.zeros(1, requires_grad=True)
    a_optimizer = optim.Adam([log_alpha], lr=1e-3)
    target_entropy = -1.0
    memory, returns, total = [], [], 0.0
    obs, _ = env.reset(seed=args.seed)
    for step in range(args.total_timesteps):
        if step < args.learning_starts:
            action = rng.uniform(-2, 2, 1).astype(np.float32)
        else:
            with torch.no_grad():
                action = actor.get_action(torch.as_tensor(obs)[None])[0][0].numpy()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        memory.append((obs, action, np.float32(reward), next_obs, np.float32(terminated)))
        obs = next_obs
        total += reward
        if terminated or truncated:
            returns.append(total)
            print(f"global_step={step}, episodic_return={total:.1f}")
            total, (obs, _) = 0.0, env.reset()
        if step < args.learning_starts:
            continue
        picked = [memory[i] for i in rng.integers(0, len(memory), 128)]
        b_obs, b_actions, b_rewards, b_next, b_dones = (
            torch.as_tensor(np.array(part)) for part in zip(*picked, strict=True)
        )
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            next_actions, next_log_pi = actor.get_action(b_next)
            next_q1, next_q2 = qf1_target(b_next, next_actions), qf2_target(b_next, next_actions)
            min_qf_next = torch.min(next_q1, next_q2) - alpha * next_log_pi
            next_q_value = b_rewards + (1 - b_dones) * args.gamma * min_qf_next.view(-1)
        qf1_loss = F.mse_loss(qf1(b_obs, b_actions).view(-1), next_q_value)
        qf2_loss = F.mse_loss(qf2(b_obs, b_actions).view(-1), next_q_value)
        qf_loss = qf1_loss + qf2_loss
        q_optimizer.zero_grad()
        qf_loss.backward()
        q_optimizer.step()

        pi, log_pi = actor.get_action(b_obs)
        min_qf_pi = torch.min(qf1(b_obs, pi), qf2(b_obs, pi))
        actor_loss = (alpha * log_pi - min_qf_pi).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()

        alpha_loss = (-log_alpha.exp() * (log_pi.detach() + target_entropy)).mean()
        a_optimizer.zero_grad()
        alpha_loss.backward()
        a_optimizer.step()
        for net, target in ((qf1, qf1_target), (qf2, qf2_target)):
            for p, t in zip(net.parameters(), target.parameters(), strict=True):
                t.data.copy_(args.tau * p.data + (1 - args.tau) * t.data)


if __name__ == "__main__":
    main()
