"""The hook against torchrl itself: PPO and DQN by its Trainer, and a loop of one's own."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gradiometer as gm
from gradiometer.capture import hooks
from gradiometer.doctor.diagnosis import diagnose
from gradiometer.errors import MissingExtra, UsageError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("torchrl") is None, reason="torchrl is not installed"
    ),
    # torchrl's trainer, of its checkpoints and stages of tomorrow
    pytest.mark.filterwarnings(
        "ignore:(The default Trainer checkpoint|The legacy CKPT_BACKEND):FutureWarning"
    ),
    pytest.mark.filterwarnings("ignore:The legacy CKPT_BACKEND:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The 'optimizer' hook stage will be replaced:FutureWarning"),
]
FRAMES, PER_BATCH = 192, 64


def hook(run: Any, **options: Any) -> Any:
    from gradiometer.integrations.torchrl import GradiometerHook

    return GradiometerHook(run=run, **{"budget": None, **options})


def collector(policy: Any, *, total: int = FRAMES) -> Any:
    importlib.import_module(
        "gradiometer.integrations.torchrl"
    )  # so that torchrl's own warning is not ours
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv, RewardSum, TransformedEnv

    env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), RewardSum())
    env.set_seed(0)
    return Collector(
        env,
        policy,
        frames_per_batch=PER_BATCH,
        total_frames=total,
        auto_register_policy_transforms=False,
    )


def ppo_loss() -> Any:
    from tensordict.nn import TensorDictModule
    from torch.distributions import Categorical
    from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss

    logits = TensorDictModule(
        MLP(in_features=4, out_features=2, num_cells=[8]), ["observation"], ["logits"]
    )
    actor = ProbabilisticActor(
        logits, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True
    )
    loss = ClipPPOLoss(actor, ValueOperator(MLP(in_features=4, out_features=1, num_cells=[8])))
    loss.make_value_estimator()
    return loss


def dqn_loss() -> Any:
    from torchrl.modules import MLP, QValueActor
    from torchrl.objectives import DQNLoss

    network = MLP(in_features=4, out_features=2, num_cells=[8])
    policy = QValueActor(network, in_keys=["observation"], action_space="categorical")
    loss = DQNLoss(policy, action_space="categorical", delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    return loss


def trainer_of(algorithm: str, *, stepper: bool = True, total: int = FRAMES, **changed: Any) -> Any:
    torch.manual_seed(0)
    loss = ppo_loss() if algorithm == "PPO" else dqn_loss()
    collected = collector(
        loss.actor_network if algorithm == "PPO" else loss.value_network, total=total
    )
    from torchrl.objectives import SoftUpdate
    from torchrl.trainers import (
        DefaultOptimizationStepper,
        LogScalar,
        TargetNetUpdaterHook,
        Trainer,
    )

    given = {
        "optim_steps_per_batch": 3,
        "clip_norm": 0.5,
        "num_epochs": 2,
        "progress_bar": False,
        "seed": 0,
    }
    trainer = Trainer(
        collector=collected,
        total_frames=total,
        frame_skip=1,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), lr=1e-2),
        optimization_stepper=DefaultOptimizationStepper() if stepper else None,
        **(given | changed),
    )
    LogScalar(("next", "reward"), "r_training").register(trainer)
    if algorithm == "PPO":
        trainer.register_op("batch_process", with_advantages(loss))
    else:
        TargetNetUpdaterHook(SoftUpdate(loss, eps=0.9)).register(trainer, "target")
    return trainer


def with_advantages(loss: Any) -> Callable[[Any], Any]:
    def add(batch: Any) -> Any:
        with torch.no_grad():
            return loss.value_estimator(batch)

    return add


def state_of(trainer: Any) -> dict[str, Tensor]:
    memory = trainer.optimizer.state_dict()["state"]
    return {
        **trainer.loss_module.state_dict(),
        **{f"memory {i} {name}": x for i, kept in memory.items() for name, x in kept.items()},
        "stream": torch.get_rng_state(),
    }


@pytest.mark.parametrize("stepper", [True, False])
@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_the_training_is_the_same_bits_with_and_without_the_hook(
    algorithm: str, stepper: bool, tmp_path: Path
) -> None:
    bare = trainer_of(algorithm, stepper=stepper)
    bare.train()
    before = {name: x.clone() for name, x in state_of(bare).items()}
    watched = trainer_of(algorithm, stepper=stepper)
    hook(tmp_path / "run", tier="deep").register(watched)
    watched.train()
    after = state_of(watched)
    assert before.keys() == after.keys()
    assert all(torch.equal(x, after[name]) for name, x in before.items() if isinstance(x, Tensor))
    run = gm.load(tmp_path / "run")
    assert not run.events()
    assert run.series("grad/all/norm/raw")[0].tolist() == list(range(18))


def test_blocks_terms_and_clips_of_ppo(tmp_path: Path) -> None:
    trainer, given = trainer_of("PPO"), hook(tmp_path / "run", tier="deep")
    given.register(trainer)
    trainer.train()
    run = gm.load(tmp_path / "run")
    blocks = given.meter.blocks
    assert dict(zip(blocks.names[: blocks.num_named], map(len, blocks.members), strict=False)) == {
        "all": 8,
        "actor": 4,
        "critic": 4,
    }
    assert run.series("grad/all/term/additivity_error")[1].max() < 1e-5
    assert run.series("grad/critic/term/critic/share")[1] == pytest.approx(1.0)
    assert {"grad/actor/term/policy/norm", "grad/actor/term/entropy/norm"} <= set(run.names())
    assert run.series("grad/all/clip/threshold")[1].tolist() == [0.5] * 18
    # the trainer's own norm, a mean over the epochs, was taken before its clip too
    raw, own = run.series("grad/all/norm/raw")[1], run.series("grad_norm")[1]
    assert raw.min() <= own.min() <= own.max() <= raw.max()


def test_a_target_network_is_no_missing_gradient(tmp_path: Path) -> None:
    trainer, given = trainer_of("DQN"), hook(tmp_path / "run", tier="deep")
    given.register(trainer)
    trainer.train()
    run = gm.load(tmp_path / "run")
    assert set(given.meter.states.values()) == {"finite"}
    assert run.series("grad/critic/term/td/share")[1] == pytest.approx(1.0)


def test_what_the_trainer_logs_is_read_once_at_its_step(tmp_path: Path) -> None:
    trainer = trainer_of("PPO")
    hook(tmp_path / "run").register(trainer)
    trainer.train()
    run = gm.load(tmp_path / "run")
    kept = {
        name: [float(torch.as_tensor(x).detach()) for x in values]
        for name, values in trainer._log_dict.items()
    }
    assert {"r_training", "loss_objective", "grad_norm", "optim_steps"} <= kept.keys()
    for name, values in kept.items():
        steps, read = run.series(name)
        assert read.tolist() == pytest.approx(values, rel=1e-6, nan_ok=True), name
        assert steps.tolist() == ([0, 6, 12] if name.startswith("r_training") else [5, 11, 17]), (
            name
        )
    where = run.steps()
    assert where["env_steps"].tolist() == [64.0] * 6 + [128.0] * 6 + [192.0] * 6
    assert where["rollout"].tolist() == [0.0] * 6 + [1.0] * 6 + [2.0] * 6
    assert where["epoch"].tolist() == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0] * 3


def test_the_return_is_that_of_the_episodes_which_ended(tmp_path: Path) -> None:
    trainer, seen = trainer_of("PPO"), []

    def note(batch: Any) -> None:
        totals = batch["next", "episode_reward"][batch["next", "done"]]
        seen.append(float(totals.mean()))

    trainer.register_op("pre_steps_log", note)
    hook(tmp_path / "run", config={"mine": 1}).register(trainer)
    trainer.train()
    run = gm.load(tmp_path / "run")
    assert run.series("reward")[1].tolist() == pytest.approx(seen)
    facts = run.facts
    assert facts["seed"] == 0
    assert (facts["config"]["loss"], facts["config"]["clip_norm"], facts["config"]["mine"]) == (
        "ClipPPOLoss",
        0.5,
        1,
    )


def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    loss_module = ppo_loss()
    optim = torch.optim.Adam(loss_module.parameters(), lr=1e-2)
    given, add = hook(tmp_path / "run", tier="deep"), with_advantages(loss_module)
    with given.watch(loss_module, optim) as meter:
        for number, batch in enumerate(collector(loss_module.actor_network)):
            given.log_batch(batch, env_steps=PER_BATCH * (number + 1))
            losses = loss_module(add(batch))
            (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
            optim.step()
            optim.zero_grad()
            meter.log(clip_fraction=losses["clip_fraction"])
    run = gm.load(tmp_path / "run")
    assert run.series("grad/all/term/additivity_error")[1].max() < 1e-5
    assert run.series("clip_fraction")[0].tolist() == run.series("reward")[0].tolist() == [0, 1, 2]
    assert run.steps()["env_steps"].tolist() == [64.0, 128.0, 192.0]
    assert not loss_module._forward_hooks


@pytest.mark.filterwarnings("ignore:No target network updater:UserWarning")
@pytest.mark.parametrize("factor", [1.0, 0.5, -1.0])
def test_a_term_that_a_loop_subtracts_is_told_and_one_that_it_weighs_is_not(
    tmp_path: Path, factor: float
) -> None:
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import SACLoss

    torch.manual_seed(0)
    body = torch.nn.Sequential(torch.nn.Linear(3, 2), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(body, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(4, 1), in_keys=["observation", "action"])
    loss_module = SACLoss(actor, critic, target_entropy=-1.0)
    loss_module.make_value_estimator(gamma=0.9)
    optim = torch.optim.Adam(loss_module.parameters(), lr=1e-3)
    with hook(tmp_path / "run").watch(loss_module, optim):
        for _ in range(10):
            batch = transitions()
            terms = loss_module(batch)
            loss = terms["loss_qvalue"] + terms["loss_alpha"] + factor * terms["loss_actor"]
            loss.backward()
            optim.step()
            optim.zero_grad()
    with gm.load(tmp_path / "run") as run:
        assert not run.events("fault")
        assert bool(run.events("update-opposes-reward")) == (factor < 0)
        assert bool(run.events("term-weight")) == (factor != 1.0)
        assert "hidden-term" not in [each.id for each in diagnose(run).findings]


def transitions() -> Any:
    """A few, at random."""
    from tensordict import TensorDict

    seen = {"observation": torch.randn(16, 3), "reward": torch.randn(16, 1)}
    over = dict.fromkeys(("done", "terminated"), torch.zeros(16, 1, dtype=torch.bool))
    following = TensorDict({**seen, **over}, [16])
    given = {"observation": torch.randn(16, 3), "action": torch.rand(16, 1) - 0.5}
    return TensorDict({**given, "next": following}, [16])


# The matrix: fresh (above), resumed, an exception, two trainings in one process.


def test_the_terms_of_a_loop_of_ones_own_are_read_off_the_graph(tmp_path: Path) -> None:
    torch.manual_seed(0)
    loss = ppo_loss()
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2)
    with gm.watch(loss, optimizer, run=tmp_path / "run", budget=None, quiet=True):
        for batch in collector(loss.actor_network):
            batch = with_advantages(loss)(batch)
            losses = loss(batch)
            total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
    run = gm.load(tmp_path / "run")
    rows = {row["name"]: row for row in run.tables("wiring")[-1].content["terms"]}
    assert set(rows) == {"loss_objective", "loss_critic", "loss_entropy"}
    assert (run.series("grad/all/term/additivity_error")[1] < 1e-5).all()
    assert not run.events("dead-term")


def test_a_checkpoint_of_the_trainer_goes_on_with_the_run(tmp_path: Path) -> None:
    file = tmp_path / "trainer.pt"
    first = trainer_of("PPO", save_trainer_file=str(file), save_trainer_interval=1)
    hook(tmp_path / "run").register(first)
    first.train()
    second = trainer_of("PPO", total=2 * FRAMES)
    hook(tmp_path / "run").register(second)
    second.load_from_file(file, weights_only=False)
    second.train()
    run = gm.load(tmp_path / "run")
    assert [event.kind for event in run.events()] == ["resumed"]
    assert run.series("grad/all/norm/raw")[0].tolist() == list(range(36))
    assert run.steps()["env_steps"][-1] == 2 * FRAMES
    assert run.steps()["rollout"].tolist() == [
        float(number) for number in range(6) for _ in range(6)
    ]


def failing(*_: Any) -> None:
    raise RuntimeError("the collector fell over")


@pytest.mark.parametrize("guarded", [True, False])
def test_an_exception_is_an_event_and_the_run_is_closed(guarded: bool, tmp_path: Path) -> None:
    trainer, given = trainer_of("PPO"), hook(tmp_path / "run")
    given.register(trainer)
    trainer.register_op("post_steps", failing)
    if guarded:
        with pytest.raises(RuntimeError, match="fell over"), given:
            trainer.train()
    else:
        with pytest.raises(RuntimeError, match="fell over"):
            trainer.train()
        del trainer, given
        gc.collect()
    (event,) = gm.load(tmp_path / "run").events()
    assert event.kind == "exception"
    assert ("the collector fell over" if guarded else "without a word") in event.message
    assert hooks._clip_listeners == []


def test_two_trainings_in_one_process_keep_a_run_each(tmp_path: Path) -> None:
    for name in ("first", "second"):
        trainer = trainer_of("PPO")
        hook(tmp_path / name).register(trainer)
        trainer.train()
    first, second = gm.load(tmp_path / "first"), gm.load(tmp_path / "second")
    for name in ("grad/actor/norm/raw", "loss_objective", "reward"):
        assert first.series(name)[1].tolist() == second.series(name)[1].tolist()
    assert hooks._clip_listeners == []


def test_a_learner_in_another_process_is_refused() -> None:
    class Remote:
        learner_backend = "ray"

    with pytest.raises(UsageError, match="another process"):
        hook(None).register(Remote())


def test_without_torchrl_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrl.trainers", None)
    monkeypatch.delitem(sys.modules, "gradiometer.integrations.torchrl", raising=False)
    with pytest.raises(MissingExtra, match=r'pip install "gradiometer\[torchrl\]"'):
        importlib.import_module("gradiometer.integrations.torchrl")
