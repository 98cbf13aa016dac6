"""The ward of Stable-Baselines3: its algorithms as they are, one argument or method changed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from gradiometer.integrations.sb3 import GradiometerCallback
from gradiometer_labs.wards.tasks import make_task
from gradiometer_labs.wards.ward import BUDGET, Patient, Ranges, Ward, replaced

__all__ = ["WARD"]

WIDTHS, ACTIVATIONS = [32, 64, 128], ["Tanh", "ReLU"]
ON, OFF, ACTOR_CRITIC = ("PPO", "A2C"), ("DQN", "SAC", "TD3"), ("SAC", "TD3")


def _ranges(steps: int, lr: tuple[float, float], **drawn: Any) -> Ranges:
    return Ranges(
        fixed={"steps": steps},
        drawn={
            "width": WIDTHS,
            "activation": ACTIVATIONS,
            "learning_rate": lr,
            "gamma": [0.95, 0.97, 0.98, 0.99],
            **drawn,
        },
    )


PPO = {"n_envs": [4, 8], "batch_size": [64, 128], "n_epochs": [4, 6], "ent_coef": (0.001, 0.01)}
A2C = {"n_envs": [4, 8], "n_steps": [16, 32], "ent_coef": (0.001, 0.01), "vf_coef": [0.25, 0.5]}
DQN = {"batch_size": [32, 64], "target_update_interval": [50, 100]}
SOFT = {"batch_size": [64, 128], "tau": [0.01, 0.02]}
WARD = Ward(
    name="sb3",
    summary="Stable-Baselines3",
    setups={
        ("PPO", "CartPole"): _ranges(12_000, (1e-3, 3e-3), **PPO),
        ("PPO", "walk"): _ranges(8_000, (1e-3, 3e-3), **PPO),
        ("PPO", "bandit"): _ranges(8_000, (1e-3, 3e-3), **PPO),
        ("A2C", "CartPole"): _ranges(16_000, (2e-3, 5e-3), **A2C),
        ("A2C", "bandit"): _ranges(8_000, (2e-3, 5e-3), **A2C),
        ("DQN", "walk"): _ranges(4_000, (1e-3, 3e-3), **DQN),
        ("DQN", "bandit"): _ranges(3_000, (1e-3, 3e-3), **DQN),
        ("SAC", "reach"): _ranges(1_800, (1e-3, 3e-3), **SOFT),
        ("TD3", "reach"): _ranges(1_800, (1e-3, 3e-3), **SOFT),
    },
)
ARGUMENTS: dict[str, dict[str, Any]] = {
    "PPO": {"n_steps": 64},
    "A2C": {"use_rms_prop": False},
    "DQN": {
        "learning_starts": 200,
        "train_freq": 4,
        "gradient_steps": 2,
        "exploration_fraction": 0.4,
        "buffer_size": 20_000,
    },
    "SAC": {"learning_starts": 100, "buffer_size": 20_000},
    "TD3": {"learning_starts": 100, "buffer_size": 20_000},
}


@dataclass(slots=True, kw_only=True)
class _Setup:
    """What is about to be made; a fault changes it."""

    arguments: dict[str, Any]
    wrappers: list[Callable[[Any], Any]] = field(default_factory=list)
    """Around the environment, inside SB3's monitor."""
    after: list[Callable[[Any], None]] = field(default_factory=list)
    """What is done to the algorithm that was made."""

    def reward(self, change: Callable[[Any], float]) -> None:
        """Another reward."""
        self.wrappers.append(lambda env: gym.wrappers.TransformReward(env, change))

    def samples(self, change: Callable[[Any], Any]) -> None:
        """The batches that the training takes out of its buffer."""

        def patch(model: Any) -> None:
            buffer, name = getattr(model, "rollout_buffer", None), "_get_samples"
            if buffer is None:
                buffer, name = model.replay_buffer, "sample"
            replaced(buffer, name, lambda own, *args, **more: change(own(*args, **more)))

        self.after.append(patch)

    def advantages(self, change: Callable[[Any], None]) -> None:
        """What a rollout buffer holds once its advantages are there."""

        def computed(own: Callable[..., None], model: Any, *args: Any, **more: Any) -> None:
            own(*args, **more)
            change(model.rollout_buffer)

        self.after.append(
            lambda model: replaced(
                model.rollout_buffer,
                "compute_returns_and_advantage",
                lambda own, *args, **more: computed(own, model, *args, **more),
            )
        )

    def optimizers(self, change: Callable[[Any, torch.optim.Optimizer], None]) -> None:
        """Each optimizer with what owns it."""

        def patch(model: Any) -> None:
            owners = (model.policy, *model.policy.children())
            for owner in owners:
                if isinstance(getattr(owner, "optimizer", None), torch.optim.Optimizer):
                    change(owner, owner.optimizer)

        self.after.append(patch)


