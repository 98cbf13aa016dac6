"""The ward of skrl: PPO, DDQN and SAC by its own trainer, one argument or method changed.

skrl has no callback, so it is watched as its users would: `gm.watch` around `trainer.train()`, and
what the agent tracks goes to the meter beside TensorBoard.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from skrl.agents.torch.ddqn import DDQN
from skrl.agents.torch.ppo import PPO
from skrl.agents.torch.sac import SAC
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import nn

import gradiometer as gm
from gradiometer_labs.wards.tasks import make_task
from gradiometer_labs.wards.ward import BUDGET, Patient, Ranges, Ward, replaced

__all__ = ["WARD"]

NETWORK: dict[str, Any] = {
    "width": [32, 64],
    "activation": ["Tanh", "ReLU"],
    "discount_factor": [0.95, 0.97, 0.99],
    "learning_rate": (1e-3, 3e-3),
}
ON: dict[str, Any] = {
    "mini_batches": [2, 4],
    "learning_epochs": [4, 6],
    "gae_lambda": [0.9, 0.95],
    "entropy_loss_scale": (0.001, 0.01),
    **NETWORK,
}
OFF: dict[str, Any] = {"batch_size": [64, 128], "polyak": [0.01, 0.02], **NETWORK}
VALUES: dict[str, Any] = {"batch_size": [32, 64], "target_update_interval": [25, 50], **NETWORK}
WARD = Ward(
    name="skrl",
    summary="skrl",
    setups={
        ("PPO", "walk"): Ranges(fixed={"timesteps": 4500, "rollouts": 256}, drawn=ON),
        ("PPO", "bandit"): Ranges(fixed={"timesteps": 4000, "rollouts": 256}, drawn=ON),
        ("DDQN", "walk"): Ranges(fixed={"timesteps": 2200}, drawn=VALUES),
        ("SAC", "reach"): Ranges(fixed={"timesteps": 1200}, drawn=OFF),
    },
)
AGENTS: dict[str, Any] = {"PPO": PPO, "DDQN": DDQN, "SAC": SAC}
REPLAYED = ("DDQN", "SAC")
START = 100
"""Steps before the first update from a replay memory."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    "PPO": {
        "value_loss_scale": 0.5,
        "value_clip": 0.0,
        "grad_norm_clip": 0.5,
        "time_limit_bootstrap": True,
    },
    "DDQN": {"learning_starts": START, "polyak": 1.0},
    "SAC": {"learning_starts": START, "random_timesteps": START},
}


class _Categorical(CategoricalMixin, Model):  # type: ignore[misc]
    """A policy over actions that can be counted."""

    def __init__(self, spaces: dict[str, Any], layers: Callable[[int, int], nn.Module]) -> None:
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)
        self.net = layers(self.num_observations, self.num_actions)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Any, dict[str, Any]]:
        """Logits."""
        return self.net(inputs["observations"]), {}


class _Gaussian(GaussianMixin, Model):  # type: ignore[misc]
    """A policy over actions that are numbers."""

    def __init__(self, spaces: dict[str, Any], layers: Callable[[int, int], nn.Module]) -> None:
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self, clip_actions=True, min_log_std=-5.0)
        self.net = layers(self.num_observations, self.num_actions)
        self.log_std = nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Any, dict[str, Any]]:
        """Mean and log standard deviation."""
        return torch.tanh(self.net(inputs["observations"])), {"log_std": self.log_std}


class _Value(DeterministicMixin, Model):  # type: ignore[misc]
    """A critic of states, of states and actions, or of every action at once."""

    def __init__(
        self, spaces: dict[str, Any], layers: Callable[[int, int], nn.Module], of: str
    ) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self._of_actions = of == "actions"
        inputs = self.num_observations + self._of_actions * self.num_actions
        self.net = layers(inputs, self.num_actions if of == "all" else 1)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Any, dict[str, Any]]:
        """Values."""
        seen = inputs["observations"]
        if self._of_actions:
            seen = torch.cat([seen, inputs["taken_actions"]], dim=1)
        return self.net(seen), {}


def _models(algorithm: str, spaces: dict[str, Any], layers: Any) -> dict[str, Any]:
    if algorithm == "PPO":
        return {"policy": _Categorical(spaces, layers), "value": _Value(spaces, layers, "state")}
    if algorithm == "DDQN":
        return {name: _Value(spaces, layers, "all") for name in ("q_network", "target_q_network")}
    twins = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
    critics = {name: _Value(spaces, layers, "actions") for name in twins}
    return {"policy": _Gaussian(spaces, layers), **critics}


