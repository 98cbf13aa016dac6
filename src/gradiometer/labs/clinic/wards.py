"""The short forms of the labs that patients train in: long enough that a healthy training visibly learns, and no longer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradiometer.labs.faults import Fault

__all__ = ["DOUBLES", "KINDS", "QUICK", "WARDS", "Ward", "kinds", "ward_of"]

KINDS = ("fast", "slow", "noisy", "converged")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ward:
    """A lab in the clinic's form."""

    name: str
    lab: str
    overrides: tuple[str, ...]
    kinds: Mapping[str, tuple[str, ...]]
    """What changes for each kind of training: fast, slow, noisy, converged; and brief, for --quick."""
    trained: tuple[str, ...]
    """Overrides of the training whose weights the converged ones start from."""
    base: tuple[str, ...] | None = None
    """Overrides of the training whose weights everybody starts from, where learning from scratch takes too long."""


def kinds(
    *, slow: tuple[str, ...], noisy: tuple[str, ...], converged: tuple[str, ...], brief: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """What changes for each kind of training; the fast one is the ward's own form."""
    return {"fast": (), "slow": slow, "noisy": noisy, "converged": converged, "brief": brief}


CARTPOLE_DQN = (
    "algorithm=dqn",
    "total_steps=30000",
    "every=50",
    "learning_rate=2e-3",
    "max_reward=200",
    "num_steps=75",
)
CARTPOLE_REINFORCE = ("algorithm=reinforce", "every=1", "max_reward=200", "learning_rate=3e-3", "total_steps=60000")
PRISMATIC = ("steps=250", "batch_size=16", "every=4", "val_size=32", "val_every=25")
PRISMATIC_KINDS = kinds(
    slow=("learning_rate=3e-3",),
    noisy=("batch_size=8",),
    converged=("steps=120", "learning_rate=1e-3"),
    brief=("steps=40",),
)
SOKOBAN = (
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
TSP = (
    "num_loc=10",
    "embed_dim=32",
    "num_layers=2",
    "steps=250",
    "learning_rate=1e-3",
    "every=4",
    "val_size=32",
    "val_every=25",
)

WARDS: dict[str, Ward] = {
    ward.name: ward
    for ward in (
        Ward(
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
        ),
        Ward(
            name="cartpole-dqn",
            lab="cartpole",
            overrides=CARTPOLE_DQN,
            kinds=kinds(
                slow=("learning_rate=7e-4",),
                noisy=("num_envs=4",),
                converged=("total_steps=15000",),
                brief=("total_steps=8000",),
            ),
            trained=("total_steps=45000",),
        ),
        Ward(
            name="cartpole-reinforce",
            lab="cartpole",
            overrides=CARTPOLE_REINFORCE,
            kinds=kinds(
                slow=("learning_rate=1e-3",),
                noisy=("num_envs=4",),
                converged=("total_steps=30000",),
                brief=("total_steps=15000",),
            ),
            trained=("total_steps=120000",),
        ),
        Ward(
            name="pendulum",
            lab="pendulum",
            overrides=("total_steps=40000",),
            kinds=kinds(
                slow=("learning_rate=1e-3",),
                noisy=("batch_size=32",),
                converged=("total_steps=20000",),
                brief=("total_steps=12000",),
            ),
            trained=("total_steps=51200",),
        ),
        Ward(
            name="prismatic",
            lab="prismatic",
            overrides=PRISMATIC,
            kinds=PRISMATIC_KINDS,
            trained=("steps=700",),
        ),
        Ward(
            name="prismatic-topk",
            lab="prismatic",
            overrides=("router_type=topk", *PRISMATIC),
            kinds=PRISMATIC_KINDS,
            trained=("steps=700",),
        ),
        Ward(
            name="sokoban",
            lab="sokoban",
            overrides=SOKOBAN,
            kinds=kinds(
                slow=("actor_rollout_ref.actor.optim.lr=1.5e-4",),
                noisy=("es_manager.train.env_groups=4",),
                converged=("trainer.total_training_steps=40",),
                brief=("trainer.total_training_steps=14",),
            ),
            trained=("trainer.total_training_steps=200",),
            base=("warm_start.steps=240", "trainer.total_training_steps=1"),
        ),
        Ward(
            name="sparsify",
            lab="sparsify",
            overrides=("problem.grid_size=16", "problem.num_samples=64", "steps=60"),
            kinds=kinds(
                slow=("learning_rate=5e-3",), noisy=("rollouts=2",), converged=("steps=40",), brief=("steps=12",)
            ),
            trained=("steps=160",),
        ),
        Ward(
            name="tsp",
            lab="tsp",
            overrides=TSP,
            kinds=kinds(
                slow=("learning_rate=3e-4",),
                noisy=("batch_size=8",),
                converged=("steps=120", "learning_rate=2e-4"),
                brief=("steps=60",),
            ),
            trained=("steps=800",),
        ),
        Ward(
            name="bugs",
            lab="bugs",
            overrides=("steps=100",),
            kinds=kinds(
                slow=("learning_rate=3e-4",), noisy=("num_prompts=4",), converged=("steps=60",), brief=("steps=20",)
            ),
            trained=("steps=250",),
        ),
    )
}

DOUBLES: tuple[tuple[str, str], ...] = (
    ("cartpole-ppo", "entropy_no_grad+lr_low"),
    ("cartpole-ppo", "critic_lr_zero+entropy_no_grad"),
    ("cartpole-ppo", "nan_layer+entropy_no_grad"),
    ("cartpole-ppo", "critic_detached+log_prob_wrong_action"),
    ("cartpole-dqn", "target_is_online+dead_relus"),
    ("prismatic", "router_detached+nan_layer"),
    ("tsp", "wrong_sign+encoder_detached"),
    ("sokoban", "entropy_no_grad+wrong_sign"),
)
"""Patients with two faults, by ward."""

QUICK: tuple[tuple[str, str], ...] = (
    ("bugs", "trl_5595"),
    ("cartpole-ppo", "entropy_no_grad"),
    ("cartpole-ppo", "critic_detached"),
    ("cartpole-ppo", "none"),
    ("pendulum", "critic_detached"),
    ("prismatic", "router_detached"),
    ("prismatic", "none"),
    ("sokoban", "entropy_no_grad"),
    ("sparsify", "entropy_no_grad"),
    ("tsp", "encoder_detached"),
    ("tsp", "none"),
)
"""The patients of --quick, by ward: faults of the wiring, which show at once, in brief trainings; none is a control."""


def ward_of(fault: Fault) -> Ward:
    """Where a fault is treated: the ward of its lab whose settings it needs, otherwise the lab's first."""
    own = [ward for ward in WARDS.values() if ward.lab == fault.lab]
    return max(own, key=lambda ward: len(set(fault.needs) & set(ward.overrides)))  # the first of equals