@WARD.trains
def train(patient: Patient, run: Path) -> Sequence[float]:
    """Train it with SB3's own `learn`, watched by the callback that anybody would use."""
    drawn = dict(patient.settings)
    returns: list[float] = []
    steps, num_envs, seed = drawn.pop("steps"), drawn.pop("n_envs", 1), drawn.pop("seed")
    net = {
        "net_arch": [drawn.pop("width")],
        "activation_fn": getattr(nn, drawn.pop("activation")),
    }
    setup = _Setup(arguments={**ARGUMENTS[patient.algorithm], **drawn, "policy_kwargs": net})
    if patient.ward_fault is not None:
        patient.ward_fault.breaks(setup)

    def environment() -> Any:
        env = make_task(patient.task, returns)
        for wrapper in setup.wrappers:
            env = wrapper(env)
        return Monitor(env)

    made = getattr(stable_baselines3, patient.algorithm)
    env = DummyVecEnv([environment] * num_envs)
    model = made("MlpPolicy", env, seed=seed, device="cpu", **setup.arguments)
    for change in setup.after:
        change(model)
    callback = GradiometerCallback(run, quiet=True, budget=BUDGET, keep=4)
    with callback:
        model.learn(steps, callback=callback, log_interval=1 if patient.algorithm == "PPO" else 8)
    return returns


# Settings


@WARD.fault(accept=("step-too-large", "ratio-explosion", "kl-runaway"))
def learning_rate_high(setup: _Setup) -> None:
    """The learning rate is 100 times what it should be."""
    setup.arguments["learning_rate"] *= 100


@WARD.fault(accept=("policy-frozen",))
def learning_rate_low(setup: _Setup) -> None:
    """The learning rate is a thousandth of what it should be."""
    setup.arguments["learning_rate"] /= 1000


@WARD.fault("PPO", accept=("ppo-clip-saturated",))
def clip_range_tiny(setup: _Setup) -> None:
    """Ratios are clipped at 1 ± 0.0001: after the first step of a rollout nothing is learnt."""
    setup.arguments["clip_range"] = 1e-4


@WARD.fault("PPO", "A2C", "DQN", accept=("over-clipping", "policy-frozen"))
def clip_norm_tiny(setup: _Setup) -> None:
    """The gradient is clipped to a norm of 1e-7, below the epsilon of the optimizer."""
    setup.arguments["max_grad_norm"] = 1e-7


@WARD.fault(*ON, accept=("entropy-never-falls", "regulariser-dominates"))
def entropy_coefficient_high(setup: _Setup) -> None:
    """The entropy bonus outweighs the reward."""
    setup.arguments["ent_coef"] = 2.0


@WARD.fault(*ON, accept=("dead-term", "critic-explains-nothing"))
def value_coefficient_zero(setup: _Setup) -> None:
    """The value loss has the coefficient 0: the critic never learns."""
    setup.arguments["vf_coef"] = 0.0


@WARD.fault("PPO", accept=("stale-data", "kl-runaway", "ppo-clip-saturated"))
def epochs_too_many(setup: _Setup) -> None:
    """Thirty passes over each rollout at a wide clip."""
    setup.arguments |= {"n_epochs": 30, "clip_range": 10.0}


@WARD.fault("DQN", accept=("exploration-schedule",))
def exploration_stays(setup: _Setup) -> None:
    """Every action is random until the end."""
    setup.arguments["exploration_final_eps"] = 1.0


@WARD.fault("DQN", accept=("exploration-schedule",))
def exploration_off(setup: _Setup) -> None:
    """No action is ever random."""
    setup.arguments |= {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0}


@WARD.fault("DQN", accept=("target-network",))
def target_never_copied(setup: _Setup) -> None:
    """The target network keeps its first weights."""
    setup.arguments["target_update_interval"] = 10**9


@WARD.fault(*ACTOR_CRITIC, accept=("target-network",))
def target_never_follows(setup: _Setup) -> None:
    """The target networks keep their first weights."""
    setup.arguments["tau"] = 0.0


