"""A contextual bandit; the loss is made in a helper and grows with `+=`."""

import argparse

import torch
from torch import nn
from torch.distributions import Categorical

CONTEXTS, ARMS = 6, 5


def make_loss(dist, actions, rewards, baseline, coefficients):
    advantages = rewards - baseline.detach()
    loss = -(dist.log_prob(actions) * advantages).mean()
    loss += coefficients["value"] * (baseline - rewards).pow(2).mean()
    loss += -coefficients["entropy"] * dist.entropy().mean()
    return loss


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(CONTEXTS, 32), nn.ReLU())
        self.choice = nn.Linear(32, ARMS)
        self.worth = nn.Linear(32, 1)

    def forward(self, x):
        h = self.shared(x)
        return self.choice(h), self.worth(h).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1500)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    pays = torch.rand(CONTEXTS, ARMS)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    for step in range(args.steps):
        context = torch.randint(0, CONTEXTS, (64,))
        logits, baseline = net(nn.functional.one_hot(context, CONTEXTS).float())
        dist = Categorical(logits=logits)
        actions = dist.sample()
        rewards = pays[context, actions] + 0.2 * torch.randn(64)
        loss = make_loss(dist, actions, rewards, baseline, {"value": 0.5, "entropy": 0.005})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} reward {rewards.mean().item():.3f}")


if __name__ == "__main__":
    main()
