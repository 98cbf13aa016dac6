"""What the sokoban lab is, in a list, in the clinic and in experiments; torch-free."""

from __future__ import annotations

from gradiometer_labs.lab import ClinicSetup, ExperimentSettings, Lab, kinds

__all__ = ["LAB"]

SHORT = (
    "env.size=5",
    "env.max_pushes=2",
    "env.max_turns=2",
    "env.max_actions_per_turn=3",
    "model.hidden_size=48",
    "model.num_layers=2",
    "model.num_heads=4",
    "model.intermediate_size=96",
    "reward.kind=verifier",
    "algorithm.adv_estimator=grpo",
    "algorithm.lam=1",
    "actor_rollout_ref.rollout.rollout_filter_value=1",
    "es_manager.train.env_groups=8",
    "es_manager.train.group_size=8",
    "es_manager.val.env_groups=32",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64",
    "actor_rollout_ref.actor.optim.lr=4e-4",
    "trainer.gradient_analysis_mode=false",
    "trainer.test_freq=4",
    "trainer.total_training_steps=64",
)

LAB = Lab(
    name="sokoban",
    summary="PPO or GRPO teaches a small language model to push boxes, over several turns, in "
    "groups of rollouts",
    length_key="trainer.total_training_steps",
    return_over="the last 10 training steps",
    clinic_setups=(
        ClinicSetup(
            name="sokoban",
            lab="sokoban",
            overrides=SHORT,
            kinds=kinds(
                slow=("actor_rollout_ref.actor.optim.lr=1.5e-4",),
                noisy=("es_manager.train.env_groups=4",),
                converged=("trainer.total_training_steps=40",),
                brief=("trainer.total_training_steps=14",),
            ),
            trained=("trainer.total_training_steps=200",),
            base=("warm_start.steps=240", "trainer.total_training_steps=1"),
            quick=("entropy_no_grad",),
            doubles=("entropy_no_grad+wrong_sign",),
        ),
    ),
    experiments=ExperimentSettings(
        terms={
            "entropy": "actor_rollout_ref.actor.entropy_coeff",
            "kl": "actor_rollout_ref.actor.kl_loss_coef",
        },
        batches=3,
        brief=(
            "warm_start.steps=8",
            "warm_start.num_levels=64",
            "es_manager.train.env_groups=4",
            "es_manager.train.env_configs.n_groups=null",
            "actor_rollout_ref.actor.ppo_mini_batch_size=null",
            "trainer.gradient_analysis_mode=false",
            "trainer.exit_after_gradient_analysis=false",
            "trainer.val_before_train=false",
            "trainer.test_freq=-1",
            "trainer.save_freq=-1",
            "trainer.default_local_dir=null",
            "trainer.resume_mode=disable",
            "trainer.resume_from_path=null",
        ),
    ),
)