# Rewards and environment


@WARD.fault(accept=("reward-scale", "advantage-scale", "critic-diverges"))
def reward_times_1000(setup: _Setup) -> None:
    """Rewards are a thousand times larger than the settings are made for."""
    setup.reward(lambda reward: 1000.0 * float(reward))


@WARD.fault(accept=("update-opposes-reward", "reward-declining"))
def reward_negative(setup: _Setup) -> None:
    """The trainer gets the reward with the wrong sign; the monitor of the user does not."""
    setup.after.append(_negated_inside)


def _negated_inside(model: Any) -> None:
    """SB3's monitor has noted the right reward by then."""

    def step(own: Callable[[], Any]) -> Any:
        observations, rewards, dones, infos = own()
        return observations, -rewards, dones, infos

    replaced(model.env, "step_wait", step)


@WARD.fault(*ON, accept=("nonfinite-gradient",))
def observation_nan(setup: _Setup) -> None:
    """After 600 steps an observation is not a number."""
    seen = [0]

    def broken(observation: Any) -> Any:
        seen[0] += 1
        return observation * np.nan if seen[0] == 600 else observation

    setup.wrappers.append(
        lambda env: gym.wrappers.TransformObservation(env, broken, env.observation_space)
    )


@WARD.fault(accept=("observation-scale",))
def observation_times_1000(setup: _Setup) -> None:
    """Observations come in another unit, a thousand times larger."""
    setup.wrappers.append(
        lambda env: gym.wrappers.TransformObservation(
            env, lambda observation: observation * np.float32(1000), None
        )
    )


# Advantages and targets


@WARD.fault(*ON, accept=("recipe-mismatch", "returns-wrong"))
def ends_not_masked(setup: _Setup) -> None:
    """Returns are carried over the ends of episodes."""

    def patch(model: Any) -> None:
        buffer = model.rollout_buffer

        def compute(own: Callable[..., None], last_values: Any, dones: Any) -> None:
            buffer.episode_starts[:] = 0
            own(last_values=last_values, dones=np.zeros_like(dones))

        replaced(buffer, "compute_returns_and_advantage", compute)

    setup.after.append(patch)


@WARD.fault(*ON, accept=("recipe-mismatch", "returns-wrong"))
def gamma_of_buffer_zero(setup: _Setup) -> None:
    """The buffer discounts by 0, whatever the settings say."""
    setup.after.append(lambda model: setattr(model.rollout_buffer, "gamma", 0.0))


@WARD.fault(*ON, accept=("recipe-mismatch", "update-opposes-reward"))
def advantages_flipped(setup: _Setup) -> None:
    """Advantages have the wrong sign."""
    setup.advantages(lambda buffer: np.negative(buffer.advantages, out=buffer.advantages))


@WARD.fault(*ON, accept=("recipe-mismatch", "misaligned-data"))
def advantages_shifted(setup: _Setup) -> None:
    """Each step gets the advantage of the step before."""
    setup.advantages(
        lambda buffer: setattr(buffer, "advantages", np.roll(buffer.advantages, 1, axis=0))
    )


@WARD.fault(*ON, accept=("recipe-mismatch", "misaligned-data"))
def environments_mixed(setup: _Setup) -> None:
    """Advantages are reshaped before they are flattened, so environments and steps mix."""

    def mix(buffer: Any) -> None:
        steps, envs = buffer.advantages.shape
        buffer.advantages = buffer.advantages.reshape(envs, steps).swapaxes(0, 1).copy()

    setup.advantages(mix)


@WARD.fault(*ON, accept=("recipe-mismatch", "advantage-scale"))
def normalised_over_wrong_axis(setup: _Setup) -> None:
    """Advantages are normalised over the environments of each step."""

    def normalise(buffer: Any) -> None:
        found = buffer.advantages
        buffer.advantages = (found - found.mean(1, keepdims=True)) / (
            found.std(1, keepdims=True) + 1e-8
        )

    setup.advantages(normalise)


@WARD.fault(*ON, accept=("dead-term", "recipe-mismatch"))
def advantages_zero(setup: _Setup) -> None:
    """Advantages are set to 0: the policy term is there and says nothing."""
    setup.advantages(lambda buffer: buffer.advantages.fill(0.0))
    setup.arguments["normalize_advantage"] = False


