"""RLlib's own PPO learner on CartPole, watched; without a cluster, which takes a minute to start."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradiometer as gm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def ppo(**training: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.rllib.algorithms.ppo import PPOConfig

    config = PPOConfig().environment("CartPole-v1").debugging(seed=0)
    config = config.env_runners(num_env_runners=0, rollout_fragment_length=128)
    settings = {"train_batch_size_per_learner": 128, "minibatch_size": 64, "num_epochs": 2}
    return config.learners(num_learners=0).training(**settings, lr=3e-4, **training)


def trained(config: Any, iterations: int = 2) -> tuple[list[Any], list[float]]:
    """What `Algorithm.train` does with the runner and the learner group; final weights, and the
    norms that RLlib itself reports."""
    import torch
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = SingleAgentEnvRunner(config=config)
        group = config.build_learner_group(env=runner.env.unwrapped)
        algorithm = SimpleNamespace(learner_group=group, config=config)
        made = config.callbacks_class
        called = [make() for make in made] if isinstance(made, list) else [made()]
        for callback in called:
            callback.on_algorithm_init(algorithm=algorithm)
        norms = []
        for iteration in range(iterations):
            episodes = runner.sample()
            steps = {"num_env_steps_sampled_lifetime": 128 * (iteration + 1)}
            (stats,) = group.update(
                episodes=episodes, timesteps=steps, num_epochs=2, minibatch_size=64
            )
            policy = {name: stat.peek() for name, stat in stats["default_policy"].items()}
            norms.append(float(policy.get("gradients_default_optimizer_global_norm", np.nan)))
            result = {"env_runners": {"episode_return_mean": 20.0 + iteration}, **steps}
            result["learners"] = {"default_policy": {"entropy": policy["entropy"], "text": "x"}}
            for callback in called:
                callback.on_train_result(algorithm=algorithm, result=result)
        weights = group.get_weights()["default_policy"]
        group.shutdown()
    return [np.asarray(weights[name]) for name in sorted(weights)], norms


def test_a_learner_is_watched_its_clip_is_seen_and_the_training_is_the_same(tmp_path: Path) -> None:
    from gradiometer.integrations.rllib import watch_learners

    config = watch_learners(ppo(grad_clip=0.5), run=tmp_path / "ppo", every=1)
    weights, norms = trained(config)
    alone, _ = trained(ppo(grad_clip=0.5))
    assert len(weights) == len(alone) > 4
    assert all((a == b).all() for a, b in zip(weights, alone, strict=True))
    with gm.load(tmp_path / "ppo") as run:
        raw, clipped = run.series("grad/all/norm/raw")[1], run.series("grad/all/norm/clipped")[1]
        newest = run.newest_step
        assert newest is not None
        assert len(raw) == newest + 1 >= 8
        assert raw[-1] == pytest.approx(norms[-1], rel=1e-5)
        assert raw.min() > 0.5
        assert clipped == pytest.approx(0.5, rel=1e-4)
        assert run.series("env_runners/episode_return_mean")[1].tolist() == [20.0, 21.0]
        assert len(run.series("learners/default_policy/entropy")[0]) == 2
        assert run.facts["config"]["algorithm"] == "PPOConfig"
        assert run.facts["config"]["grad_clip"] == 0.5
        assert run.facts["seed"] == 0
        assert np.nanmax(run.steps()["env_steps"]) == 128
        assert run.events("exception") == []


def test_what_is_no_config_is_told() -> None:
    from gradiometer.integrations.rllib import watch_learners

    with pytest.raises(gm.UsageError, match="takes RLlib's AlgorithmConfig"):
        watch_learners({"lr": 1})
    with pytest.raises(gm.UsageError, match="unknown option of watch 'evry'"):
        watch_learners(ppo(), run=None, evry=2).callbacks_class[-1]()
