"""Stable-Baselines3 as its README shows it."""

import sys

import torch
from stable_baselines3 import PPO

model = PPO(
    "MlpPolicy",
    "CartPole-v1",
    n_steps=128,
    batch_size=64,
    n_epochs=2,
    verbose=1,
    seed=1,
    device="cpu",
)
model.learn(total_timesteps=256)
torch.save(model.policy.state_dict(), sys.argv[1])
