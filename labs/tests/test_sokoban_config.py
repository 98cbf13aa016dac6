from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gradiometer.cli.main import run
from gradiometer.errors import UnknownName, UsageError
from gradiometer.maths import losses
from gradiometer.maths.groups import RolloutFilter
from gradiometer_labs.cartpole.config import Config as CartpoleConfig
from gradiometer_labs.cli.train import prepared
from gradiometer_labs.config import configure, keys_of
from gradiometer_labs.sokoban import sources
from gradiometer_labs.sokoban.config import Config

# The longest command of RAGEN's guide, as a shell hands it over
FROM_A_CHECKPOINT = [
    "model_path=Qwen/Qwen2.5-3B",
    "trainer.project_name=ragen_gradient_analysis",
    "trainer.experiment_name=sokoban-PPO-filter-topp09-grad-from-ckpt100",
    "trainer.default_local_dir=model_saving/gradient_analysis/sokoban/PPO/filter/sokoban-PPO",
    "trainer.resume_mode=resume_path",
    "trainer.resume_from_path=/ABS/PATH/TO/your_run/global_step_100",
    "trainer.total_training_steps=101",
    "trainer.save_freq=-1",
    "trainer.val_before_train=False",
    "trainer.test_freq=-1",
    "trainer.n_gpus_per_node=8",
    "ray_kwargs.ray_init.num_cpus=16",
    "system.CUDA_VISIBLE_DEVICES='0,1,2,3,4,5,6,7'",
    "es_manager.train.env_groups=32",
    "es_manager.train.group_size=16",
    "es_manager.train.env_configs.n_groups=[32]",
    "actor_rollout_ref.actor.use_kl_loss=False",
    "actor_rollout_ref.actor.kl_loss_type=low-var-kl",
    "actor_rollout_ref.actor.kl_loss_coef=0.001",
    "actor_rollout_ref.actor.entropy_coeff=0.001",
    "actor_rollout_ref.actor.entropy_from_logits_with_chunking=True",
    "actor_rollout_ref.actor.filter_loss_scaling=none",
    "actor_rollout_ref.actor.loss_agg_mode=token-mean",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.3",
    "actor_rollout_ref.rollout.rollout_filter_value=0.9",
    "actor_rollout_ref.rollout.rollout_filter_strategy=top_p",
    "actor_rollout_ref.rollout.rollout_filter_top_p_prob_mode=softmax",
    "actor_rollout_ref.rollout.rollout_filter_type=largest",
    "actor_rollout_ref.rollout.rollout_filter_metric=reward_variance",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=True",
    "algorithm.adv_estimator=gae",
    "trainer.gradient_analysis_mode=True",
    "trainer.gradient_analysis_every=1",
    "trainer.exit_after_gradient_analysis=True",
    "actor_rollout_ref.rollout.gradient_analysis_num_buckets=6",
    "actor_rollout_ref.rollout.gradient_analysis_bucket_mode=quantile",
]
IDLE = [
    "trainer.n_gpus_per_node",
    "ray_kwargs.ray_init.num_cpus",
    "system.CUDA_VISIBLE_DEVICES",
    "actor_rollout_ref.actor.entropy_from_logits_with_chunking",
    "actor_rollout_ref.actor.filter_loss_scaling",
    "actor_rollout_ref.rollout.gpu_memory_utilization",
]


