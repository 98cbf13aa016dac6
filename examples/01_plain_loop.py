"""Watch a plain PyTorch loop: three lines around a training you already have.

`python examples/01_plain_loop.py` prints how the gradient norm and the reward moved, read back from
the run. At least 100 steps are measured, and more as they fit into 1 % of the time; `budget=None`
measures all. Needs `pip install "gradiometer[torch]"`.
"""

import torch

import gradiometer as gm

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

with gm.watch(model, optimizer, run="runs/plain", overwrite=True) as meter:
    for _ in range(200):
        states = torch.randn(64, 4)
        policy = torch.distributions.Categorical(logits=model(states))
        actions = policy.sample()
        rewards = (
            actions == (states[:, 0] > 0)
        ).float()  # a bandit: choose the side the first number is on
        loss = -(policy.log_prob(actions) * (rewards - rewards.mean())).mean()

        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        meter.log(reward=rewards.mean(), entropy=policy.entropy().mean())

run = gm.load("runs/plain")
steps, norms = run.series("grad/all/norm/raw")
_, rewards_seen = run.series("reward")
print(
    f"{len(steps)} of {run.newest_step + 1} steps measured: raw norm {norms[0]:.3g} ->"
    f" {norms[-1]:.3g}, reward {rewards_seen[0]:.2f} -> {rewards_seen[-1]:.2f}"
)
