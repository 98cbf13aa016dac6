"""torchrl's Trainer: one line registers the hook. The terms of the loss module are taken apart by
themselves.

`python examples/12_torchrl.py` prints the return, and the share that each term of the loss has in
the gradient. Needs `pip install "gradiometer[torchrl]"`.
"""

import torch
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical
from torchrl.envs import GymEnv, RewardSum, TransformedEnv
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss

import gradiometer as gm
from gradiometer.integrations.torchrl import GradiometerHook

# isort: split
from torchrl.collectors import Collector
from torchrl.trainers import DefaultOptimizationStepper, Trainer

torch.manual_seed(0)
env = TransformedEnv(
    GymEnv("CartPole-v1", categorical_action_encoding=True), RewardSum()
)  # keeps the return of episodes
logits = TensorDictModule(
    MLP(in_features=4, out_features=2, num_cells=[64]), ["observation"], ["logits"]
)
actor = ProbabilisticActor(
    logits, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True
)
loss_module = ClipPPOLoss(actor, ValueOperator(MLP(in_features=4, out_features=1, num_cells=[64])))
loss_module.make_value_estimator()


def add_advantages(batch):
    with torch.no_grad():
        return loss_module.value_estimator(batch)


trainer = Trainer(
    collector=Collector(
        env, actor, frames_per_batch=256, total_frames=2048, auto_register_policy_transforms=False
    ),
    total_frames=2048,
    frame_skip=1,
    optim_steps_per_batch=10,
    loss_module=loss_module,
    optimizer=torch.optim.Adam(loss_module.parameters(), lr=1e-3),
    optimization_stepper=DefaultOptimizationStepper(),
    clip_norm=0.5,
    progress_bar=False,
    seed=0,
)
trainer.register_op("batch_process", add_advantages)
GradiometerHook(run="runs/torchrl", overwrite=True).register(trainer)
trainer.train()

run = gm.load("runs/torchrl")
print(f"return {run.series('reward')[1][0]:.1f} → {run.series('reward')[1][-1]:.1f}")
for term in ("policy", "entropy", "critic"):
    print(f"{term:<8} {run.series(f'grad/all/term/{term}/share')[1].mean():>7.1%} of the gradient")