def value_of(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config


def test_the_defaults_are_the_sources() -> None:
    config = configure(Config, [])
    assert config == Config() == configure(Config, [], config_name="_2_sokoban")
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    assert (trainer.gradient_analysis_mode, trainer.gradient_analysis_every) == (True, 50)
    assert (rollout.gradient_analysis_num_buckets, rollout.gradient_analysis_bucket_mode) == (
        6,
        "quantile",
    )
    assert not trainer.exit_after_gradient_analysis
    assert config.analysis_batch is None


def test_every_override_of_the_longest_command_works_by_its_name() -> None:
    config = configure(Config, FROM_A_CHECKPOINT, config_name="_2_sokoban")
    assert config.model_path == "Qwen/Qwen2.5-3B"
    assert config.trainer.resume_step == 100
    assert config.trainer.val_before_train is False
    assert config.trainer.exit_after_gradient_analysis is True
    assert config.system.CUDA_VISIBLE_DEVICES == "0,1,2,3,4,5,6,7"
    assert config.es_manager.train.env_configs.n_groups == [32]
    assert config.actor_rollout_ref.actor.use_kl_loss is False
    assert config.run_name == "sokoban-PPO-filter-topp09-grad-from-ckpt100"
    assert config.actor_rollout_ref.rollout.rollout_filter == RolloutFilter(
        strategy="top_p", value=0.9, top_p_prob_mode="softmax"
    )


def test_keys_without_effect_are_named_once() -> None:
    assert Config.no_effect([*FROM_A_CHECKPOINT, "++trainer.n_gpus_per_node=4"]) == IDLE
    assert Config.no_effect(["seed=2"]) == []
    assert set(keys_of(Config())) >= Config.NO_EFFECT


def test_hydras_plus_signs_mean_nothing() -> None:
    config = configure(Config, ["+seed=5", "++trainer.test_freq=3"])
    assert (config.seed, config.trainer.test_freq) == (5, 3)


def test_the_preset_is_the_helper_script() -> None:
    config = configure(Config, ["preset=grad_analysis"])
    steps = range(1, config.trainer.total_training_steps + 1)
    assert [step for step in steps if config.trainer.analyses_at(step)] == [1, 51, 101]
    assert config.analysis_batch == (128, 16)
    train, rollout = config.es_manager.train, config.actor_rollout_ref.rollout
    assert (train.env_groups, train.group_size) == (8, 16)
    assert (config.trainer.val_before_train, config.trainer.test_freq) == (True, 10)
    assert rollout.rollout_filter == RolloutFilter(
        strategy="top_p", value=0.9, top_p_prob_mode="softmax"
    )


@pytest.mark.parametrize("name", Config.PRESETS)
def test_every_preset_makes_a_config(name: str) -> None:
    config = configure(Config, [f"preset={name}"])
    assert config.preset == name
    for override in Config.PRESETS[name]:
        key, _, text = override.partition("=")
        assert str(value_of(config, key)).lower() == text


def test_overrides_win_over_the_preset_whatever_their_order() -> None:
    before = configure(Config, ["trainer.total_training_steps=3", "preset=grad_analysis"])
    after = configure(Config, ["preset='grad_analysis'", "trainer.total_training_steps=3"])
    assert before == after
    assert before.trainer.total_training_steps == 3
    assert before.trainer.gradient_analysis_env_groups == 128


def test_one_analysis_size_leaves_the_other_to_the_training_batch() -> None:
    assert configure(Config, ["trainer.gradient_analysis_env_groups=20"]).analysis_batch == (20, 8)
    assert configure(Config, ["trainer.gradient_analysis_group_size=4"]).analysis_batch == (16, 4)


def test_no_step_is_analysed_when_the_mode_is_off() -> None:
    trainer = configure(Config, ["trainer.gradient_analysis_mode=False"]).trainer
    assert not any(trainer.analyses_at(step) for step in range(1, 102))


def test_checkpoints_go_to_default_local_dir_or_into_the_run() -> None:
    assert Config(run="runs/a").checkpoint_dir == Path("runs/a/checkpoints")
    assert configure(
        Config, ["run=runs/a", "trainer.default_local_dir=saved"]
    ).checkpoint_dir == Path("saved")
    assert Config().checkpoint_dir is None


def test_the_names_are_those_of_the_mathematics() -> None:
    assert set(sources.KL_LOSS_TYPES) == set(losses.KL_KINDS)
    assert set(sources.LOSS_AGG_MODES) == set(losses.AGGREGATIONS)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("es_manager.train.group_size=1", "no variance within a group of one"),
        ("trainer.gradient_analysis_group_size=1", "no variance within a group of one"),
        (
            "es_manager.train.env_groups=0",
            "es_manager.train.env_groups=0: use 1 or more",
        ),
        ("es_manager.val.env_groups=-1", "es_manager.val.env_groups=-1: use 1 or more"),
        (
            "es_manager.train.env_configs.n_groups=[4]",
            r"n_groups=\[4\] does not fit .*env_groups=16.*use \[16\] or null",
        ),
        ("es_manager.train.env_configs.n_groups=[4,4]", r"n_groups=\[4, 4\] does not fit"),
        ("es_manager.train.env_configs.n_groups=8", "found '8', expected list"),
        ("trainer.gradient_analysis_every=0", "gradient_analysis_every=0: use 1 or more"),
        ("trainer.total_training_steps=0", "total_training_steps=0: use 1 or more"),
        ("trainer.test_freq=-2", "test_freq=-2: use -1 or more"),
        ("trainer.save_freq=10", "nowhere to save to: set run= or trainer.default_local_dir="),
        ("trainer.experiment_name=a/b", "names a folder"),
        ("trainer.experiment_name=", "names a folder"),
        ("trainer.resume_mode=resume_path", "needs trainer.resume_from_path="),
        ("trainer.resume_from_path=a/global_step_5", "not read under trainer.resume_mode=disable"),
        (
            "trainer.resume_mode=resume_path trainer.resume_from_path=a/global_step_5/actor",
            "the folder global_step_<N>",
        ),
        (
            "trainer.resume_mode=resume_path trainer.resume_from_path=a/my_global_step_5",
            "is not a checkpoint",
        ),
        (
            "trainer.resume_mode=resume_path trainer.resume_from_path=a/global_step_120/",
            "after step 120: use 121",
        ),
        (
            "actor_rollout_ref.rollout.gradient_analysis_num_buckets=0",
            "num_buckets=0: use 1 or more",
        ),
        (
            "actor_rollout_ref.rollout.temperature=0",
            "temperature=0.0: use a number above 0",
        ),
        (
            "actor_rollout_ref.rollout.rollout_filter_value=-1",
            "value of a top_p filter must be above 0",
        ),
        (
            "actor_rollout_ref.actor.filter_loss_scaling=linear",
            "has no meaning in this lab: use none",
        ),
        ("actor_rollout_ref.actor.kl_loss_coef=-1", "kl_loss_coef=-1.0: use 0 or more"),
        ("actor_rollout_ref.actor.entropy_coeff=nan", "entropy_coeff=nan: use 0 or more"),
        (
            "actor_rollout_ref.actor.clip_ratio_low=2",
            "clip_ratio_low=2.0: use 0 to 1",
        ),
        (
            "actor_rollout_ref.actor.clip_ratio_c=1",
            "clip_ratio_c=1.0: use a number above 1",
        ),
        ("actor_rollout_ref.actor.optim.lr=0", "actor.optim.lr=0.0: use a number above 0"),
        ("actor_rollout_ref.actor.ppo_epochs=0", "ppo_epochs=0: use 1 or more"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=129", "more than the 128 rollouts"),
        ("actor_rollout_ref.actor.use_kl_loss=perhaps", "found 'perhaps', expected bool"),
        ("critic.optim.lr=-1", "critic.optim.lr=-1.0: use a number above 0"),
        ("algorithm.gamma=1.5", "algorithm.gamma=1.5: use 0 to 1"),
        ("algorithm.lam=nan", "algorithm.lam=nan: use 0 to 1"),
        (
            "model.hidden_size=90",
            "does not divide into model.num_heads=4 heads of even width: use a multiple of 8",
        ),
        ("env.size=3", "env.size=3: use 4 to 20"),
        ("env.size=21", "env.size=21: use 4 to 20"),
        ("env.size=1000000", "env.size=1000000: use 4 to 20"),
        ("env.num_boxes=12", "env: size=6 has 16 cells inside its walls, too few"),
        ("env.min_pushes=9", "env: no such level: .*max_pushes=4 at least min_pushes"),
        ("env.min_pushes=40 env.max_pushes=40", "env: no level in 2000 tries"),
        ("env.max_turns=0", "env.max_turns=0: use 1 or more"),
        ("warm_start.steps=-1", "warm_start.steps=-1: use 0 or more"),
        ("every=0", "every=0: use 1 or more"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(overrides: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        configure(Config, overrides.split())


@pytest.mark.parametrize(
    ("override", "close"),
    [
        ("preset=grad_analyse", "grad_analysis"),
        ("trainer.resume_mode=resume", "resume_path"),
        ("actor_rollout_ref.actor.kl_loss_type=low_var", "low_var_kl"),
        ("actor_rollout_ref.actor.loss_agg_mode=token_mean", "token-mean"),
        ("actor_rollout_ref.rollout.gradient_analysis_bucket_mode=quantiles", "quantile"),
        ("actor_rollout_ref.rollout.rollout_filter_strategy=topp", "top_p"),
        ("actor_rollout_ref.rollout.rollout_filter_type=large", "largest"),
        ("actor_rollout_ref.rollout.rollout_filter_metric=reward_var", "reward_variance"),
        ("actor_rollout_ref.rollout.rollout_filter_top_p_prob_mode=softmx", "softmax"),
        ("algorithm.adv_estimator=grp", "grpo"),
        ("trainer.gradient_analysis_evry=1", "trainer.gradient_analysis_every"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_right_one(override: str, close: str) -> None:
    with pytest.raises(UnknownName) as caught:
        configure(Config, [override])
    assert close in caught.value.close


def test_a_config_name_is_one_of_the_labs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "sokoban", "--config-name", "_3_sokoban"]) == 2
    assert (
        "unknown config name '_3_sokoban'; did you mean '_2_sokoban'? There is: _2_sokoban."
        in capsys.readouterr().err
    )
    assert run(["train", "cartpole", "--config-name=_2_sokoban"]) == 2
    assert "this lab has no named configurations" in capsys.readouterr().err


def test_the_command_says_which_keys_do_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    config = prepared("sokoban", FROM_A_CHECKPOINT, config_name="_2_sokoban")
    assert capsys.readouterr().err == f"no effect in this lab: {', '.join(IDLE)}\n"
    assert str(config.run).startswith("runs/sokoban-PPO-filter-topp09-grad-from-ckpt100-")
    prepared("sokoban", ["seed=2"])
    assert capsys.readouterr().err == ""


def test_the_run_is_named_by_run_then_by_the_experiment_then_by_the_lab() -> None:
    named = "trainer.experiment_name=first"
    assert prepared("sokoban", [named, "run=here"]).run == "here"
    assert prepared("sokoban", [named, "run=null"]).run is None
    assert str(prepared("sokoban", [named]).run).startswith("runs/first-")
    assert str(prepared("sokoban", []).run).startswith("runs/sokoban-")
    assert prepared("cartpole", ["+run=there"]) == dataclasses.replace(
        CartpoleConfig(), run="there"
    )