Batch = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class _Setup:
    """What is about to be made; a fault changes it."""

    algorithm: str
    arguments: dict[str, Any]
    """Of the agent's configuration."""
    wrappers: list[Callable[[Any], Any]] = field(default_factory=list)
    after: list[Callable[[Any], None]] = field(default_factory=list)
    """What is done to the agent that was made."""

    def samples(self, change: Callable[[Batch], Batch]) -> None:
        """The batches that the agent takes out of its memory."""

        def patch(agent: Any) -> None:
            def sample(own: Callable[..., Any], *args: Any, names: Any, **more: Any) -> Any:
                found = own(*args, names=names, **more)
                batches = (dict(zip(names, each, strict=True)) for each in found)
                return [list(change(each).values()) for each in batches]

            replaced(agent.memory, "sample", sample)

        self.after.append(patch)

    def read(self, name: str, change: Callable[[Any], Any]) -> None:
        """A tensor of the memory, as PPO reads it to compute its advantages."""
        self._tensor("get_tensor_by_name", name, lambda own, *args: change(own(*args)))

    def written(self, name: str, change: Callable[[Any], Any]) -> None:
        """A tensor as PPO writes it into the memory."""
        self._tensor(
            "set_tensor_by_name", name, lambda own, name, tensor: own(name, change(tensor))
        )

    def _tensor(self, method: str, name: str, changed: Callable[..., Any]) -> None:
        def patch(agent: Any) -> None:
            replaced(
                agent.memory,
                method,
                lambda own, asked, *more, **keys: (
                    changed(own, asked, *more) if asked == name else own(asked, *more, **keys)
                ),
            )

        self.after.append(patch)


@WARD.trains
def train(patient: Patient, run: Path) -> Sequence[float]:
    """Train it with skrl's sequential trainer."""
    logging.getLogger("skrl").setLevel(logging.ERROR)  # it tells of every seed and wrapper
    drawn = dict(patient.settings)
    returns: list[float] = []
    seed, timesteps = drawn.pop("seed") % 2**31, drawn.pop("timesteps")
    layers = _layers(drawn.pop("width"), getattr(nn, drawn.pop("activation")))
    setup = _Setup(algorithm=patient.algorithm, arguments={**ARGUMENTS[patient.algorithm], **drawn})
    if patient.algorithm == "DDQN":
        setup.arguments["exploration_scheduler"] = lambda step, steps: max(
            0.05, 1.0 - step / (0.4 * steps)
        )
    if patient.ward_fault is not None:
        patient.ward_fault.breaks(setup)
    set_seed(seed)
    gym_env: gym.Env[Any, Any] = make_task(patient.task, returns)
    for wrapper in setup.wrappers:
        gym_env = wrapper(gym_env)
    gym_env.action_space.seed(seed)
    env = wrap_env(gym_env, wrapper="gymnasium", verbose=False)
    agent = _agent(patient.algorithm, env, setup, layers, run.parent / "tensorboard", timesteps)
    for change in setup.after:
        change(agent)
    config = {"algorithm": patient.algorithm, "timesteps": timesteps, "seed": seed}
    config |= {name: x for name, x in setup.arguments.items() if not callable(x)}
    trainer = SequentialTrainer(
        env=env,
        agents=agent,
        cfg={
            "timesteps": timesteps,
            "headless": True,
            "disable_progressbar": True,
            "close_environment_at_exit": False,
        },
    )
    models = {name: model for name, model in agent.models.items() if "target" not in name}
    found = {name: x for name, x in vars(agent).items() if isinstance(x, torch.optim.Optimizer)}
    with gm.watch(
        models, found, run=run, budget=BUDGET, keep=4, quiet=True, config=config, seed=seed
    ) as meter:
        _report(agent, meter)
        trainer.train()
    return returns


def _layers(width: int, activation: Any) -> Callable[[int, int], nn.Module]:
    return lambda inputs, outputs: nn.Sequential(
        nn.Linear(inputs, width),
        activation(),
        nn.Linear(width, width),
        activation(),
        nn.Linear(width, outputs),
    )


def _agent(
    algorithm: str, env: Any, setup: _Setup, layers: Any, folder: Path, timesteps: int
) -> Any:
    spaces = {
        "observation_space": env.observation_space,
        "action_space": env.action_space,
        "device": "cpu",
    }
    size = setup.arguments.get("rollouts", timesteps)
    experiment = {"directory": str(folder), "write_interval": 100, "checkpoint_interval": 0}
    return AGENTS[algorithm](
        models=_models(algorithm, spaces, layers),
        memory=RandomMemory(memory_size=size, num_envs=1, device="cpu"),
        cfg={**setup.arguments, "experiment": experiment},
        **spaces,
    )


