"""Two optimizers with different cadences (SAC, TD3): blocks are named, rounds are counted for you.

`python examples/03_actor_and_critic.py` prints how often each block was measured, the actor half as
often as the critic, and its last update. Needs `pip install "gradiometer[torch]"`.
"""

import torch

import gradiometer as gm

torch.manual_seed(0)
actor = torch.nn.Sequential(
    torch.nn.Linear(3, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1), torch.nn.Tanh()
)
critic = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)

watched = gm.watch(
    {"actor": actor, "critic": critic},
    {"actor": actor_optimizer, "critic": critic_optimizer},
    run="runs/two-optimizers",
    blocks={"actor": "^actor", "critic": "^critic"},
    overwrite=True,
)
with watched as meter:
    for update in range(100):
        states = torch.randn(128, 3)
        actions = torch.rand(128, 1) * 2 - 1
        rewards = -(
            actions - states[:, :1]
        ).square()  # best: the action equals the first number of the state

        critic_optimizer.zero_grad()
        critic_loss = (critic(torch.cat([states, actions], 1)) - rewards).square().mean()
        critic_loss.backward()
        critic_optimizer.step()
        if update % 2:  # the delayed actor of TD3
            actor_optimizer.zero_grad()
            actor_loss = -critic(torch.cat([states, actor(states)], 1)).mean()
            actor_loss.backward()
            actor_optimizer.step()
            meter.log(actor_loss=actor_loss)
        meter.log(critic_loss=critic_loss)

run = gm.load("runs/two-optimizers")
for block in ("actor", "critic"):
    steps, updates = run.series(f"grad/{block}/norm/update")
    print(f"{block}: {len(steps)} measured steps, last update {updates[-1]:.3g}")
