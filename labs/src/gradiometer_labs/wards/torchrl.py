"""The ward of torchrl: its PPO and SAC losses in a plain loop, one argument or method changed."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from gradiometer.integrations.torchrl import GradiometerHook
from gradiometer_labs.wards.tasks import make_task
from gradiometer_labs.wards.ward import BUDGET, Patient, Ranges, Ward, replaced

# isort: split
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torch.distributions import Categorical
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.envs import GymWrapper, RewardSum, TransformedEnv
    from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import ClipPPOLoss, SACLoss, SoftUpdate

__all__ = ["WARD"]

NETWORK: dict[str, Any] = {
    "width": [32, 64],
    "activation": ["Tanh", "ReLU"],
    "gamma": [0.95, 0.97, 0.99],
}
PPO = {"batch_size": [64, 128], "epochs": [4, 6], "learning_rate": (1e-3, 3e-3), **NETWORK}
SAC = {"batch_size": [64, 128], "learning_rate": (1e-3, 3e-3), "tau": [0.01, 0.02], **NETWORK}
WARD = Ward(
    name="torchrl",
    summary="torchrl's PPO and SAC losses",
    setups={
        ("PPO", "walk"): Ranges(fixed={"frames": 4096}, drawn=PPO),
        ("PPO", "bandit"): Ranges(fixed={"frames": 4096}, drawn=PPO),
        ("SAC", "reach"): Ranges(fixed={"frames": 1200}, drawn=SAC),
    },
)
PER_BATCH = {"PPO": 256, "SAC": 10}
START = 100
"""Frames of SAC before its first update."""


@dataclass(slots=True, kw_only=True)
class _Setup:
    """What is about to be made; a fault changes it."""

    learning_rate: float
    loss: dict[str, Any]
    """Arguments of the loss module."""
    estimator: dict[str, Any]
    """Arguments of its value estimator."""
    tau: float = 0.01
    wrappers: list[Callable[[Any], Any]] = field(default_factory=list)
    collected: list[Callable[[Any], Any]] = field(default_factory=list)
    """What is done to what was collected, before advantages are computed or it is stored."""
    estimated: list[Callable[[Any], Any]] = field(default_factory=list)
    """What is done to it when its advantages are there."""
    sampled: list[Callable[[Any], Any]] = field(default_factory=list)
    """What is done to a batch before its loss."""
    after: list[Callable[[Any, Any], None]] = field(default_factory=list)
    """What is done to the loss module and the optimizer."""
    signs: dict[str, float] = field(default_factory=dict)
    """Factors of terms in the sum that goes backward."""

    def loss_of(self, terms: Any) -> Any:
        """The sum that goes backward."""
        named = {key: x for key, x in terms.items() if key.startswith("loss_")}
        return sum(self.signs.get(key, 1.0) * x for key, x in named.items())


@WARD.trains
def train(patient: Patient, run: Path) -> Sequence[float]:
    """A loop as torchrl's tutorials write it, watched by the hook."""
    logging.getLogger("torchrl").setLevel(logging.WARNING)  # it tells of every storage
    drawn = dict(patient.settings)
    returns: list[float] = []
    torch.manual_seed(drawn["seed"])
    setup = _Setup(
        learning_rate=drawn["learning_rate"],
        loss={"entropy_coeff": 0.01, "critic_coeff": 0.5} if patient.algorithm == "PPO" else {},
        estimator={"gamma": drawn["gamma"]},
        tau=drawn.get("tau", 0.01),
    )
    if patient.ward_fault is not None:
        patient.ward_fault.breaks(setup)
    gym_env: gym.Env[Any, Any] = make_task(patient.task, returns)
    for wrapper in setup.wrappers:
        gym_env = wrapper(gym_env)
    env = TransformedEnv(GymWrapper(gym_env, categorical_action_encoding=True), RewardSum())
    env.set_seed(drawn["seed"] % 2**31)
    made = _ppo_loss if patient.algorithm == "PPO" else _sac_loss
    loss = made(env, drawn, setup)
    loss.make_value_estimator(**setup.estimator)
    optimizer = torch.optim.Adam(loss.parameters(), lr=setup.learning_rate)
    for change in setup.after:
        change(loss, optimizer)
    collector = Collector(
        env,
        loss.actor_network,
        frames_per_batch=PER_BATCH[patient.algorithm],
        total_frames=drawn["frames"],
        auto_register_policy_transforms=False,
    )
    config = {"algorithm": patient.algorithm, **drawn, "learning_rate": setup.learning_rate}
    hook = GradiometerHook(run, quiet=True, budget=BUDGET, keep=4)
    with hook.watch(loss, optimizer, config=config, seed=drawn["seed"]) as meter:
        learn = _learn_ppo if patient.algorithm == "PPO" else _learn_sac
        learn(collector, loss, optimizer, drawn, setup, hook, meter)
    collector.shutdown()
    return returns


