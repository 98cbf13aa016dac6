"""Three optimizers, target networks, and a coefficient that is no module."""

import sys

import torch
from stable_baselines3 import SAC

shape = {"net_arch": [16]}
model = SAC(
    "MlpPolicy",
    "Pendulum-v1",
    learning_starts=170,
    batch_size=32,
    seed=1,
    device="cpu",
    policy_kwargs=shape,
)
model.learn(total_timesteps=210, log_interval=1)
torch.save(model.policy.state_dict(), sys.argv[1])
