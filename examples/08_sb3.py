"""Stable-Baselines3: one callback. Actor and critic are found, what SB3 logs is read, the training
is not changed.

`python examples/08_sb3.py` prints reward and explained variance as SB3 logs them, and beside them
the gradient norms of actor and critic. Needs `pip install "gradiometer[sb3]"`.
"""

from stable_baselines3 import PPO

import gradiometer as gm
from gradiometer.integrations.sb3 import GradiometerCallback

model = PPO("MlpPolicy", "CartPole-v1", n_steps=512, seed=0, device="cpu")
model.learn(
    4096, callback=GradiometerCallback(run="runs/sb3", every=10, budget=None, overwrite=True)
)

run = gm.load("runs/sb3")
print(f"{run.facts['config']['algorithm']}: {run.newest_step + 1} optimizer steps")
for name in (
    "rollout/ep_rew_mean",
    "train/explained_variance",
    "grad/actor/norm/raw",
    "grad/critic/norm/raw",
):
    steps, values = run.series(name)
    print(f"{name:<26} {values[0]:>8.3g} → {values[-1]:<8.3g} at {len(steps)} steps")