def _network(inputs: int, outputs: int, drawn: dict[str, Any]) -> Any:
    activation = getattr(torch.nn, drawn["activation"])
    return MLP(inputs, outputs, num_cells=[drawn["width"]], activation_class=activation)


def _ppo_loss(env: Any, drawn: dict[str, Any], setup: _Setup) -> Any:
    size, actions = env.observation_spec["observation"].shape[-1], env.action_spec.space.n
    logits = TensorDictModule(_network(size, actions, drawn), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        logits, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True
    )
    return ClipPPOLoss(actor, ValueOperator(_network(size, 1, drawn)), **setup.loss)


def _sac_loss(env: Any, drawn: dict[str, Any], setup: _Setup) -> Any:
    size, actions = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    body = torch.nn.Sequential(_network(size, 2 * actions, drawn), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(body, ["observation"], ["loc", "scale"]),
        spec=env.action_spec,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(_network(size + actions, 1, drawn), in_keys=["observation", "action"])
    return SACLoss(actor, critic, num_qvalue_nets=2, **setup.loss)


def _learn_ppo(
    collector: Any,
    loss: Any,
    optimizer: Any,
    drawn: dict[str, Any],
    setup: _Setup,
    hook: Any,
    meter: Any,
) -> None:
    frames = 0
    for batch in collector:
        frames += batch.numel()
        hook.log_batch(batch, frames)
        for change in setup.collected:
            batch = change(batch)
        with torch.no_grad():
            batch = loss.value_estimator(batch)
        for change in setup.estimated:
            batch = change(batch)
        flat = batch.reshape(-1)
        for _ in range(drawn["epochs"]):
            for part in torch.split(torch.randperm(len(flat)), drawn["batch_size"]):
                terms = _step(loss, optimizer, flat[part], setup, clip=0.5)
        names = ("entropy", "kl_approx", "clip_fraction", "explained_variance")
        meter.log({name: terms[name].mean() for name in names if name in terms.keys()})  # noqa: SIM118
        collector.update_policy_weights_()


def _learn_sac(
    collector: Any,
    loss: Any,
    optimizer: Any,
    drawn: dict[str, Any],
    setup: _Setup,
    hook: Any,
    meter: Any,
) -> None:
    follow = SoftUpdate(loss, tau=setup.tau)
    buffer = ReplayBuffer(storage=LazyTensorStorage(drawn["frames"]))
    frames = 0
    for batch in collector:
        frames += batch.numel()
        hook.log_batch(batch, frames)
        for change in setup.collected:
            batch = change(batch)
        if batch is not None:
            buffer.extend(batch.reshape(-1))
        for _ in range(PER_BATCH["SAC"] if frames > START else 0):
            terms = _step(loss, optimizer, buffer.sample(drawn["batch_size"]), setup)
            follow.step()
            meter.log({"alpha": terms["alpha"], "entropy": terms["entropy"]})
        collector.update_policy_weights_()


def _step(loss: Any, optimizer: Any, batch: Any, setup: _Setup, clip: float = 0.0) -> Any:
    for change in setup.sampled:
        batch = change(batch)
    terms = loss(batch)
    setup.loss_of(terms).backward()
    if clip:
        torch.nn.utils.clip_grad_norm_(loss.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return terms


def _changed(batch: Any, **values: Callable[[Any], Any]) -> Any:
    """The batch with some entries changed; `next_` stands for what follows."""
    batch = batch.clone()
    for name, change in values.items():
        key = ("next", name.removeprefix("next_")) if name.startswith("next_") else name
        batch.set(key, change(batch.get(key)))
    return batch


# Settings


@WARD.fault(accept=("step-too-large", "ratio-explosion", "kl-runaway"))
def learning_rate_high(setup: _Setup) -> None:
    """The learning rate is 100 times what it should be."""
    setup.learning_rate *= 100


@WARD.fault(accept=("policy-frozen",))
def learning_rate_low(setup: _Setup) -> None:
    """The learning rate is a thousandth of what it should be."""
    setup.learning_rate /= 1000


@WARD.fault("PPO", accept=("ppo-clip-saturated",))
def clip_epsilon_tiny(setup: _Setup) -> None:
    """Ratios are clipped at 1 ± 0.0001: after the first step of a batch nothing is learnt."""
    setup.loss["clip_epsilon"] = 1e-4


@WARD.fault("PPO", accept=("entropy-never-falls", "regulariser-dominates"))
def entropy_coefficient_high(setup: _Setup) -> None:
    """The entropy bonus outweighs the reward."""
    setup.loss["entropy_coeff"] = 2.0


@WARD.fault("PPO", accept=("entropy-sign", "entropy-collapse"))
def entropy_coefficient_negative(setup: _Setup) -> None:
    """The entropy is a cost and not a bonus."""
    setup.loss["entropy_coeff"] = -0.5


@WARD.fault("PPO", accept=("dead-term", "critic-explains-nothing"))
def critic_coefficient_zero(setup: _Setup) -> None:
    """The critic's loss has the coefficient 0."""
    setup.loss["critic_coeff"] = 0.0


@WARD.fault(accept=("recipe-mismatch", "returns-wrong"))
def gamma_zero(setup: _Setup) -> None:
    """The estimator discounts by 0, whatever the settings say."""
    setup.estimator["gamma"] = 0.0


@WARD.fault("SAC", accept=("target-network",))
def target_never_follows(setup: _Setup) -> None:
    """The target networks keep their first weights."""
    setup.tau = 1e-12


# Data


@WARD.fault(accept=("reward-scale", "advantage-scale", "critic-diverges"))
def reward_times_1000(setup: _Setup) -> None:
    """Rewards are a thousand times larger than the settings are made for."""
    setup.wrappers.append(
        lambda env: gym.wrappers.TransformReward(env, lambda reward: 1000.0 * float(reward))
    )


@WARD.fault(accept=("update-opposes-reward", "recipe-mismatch", "reward-declining"))
def reward_negative(setup: _Setup) -> None:
    """The reward that is trained on has the wrong sign."""
    setup.collected.append(lambda batch: _changed(batch, next_reward=lambda x: -x))


@WARD.fault(accept=("recipe-mismatch", "returns-wrong"))
def ends_not_masked(setup: _Setup) -> None:
    """Values are carried over the ends of episodes."""
    setup.collected.append(
        lambda batch: _changed(batch, next_done=torch.zeros_like, next_terminated=torch.zeros_like)
    )


@WARD.fault("PPO", accept=("recipe-mismatch", "update-opposes-reward"))
def advantages_flipped(setup: _Setup) -> None:
    """Advantages have the wrong sign."""
    setup.estimated.append(lambda batch: _changed(batch, advantage=lambda x: -x))


@WARD.fault("PPO", accept=("recipe-mismatch", "misaligned-data"))
def advantages_shifted(setup: _Setup) -> None:
    """Each step gets the advantage of the step before."""
    setup.estimated.append(lambda batch: _changed(batch, advantage=lambda x: x.roll(1, -2)))


@WARD.fault("PPO", accept=("recipe-mismatch", "returns-wrong", "critic-explains-nothing"))
def targets_are_advantages(setup: _Setup) -> None:
    """The critic is trained towards advantages."""
    setup.estimated.append(lambda batch: batch.clone().set("value_target", batch.get("advantage")))


@WARD.fault("PPO", accept=("sampler-mismatch", "ratio-explosion"))
def old_log_prob_of_other_actions(setup: _Setup) -> None:
    """The old log-probabilities are moved by one sample."""
    setup.sampled.append(lambda batch: _changed(batch, action_log_prob=lambda x: x.roll(1, 0)))


@WARD.fault("PPO", accept=("misaligned-data", "sampler-mismatch", "score-not-zero-mean"))
def observations_of_other_steps(setup: _Setup) -> None:
    """Observations of a batch are moved by one sample."""
    setup.sampled.append(lambda batch: _changed(batch, observation=lambda x: x.roll(1, 0)))


@WARD.fault("PPO", accept=("stale-data", "recipe-mismatch", "misaligned-data"))
def batch_never_renewed(setup: _Setup) -> None:
    """The first batch is trained on for ever."""
    kept: list[Any] = []

    def first(batch: Any) -> Any:
        kept.append(batch.clone())
        return kept[0].clone()

    setup.collected.append(first)


@WARD.fault("SAC", accept=("stale-data",))
def replay_never_renewed(setup: _Setup) -> None:
    """Nothing is stored after the first frames."""
    seen = [0]

    def first(batch: Any) -> Any:
        seen[0] += batch.numel()
        return batch if seen[0] <= START else None

    setup.collected.append(first)


@WARD.fault("SAC", accept=("recipe-mismatch", "misaligned-data"))
def rewards_of_other_steps(setup: _Setup) -> None:
    """Rewards of a batch are moved by one sample."""
    setup.sampled.append(lambda batch: _changed(batch, next_reward=lambda x: x.roll(1, 0)))


@WARD.fault("SAC", accept=("recipe-mismatch", "misaligned-data"))
def actions_of_other_steps(setup: _Setup) -> None:
    """Actions of a batch are moved by one sample."""
    setup.sampled.append(lambda batch: _changed(batch, action=lambda x: x.roll(1, 0)))


@WARD.fault("SAC", accept=("recipe-mismatch", "misaligned-data"))
def next_is_now(setup: _Setup) -> None:
    """The next observation is the present one."""
    setup.sampled.append(
        lambda batch: _changed(batch, next_observation=lambda _: batch.get("observation"))
    )


# Loss and optimizer


@WARD.fault("PPO", accept=("dead-term",))
def entropy_detached(setup: _Setup) -> None:
    """The entropy in the loss has no gradient."""
    setup.after.append(
        lambda loss, _: replaced(
            loss, "_get_entropy", lambda own, *args, **more: own(*args, **more).detach()
        )
    )


@WARD.fault("SAC", accept=("update-opposes-reward",))
def actor_descends(setup: _Setup) -> None:
    """The actor's loss is subtracted."""
    setup.signs["loss_actor"] = -1.0


@WARD.fault("SAC", accept=("never-trained", "dead-block", "policy-frozen", "dead-term"))
def actor_loss_left_out(setup: _Setup) -> None:
    """The actor's loss is not in the sum that goes backward."""
    setup.signs["loss_actor"] = 0.0


@WARD.fault("SAC", accept=("entropy-sign", "critic-diverges", "entropy-never-falls"))
def temperature_ascends(setup: _Setup) -> None:
    """The temperature moves away from its target."""
    setup.signs["loss_alpha"] = -1.0


@WARD.fault(accept=("gradients-not-cleared",))
def gradients_not_cleared(setup: _Setup) -> None:
    """`zero_grad` is missing."""
    setup.after.append(
        lambda _, optimizer: setattr(optimizer, "zero_grad", lambda set_to_none=True: None)
    )


@WARD.fault(accept=("never-trained", "not-in-optimizer"))
def optimizer_of_a_copy(setup: _Setup) -> None:
    """The optimizer holds the parameters of a copy."""

    def change(loss: Any, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group["params"] = [copy.deepcopy(p) for p in group["params"]]

    setup.after.append(change)


@WARD.fault(accept=("not-in-optimizer", "never-trained"))
def optimizer_without_actor(setup: _Setup) -> None:
    """The optimizer has the other parameters only."""

    def change(loss: Any, optimizer: Any) -> None:
        actor = {id(p) for p in loss.actor_network_params.values(True, True)}
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in actor]

    setup.after.append(change)