@WARD.fault(*ON, accept=("recipe-mismatch", "returns-wrong", "critic-explains-nothing"))
def returns_are_advantages(setup: _Setup) -> None:
    """The critic is trained towards advantages."""
    setup.advantages(lambda buffer: setattr(buffer, "returns", buffer.advantages.copy()))


@WARD.fault(*ON, accept=("stale-data", "recipe-mismatch", "misaligned-data"))
def rollout_never_renewed(setup: _Setup) -> None:
    """The first rollout is trained on for ever."""

    def patch(model: Any) -> None:
        buffer = model.rollout_buffer
        kept: dict[str, Any] = {}
        names = ("observations", "actions", "log_probs", "values", "returns", "advantages")

        def compute(own: Callable[..., None], *args: Any, **more: Any) -> None:
            own(*args, **more)
            for name in names:
                kept.setdefault(name, getattr(buffer, name).copy())
                setattr(buffer, name, kept[name].copy())

        replaced(buffer, "compute_returns_and_advantage", compute)

    setup.after.append(patch)


@WARD.fault(*OFF, accept=("recipe-mismatch", "returns-wrong"))
def target_without_end(setup: _Setup) -> None:
    """The target adds the value of the next state after an end too."""
    setup.samples(lambda batch: batch._replace(dones=torch.zeros_like(batch.dones)))


@WARD.fault(*OFF, accept=("recipe-mismatch", "misaligned-data"))
def rewards_of_other_steps(setup: _Setup) -> None:
    """Rewards of a batch are moved by one sample."""
    setup.samples(lambda batch: batch._replace(rewards=batch.rewards.roll(1, 0)))


@WARD.fault(*OFF, accept=("recipe-mismatch", "misaligned-data"))
def actions_of_other_steps(setup: _Setup) -> None:
    """Actions of a batch are moved by one sample."""
    setup.samples(lambda batch: batch._replace(actions=batch.actions.roll(1, 0)))


@WARD.fault(*OFF, accept=("recipe-mismatch", "misaligned-data"))
def next_is_now(setup: _Setup) -> None:
    """The next observation is the present one."""
    setup.samples(lambda batch: batch._replace(next_observations=batch.observations))


@WARD.fault(*OFF, accept=("recipe-mismatch", "returns-wrong"))
def discount_zero(setup: _Setup) -> None:
    """The discount of the target is 0, whatever the settings say."""
    setup.samples(lambda batch: batch._replace(discounts=torch.zeros_like(batch.rewards)))


@WARD.fault(*OFF, accept=("shapes-broadcast",))
def rewards_broadcast(setup: _Setup) -> None:
    """Rewards have the shape [N] beside values of [N, 1]: the target is a square."""
    setup.samples(lambda batch: batch._replace(rewards=batch.rewards.flatten()))


@WARD.fault(*ON, accept=("shapes-broadcast",))
def returns_broadcast(setup: _Setup) -> None:
    """Returns have the shape [N, 1] beside values of [N]: the error is a square."""
    setup.samples(lambda batch: batch._replace(returns=batch.returns[:, None]))


@WARD.fault(*OFF, accept=("stale-data",))
def replay_never_renewed(setup: _Setup) -> None:
    """Nothing is added to the replay buffer after the first steps."""

    def add(own: Callable[..., None], count: list[int], *args: Any) -> None:
        count[0] += 1
        if count[0] <= 150:
            own(*args)

    setup.after.append(
        lambda model: replaced(
            model.replay_buffer, "add", lambda own, *args, _n=[0]: add(own, _n, *args)
        )
    )


@WARD.fault("DQN", accept=("target-network", "recipe-mismatch"))
def target_is_online(setup: _Setup) -> None:
    """The target network is the one that is trained."""

    def patch(model: Any) -> None:
        model.q_net_target.forward = model.q_net.forward

    setup.after.append(patch)


@WARD.fault(*ACTOR_CRITIC, accept=("recipe-mismatch", "critic-diverges"))
def larger_of_twins(setup: _Setup) -> None:
    """The target takes the larger of the two critics."""

    def patch(model: Any) -> None:
        def forward(own: Callable[..., Any], *args: Any) -> Any:
            larger = torch.cat(own(*args), 1).amax(1, keepdim=True)
            return larger, larger

        replaced(model.critic_target, "forward", forward)

    setup.after.append(patch)


# Loss and optimizer