def _report(agent: Any, meter: Any) -> None:
    """What the agent writes to TensorBoard goes to the meter too."""

    def write(own: Callable[..., None], **more: Any) -> None:
        meter.log({name: float(np.mean(x)) for name, x in agent.tracking_data.items()})
        own(**more)

    replaced(agent, "write_tracking_data", write)


def _changed(**values: Callable[[Any], Any]) -> Callable[[Batch], Batch]:
    """A batch with some entries changed."""
    return lambda batch: {
        name: values[name](x) if name in values else x for name, x in batch.items()
    }


def _optimizers(agent: Any) -> list[torch.optim.Optimizer]:
    return [x for x in vars(agent).values() if isinstance(x, torch.optim.Optimizer)]


# Settings


@WARD.fault(accept=("step-too-large", "ratio-explosion", "kl-runaway"))
def learning_rate_high(setup: _Setup) -> None:
    """The learning rate is 100 times what it should be."""
    setup.arguments["learning_rate"] *= 100


@WARD.fault(accept=("policy-frozen",))
def learning_rate_low(setup: _Setup) -> None:
    """The learning rate is a thousandth of what it should be."""
    setup.arguments["learning_rate"] /= 1000


@WARD.fault("PPO", accept=("entropy-never-falls", "regulariser-dominates"))
def entropy_coefficient_high(setup: _Setup) -> None:
    """The entropy bonus outweighs the reward."""
    setup.arguments["entropy_loss_scale"] = 2.0


@WARD.fault("PPO", accept=("entropy-sign", "entropy-collapse"))
def entropy_coefficient_negative(setup: _Setup) -> None:
    """The entropy is a cost and not a bonus."""
    setup.arguments["entropy_loss_scale"] = -0.5


@WARD.fault("PPO", accept=("dead-term", "critic-explains-nothing"))
def value_coefficient_zero(setup: _Setup) -> None:
    """The value loss has the coefficient 0: the critic never learns."""
    setup.arguments["value_loss_scale"] = 0.0


@WARD.fault("DDQN", accept=("exploration-schedule",))
def exploration_stays(setup: _Setup) -> None:
    """Every action is random until the end."""
    setup.arguments["exploration_scheduler"] = lambda step, steps: 1.0


@WARD.fault(*REPLAYED, accept=("target-network",))
def target_never_follows(setup: _Setup) -> None:
    """The target networks keep their first weights."""
    setup.arguments["polyak"] = 0.0


@WARD.fault(accept=("recipe-mismatch", "returns-wrong"))
def discount_zero(setup: _Setup) -> None:
    """The agent discounts by 0, whatever the settings say."""
    setup.after.append(lambda agent: setattr(agent.cfg, "discount_factor", 0.0))


# Rewards and data


@WARD.fault(accept=("reward-scale", "advantage-scale", "critic-diverges"))
def reward_times_1000(setup: _Setup) -> None:
    """Rewards are a thousand times larger than the settings are made for."""
    setup.wrappers.append(
        lambda env: gym.wrappers.TransformReward(env, lambda reward: 1000.0 * float(reward))
    )


@WARD.fault(accept=("update-opposes-reward", "recipe-mismatch", "reward-declining"))
def reward_negative(setup: _Setup) -> None:
    """The rewards shaper turns the sign."""
    setup.arguments["rewards_shaper"] = lambda rewards, *_: -rewards


@WARD.fault(accept=("recipe-mismatch", "returns-wrong"))
def ends_not_masked(setup: _Setup) -> None:
    """Values are carried over the ends of episodes."""
    if setup.algorithm in REPLAYED:
        setup.samples(_changed(terminated=torch.zeros_like))
    else:
        setup.read("terminated", torch.zeros_like)
        setup.read("truncated", torch.zeros_like)


@WARD.fault("PPO", accept=("recipe-mismatch", "update-opposes-reward"))
def advantages_flipped(setup: _Setup) -> None:
    """Advantages have the wrong sign."""
    setup.written("advantages", torch.neg)


@WARD.fault("PPO", accept=("recipe-mismatch", "misaligned-data"))
def advantages_shifted(setup: _Setup) -> None:
    """Each step gets the advantage of the step before."""
    setup.written("advantages", lambda x: x.roll(1, 0))


@WARD.fault("PPO", accept=("recipe-mismatch", "returns-wrong", "critic-explains-nothing"))
def returns_are_advantages(setup: _Setup) -> None:
    """The critic is trained towards advantages."""
    setup.samples(lambda batch: {**batch, "returns": batch["advantages"]})


