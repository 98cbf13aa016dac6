"""Watch a loop with accelerate: accumulation, mixed precision and clipping are its own, three lines
are ours.

`python examples/13_accelerate.py` prints how many micro-batches make a step, and the gradient norm
before and after the clip. Needs `pip install "gradiometer[transformers]"`.
"""

import torch
from accelerate import Accelerator

import gradiometer as gm

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4, mixed_precision="bf16")
model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
states = torch.utils.data.DataLoader(torch.randn(3200, 4), batch_size=8)
model, optimizer, states = accelerator.prepare(model, optimizer, states)

with gm.watch(model, optimizer, run="runs/accelerate", overwrite=True) as meter:
    for state in states:
        with accelerator.accumulate(model):
            policy = torch.distributions.Categorical(logits=model(state))
            actions = policy.sample()
            rewards = (
                actions == (state[:, 0] > 0)
            ).float()  # a bandit: choose the side the first number is on
            accelerator.backward(-(policy.log_prob(actions) * (rewards - 0.5)).mean())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            meter.log(reward=rewards.mean())

run = gm.load("runs/accelerate")
steps, raw = run.series("grad/all/norm/raw")
_, clipped = run.series("grad/all/norm/clipped")
parts = run.series("meter/micro_batches")[1]
print(
    f"{run.newest_step + 1} optimizer steps of {parts[0]:.0f} micro-batches each, {len(steps)} of"
    " them measured"
)
print(f"raw norm {raw.mean():.3g}, clipped {clipped.mean():.3g}")