@WARD.fault(*ON, accept=("dead-term",))
def entropy_detached(setup: _Setup) -> None:
    """The entropy in the loss has no gradient."""

    def evaluate(own: Callable[..., Any], *args: Any) -> Any:
        values, log_prob, entropy = own(*args)
        return values, log_prob, entropy.detach()

    setup.after.append(lambda model: replaced(model.policy, "evaluate_actions", evaluate))


@WARD.fault(*ON, accept=("dead-term", "dead-block"))
def policy_detached(setup: _Setup) -> None:
    """The log-probabilities in the loss have no gradient."""

    def evaluate(own: Callable[..., Any], *args: Any) -> Any:
        values, log_prob, entropy = own(*args)
        return values, log_prob.detach(), entropy

    setup.after.append(lambda model: replaced(model.policy, "evaluate_actions", evaluate))


@WARD.fault(*ON, accept=("score-not-zero-mean", "sampler-mismatch", "misaligned-data"))
def log_prob_of_new_actions(setup: _Setup) -> None:
    """The loss takes log-probabilities of actions that are sampled anew."""

    def patch(model: Any) -> None:
        def evaluate(own: Callable[..., Any], observations: Any, actions: Any) -> Any:
            with torch.no_grad():
                fresh = model.policy.get_distribution(observations).get_actions()
            return own(observations, fresh)

        replaced(model.policy, "evaluate_actions", evaluate)

    setup.after.append(patch)


@WARD.fault("PPO", accept=("sampler-mismatch", "ratio-explosion"))
def old_log_prob_of_other_actions(setup: _Setup) -> None:
    """The old log-probabilities are moved by one sample."""
    setup.samples(lambda batch: batch._replace(old_log_prob=batch.old_log_prob.roll(1, 0)))


@WARD.fault(*ON, accept=("misaligned-data", "sampler-mismatch", "score-not-zero-mean"))
def observations_of_other_steps(setup: _Setup) -> None:
    """Observations of a batch are moved by one sample."""
    setup.samples(lambda batch: batch._replace(observations=batch.observations.roll(1, 0)))


@WARD.fault(accept=("gradients-not-cleared",))
def gradients_not_cleared(setup: _Setup) -> None:
    """`zero_grad` is missing: every step adds the gradients of all before."""
    setup.optimizers(
        lambda _, optimizer: setattr(optimizer, "zero_grad", lambda set_to_none=True: None)
    )


@WARD.fault(accept=("never-trained", "not-in-optimizer"))
def optimizer_of_a_copy(setup: _Setup) -> None:
    """The optimizer holds the parameters of a copy, made before a module was replaced."""

    def change(owner: Any, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group["params"] = [copy.deepcopy(p) for p in group["params"]]

    setup.optimizers(change)


@WARD.fault(*ON, accept=("not-in-optimizer", "never-trained"))
def optimizer_without_actor(setup: _Setup) -> None:
    """The optimizer has the critic's parameters only."""

    def change(owner: Any, optimizer: Any) -> None:
        actor = {
            id(p)
            for name, p in owner.named_parameters()
            if "action_net" in name or "policy_net" in name
        }
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in actor]

    setup.optimizers(change)


@WARD.fault(*ACTOR_CRITIC, accept=("never-trained", "not-in-optimizer", "policy-frozen"))
def actor_never_stepped(setup: _Setup) -> None:
    """The actor's optimizer is never stepped."""
    setup.after.append(
        lambda model: setattr(model.actor.optimizer, "step", lambda closure=None: None)
    )


@WARD.fault(*ACTOR_CRITIC, accept=("update-opposes-reward",))
def actor_descends(setup: _Setup) -> None:
    """The actor goes where its critic promises least."""
    setup.after.append(
        lambda model: model.actor.optimizer.param_groups[0].__setitem__("maximize", True)
    )


@WARD.fault("SAC", accept=("entropy-sign", "recipe-mismatch", "entropy-collapse"))
def temperature_negative(setup: _Setup) -> None:
    """The entropy is a cost and not a bonus."""
    setup.arguments["ent_coef"] = -0.3


@WARD.fault("SAC", accept=("entropy-sign", "critic-diverges", "entropy-never-falls"))
def temperature_ascends(setup: _Setup) -> None:
    """The temperature moves away from its target."""
    setup.after.append(
        lambda model: model.ent_coef_optimizer.param_groups[0].__setitem__("maximize", True)
    )
