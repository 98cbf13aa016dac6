"""Find an entropy bonus that has no gradient: the mistake of computing it under no_grad, shown at
the first step.

`python examples/02_dead_term.py` prints the event that names the dead term, at step 0, and what the
two living terms do to the shared trunk. Needs `pip install "gradiometer[torch]"`.
"""

import torch

import gradiometer as gm

torch.manual_seed(0)
trunk = torch.nn.Linear(4, 32)
model = torch.nn.ModuleDict(
    {"trunk": trunk, "actor": torch.nn.Linear(32, 2), "critic": torch.nn.Linear(32, 1)}
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

with gm.watch(model, optimizer, run="runs/dead-term", overwrite=True) as meter:
    for _ in range(20):
        hidden = torch.tanh(model["trunk"](torch.randn(64, 4)))
        policy = torch.distributions.Categorical(logits=model["actor"](hidden))
        actions = policy.sample()
        advantage = actions.float() - 0.5
        with torch.no_grad():  # the mistake
            entropy = policy.entropy().mean()
        terms = {
            "policy": -(policy.log_prob(actions) * advantage).mean(),
            "value": 0.5 * model["critic"](hidden).square().mean(),
            "entropy": -0.01 * entropy,
        }
        optimizer.zero_grad()
        with meter.terms(**terms) as loss:
            loss.backward()
        optimizer.step()

run = gm.load("runs/dead-term")
for event in run.events("dead-term"):
    print(f"step {event.step}: {event.message}")
for term in ("policy", "value"):
    print(
        f"{term:>7} on the shared trunk: {run.series(f'grad/trunk/term/{term}/norm')[1].mean():.3g}"
    )
