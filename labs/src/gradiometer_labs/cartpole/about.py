"""What the cartpole lab is, in a list, in the clinic and in experiments; torch-free."""

from __future__ import annotations

from gradiometer_labs.lab import ClinicSetup, ExperimentSettings, Lab, kinds

__all__ = ["LAB"]

DQN = (
    "algorithm=dqn",
    "total_steps=30000",
    "every=50",
    "learning_rate=2e-3",
    "max_reward=200",
    "num_steps=75",
)
REINFORCE = (
    "algorithm=reinforce",
    "every=1",
    "max_reward=200",
    "learning_rate=3e-3",
    "total_steps=60000",
)

LAB = Lab(
    name="cartpole",
    summary="PPO, DQN or REINFORCE balances a pole, with networks of two hidden layers, on "
    "Gymnasium's CartPole-v1",
    length_key="total_steps",
    return_over="the last 100 episodes",
    clinic_setups=(
        ClinicSetup(
            name="cartpole-ppo",
            lab="cartpole",
            overrides=("algorithm=ppo", "total_steps=40000"),
            kinds=kinds(
                slow=("learning_rate=3e-4",),
                noisy=("num_envs=4",),
                converged=("total_steps=20000",),
                brief=("total_steps=10000",),
            ),
            trained=("total_steps=100000",),
            quick=("entropy_no_grad", "critic_detached", "none"),
            doubles=(
                "entropy_no_grad+lr_low",
                "critic_lr_zero+entropy_no_grad",
                "nan_layer+entropy_no_grad",
                "critic_detached+log_prob_wrong_action",
            ),
        ),
        ClinicSetup(
            name="cartpole-dqn",
            lab="cartpole",
            overrides=DQN,
            kinds=kinds(
                slow=("learning_rate=7e-4",),
                noisy=("num_envs=4",),
                converged=("total_steps=15000",),
                brief=("total_steps=8000",),
            ),
            trained=("total_steps=45000",),
            doubles=("target_is_online+dead_relus",),
        ),
        ClinicSetup(
            name="cartpole-reinforce",
            lab="cartpole",
            overrides=REINFORCE,
            kinds=kinds(
                slow=("learning_rate=1e-3",),
                noisy=("num_envs=4",),
                converged=("total_steps=30000",),
                brief=("total_steps=15000",),
            ),
            trained=("total_steps=120000",),
        ),
    ),
    experiments=ExperimentSettings(
        terms={"entropy": "ent_coef", "value": "vf_coef"}, batches=12, searched=8
    ),
)