@WARD.fault("PPO", accept=("sampler-mismatch", "ratio-explosion"))
def old_log_prob_of_other_actions(setup: _Setup) -> None:
    """The old log-probabilities are moved by one sample."""
    setup.samples(_changed(log_prob=lambda x: x.roll(1, 0)))


@WARD.fault("PPO", accept=("misaligned-data", "sampler-mismatch", "score-not-zero-mean"))
def observations_of_other_steps(setup: _Setup) -> None:
    """Observations of a batch are moved by one sample."""
    setup.samples(_changed(observations=lambda x: x.roll(1, 0)))


@WARD.fault("PPO", accept=("shapes-broadcast",))
def returns_broadcast(setup: _Setup) -> None:
    """Returns have the shape [N] beside values of [N, 1]: the error is a square."""
    setup.samples(_changed(returns=torch.flatten))


@WARD.fault(*REPLAYED, accept=("recipe-mismatch", "misaligned-data"))
def rewards_of_other_steps(setup: _Setup) -> None:
    """Rewards of a batch are moved by one sample."""
    setup.samples(_changed(rewards=lambda x: x.roll(1, 0)))


@WARD.fault(*REPLAYED, accept=("recipe-mismatch", "misaligned-data"))
def actions_of_other_steps(setup: _Setup) -> None:
    """Actions of a batch are moved by one sample."""
    setup.samples(_changed(actions=lambda x: x.roll(1, 0)))


@WARD.fault(*REPLAYED, accept=("recipe-mismatch", "misaligned-data"))
def next_is_now(setup: _Setup) -> None:
    """The next observation is the present one."""
    setup.samples(lambda batch: {**batch, "next_observations": batch["observations"]})


@WARD.fault(*REPLAYED, accept=("stale-data",))
def replay_never_renewed(setup: _Setup) -> None:
    """Nothing is stored after the first steps."""

    def patch(agent: Any) -> None:
        def add(own: Callable[..., None], **tensors: Any) -> None:
            if agent.memory.memory_index < START:
                own(**tensors)

        replaced(agent.memory, "add_samples", add)

    setup.after.append(patch)


# Loss and optimizer


@WARD.fault("PPO", accept=("dead-term",))
def entropy_detached(setup: _Setup) -> None:
    """The entropy in the loss has no gradient."""
    setup.after.append(
        lambda agent: replaced(
            agent.policy, "get_entropy", lambda own, **role: own(**role).detach()
        )
    )


@WARD.fault("SAC", accept=("update-opposes-reward", "recipe-mismatch"))
def actor_descends(setup: _Setup) -> None:
    """The actor goes where its critics promise least."""

    def patch(agent: Any) -> None:
        def act(own: Callable[..., Any], inputs: Any, *, role: str = "") -> Any:
            values, outputs = own(inputs, role=role)
            return (-values if inputs["taken_actions"].requires_grad else values), outputs

        for critic in (agent.critic_1, agent.critic_2):
            replaced(critic, "act", act)

    setup.after.append(patch)


@WARD.fault(accept=("gradients-not-cleared",))
def gradients_not_cleared(setup: _Setup) -> None:
    """`zero_grad` is missing: every step adds the gradients of all before."""

    def patch(agent: Any) -> None:
        for optimizer in _optimizers(agent):
            optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]

    setup.after.append(patch)


@WARD.fault(accept=("never-trained", "not-in-optimizer"))
def optimizer_of_a_copy(setup: _Setup) -> None:
    """The optimizers hold the parameters of copies, made before the networks were replaced."""

    def patch(agent: Any) -> None:
        for optimizer in _optimizers(agent):
            for group in optimizer.param_groups:
                group["params"] = [copy.deepcopy(p) for p in group["params"]]

    setup.after.append(patch)


@WARD.fault("PPO", accept=("not-in-optimizer", "never-trained"))
def optimizer_without_actor(setup: _Setup) -> None:
    """The optimizer has the critic's parameters only."""

    def patch(agent: Any) -> None:
        for group in agent.optimizer.param_groups:
            group["params"] = list(agent.value.parameters())

    setup.after.append(patch)


@WARD.fault("SAC", accept=("never-trained", "not-in-optimizer", "policy-frozen"))
def actor_never_stepped(setup: _Setup) -> None:
    """The actor's optimizer is never stepped."""
    setup.after.append(
        lambda agent: setattr(agent.policy_optimizer, "step", lambda closure=None: None)
    )
