"""Real trainings of rl4co: POMO, PPO and REINFORCE with its baselines, watched by the callback for
Lightning."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

import gradiometer as gm

if importlib.util.find_spec("rl4co") is None:
    pytest.skip("rl4co is not installed", allow_module_level=True)

from gradiometer.integrations.lightning import GradiometerCallback

pytestmark = [
    pytest.mark.slow,
    # rl4co hands modules to Lightning as hyperparameters, and Lightning uses a part of torch that
    # is going away
    pytest.mark.filterwarnings("ignore:Attribute '.*' is an instance of `nn.Module`:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance\\(treespec, LeafSpec\\)"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    # the copy of the policy that a rollout baseline keeps
    pytest.mark.filterwarnings(
        "ignore:Found .* module\\(s\\) in eval mode at the start of training"
    ),
]
TINY = {"embed_dim": 16, "num_heads": 2, "num_encoder_layers": 1, "feedforward_hidden": 16}
CRITIC = {"embed_dim": 16, "hidden_dim": 16}
EPOCHS, ROLLOUTS, STEPS_OF_PPO = (
    2,
    3,
    8,
)  # rollouts an epoch; 2 epochs over 4 mini-batches a rollout


def module(algorithm: str) -> Any:
    from rl4co.envs import get_env
    from rl4co.models import POMO, PPO, REINFORCE, AttentionModelPolicy
    from rl4co.models.rl.common.critic import create_critic_from_actor
    from rl4co.models.rl.reinforce.baselines import CriticBaseline

    env = get_env("tsp", generator_params={"num_loc": 8})
    given = {
        "batch_size": 8,
        "train_data_size": 8 * ROLLOUTS,
        "val_data_size": 8,
        "test_data_size": 8,
    }
    given["optimizer_kwargs"] = {"lr": 1e-2}
    if algorithm == "POMO":
        return POMO(env, policy_kwargs=TINY, **given)
    policy = AttentionModelPolicy(env_name="tsp", **TINY)
    if algorithm == "PPO":
        return PPO(env, policy, critic_kwargs=CRITIC, max_grad_norm=0.5, **given)
    critic = CriticBaseline(create_critic_from_actor(policy, **CRITIC))
    return REINFORCE(env, policy, baseline=critic if algorithm == "critic" else algorithm, **given)


def train(algorithm: str, *callbacks: Any, max_epochs: int = EPOCHS, ckpt: Any = None) -> Any:
    from rl4co.utils import RL4COTrainer

    torch.manual_seed(0)
    np.random.seed(0)
    made = module(algorithm)
    quiet = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False
    )
    given = {"accelerator": "cpu", "precision": "32-true", "callbacks": list(callbacks), **quiet}
    trainer = RL4COTrainer(max_epochs=max_epochs, **given)
    trainer.fit(made, ckpt_path=ckpt)
    return trainer


def watching(**options: Any) -> GradiometerCallback:
    return GradiometerCallback(run="run", **{"budget": None, **options})


def series(name: str) -> tuple[list[int], list[float]]:
    steps, values = gm.load("run").series(name)
    return steps.tolist(), values.tolist()


def blocks(callback: GradiometerCallback) -> tuple[str, ...]:
    assert callback.meter is not None
    return callback.meter.blocks.names[1 : callback.meter.blocks.num_named]


def test_pomo_is_read_from_encoder_to_reward() -> None:
    trainer = train("POMO", callback := watching())
    steps = list(range(EPOCHS * ROLLOUTS))
    assert trainer.global_step == len(steps)
    assert blocks(callback) == ("encoder", "decoder")
    for block in ("all", "encoder", "decoder"):
        assert series(f"grad/{block}/norm/raw")[0] == steps
    parts = np.hypot(series("grad/encoder/norm/raw")[1], series("grad/decoder/norm/raw")[1])
    np.testing.assert_allclose(series("grad/all/norm/raw")[1], parts, rtol=1e-6)
    raw, clipped = np.array(series("grad/all/norm/raw")[1]), series("grad/all/norm/clipped")[1]
    np.testing.assert_allclose(
        clipped, np.minimum(raw, 1.0), rtol=1e-4
    )  # RL4COTrainer clips at 1 unless told
    assert series("train/reward")[0] == series("train/loss")[0] == steps
    assert series("val/reward")[0] == [ROLLOUTS - 1, 2 * ROLLOUTS - 1]
    assert -8.0 < series("train/reward")[1][0] < -1.0  # minus the length of a tour of 8 cities
    run = gm.load("run")
    assert run.steps()["rollout"].tolist() == steps
    assert run.facts["config"]["baseline"] == "shared"
    assert run.facts["config"]["trainer"]["module"] == "POMO"
    assert not run.events("fault")


def test_ppo_steps_by_itself_and_its_clip_is_seen() -> None:
    trainer = train("PPO", callback := watching())
    rollouts = EPOCHS * ROLLOUTS
    steps = list(range(rollouts * STEPS_OF_PPO))
    assert trainer.global_step == len(steps)
    assert blocks(callback) == ("actor", "encoder", "decoder", "critic")
    for block in ("actor", "encoder", "decoder", "critic"):
        assert series(f"grad/{block}/norm/raw")[0] == steps
    raw, clipped = np.array(series("grad/all/norm/raw")[1]), series("grad/all/norm/clipped")[1]
    np.testing.assert_allclose(clipped, np.minimum(raw, 0.5), rtol=1e-4)
    assert set(series("grad/all/clip/threshold")[1]) == {0.5}
    assert (raw > 0.5).any()
    last = list(range(STEPS_OF_PPO - 1, len(steps), STEPS_OF_PPO))
    for name in ("reward", "loss", "surrogate_loss", "value_loss", "entropy"):
        assert series(f"train/{name}")[0] == last
    run = gm.load("run")
    assert run.steps()["rollout"].tolist() == np.repeat(np.arange(rollouts), STEPS_OF_PPO).tolist()
    assert run.facts["config"]["ppo_epochs"] == 2
    assert not run.events("fault")
    assert not run.events("missing")


@pytest.mark.parametrize("baseline", ["rollout", "exponential", "critic"])
def test_what_a_baseline_keeps_is_not_taken_for_lost_gradients(baseline: str) -> None:
    train(baseline, callback := watching())
    assert callback.meter is not None
    assert set(callback.meter.states.values()) == {"finite"}
    assert blocks(callback) == (
        ("actor", "encoder", "decoder", "critic")
        if baseline == "critic"
        else ("encoder", "decoder")
    )
    assert not gm.load("run").events()
    assert series("train/reward")[0] == list(range(EPOCHS * ROLLOUTS))


@pytest.mark.parametrize("algorithm", ["POMO", "PPO", "rollout"])
def test_the_training_is_the_same_bits_with_and_without_the_callback(algorithm: str) -> None:
    def after(*callbacks: Any) -> tuple[dict[str, Any], torch.Tensor, float]:
        state = train(algorithm, *callbacks).lightning_module.state_dict()
        return state, torch.get_rng_state(), np.random.random()

    (bare, stream, number), (watched, watched_stream, watched_number) = after(), after(watching())
    assert bare.keys() == watched.keys()
    assert all(torch.equal(x, watched[name]) for name, x in bare.items())
    assert torch.equal(stream, watched_stream)
    assert number == watched_number


# rl4co's checkpoints hold its environment, which torch loads only when told to
@pytest.mark.filterwarnings("ignore:Environment variable TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD detected")
def test_a_training_of_pomo_goes_on_from_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    train("POMO", watching(), max_epochs=1).save_checkpoint("at.ckpt")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    train("POMO", watching(), max_epochs=3, ckpt="at.ckpt")
    assert series("grad/all/norm/raw")[0] == list(range(3 * ROLLOUTS))
    assert [event.step for event in gm.load("run").events("resumed")] == [ROLLOUTS - 1]
