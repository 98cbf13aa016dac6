"""Names of series: what each tool's are read as, whatever their case and separators, what the words
of others say, and that random words say nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradiometer.doctor.outcome import outcome_of
from gradiometer.doctor.rundata import RunData
from gradiometer.errors import GradiometerError
from gradiometer.metrics import (
    CATALOGUE,
    OUTCOMES,
    library_of,
    names_to_keep,
    parse_told,
    read_names,
    resolve,
)
from gradiometer.names import is_bookkeeping, vocabulary, words_of
from gradiometer.store.importers import load
from gradiometer.store.logs import Log

# By tool: its names as its source writes them, with what they are; - for the other sign, and
# nothing for what must have no meaning.
TOOLS: dict[str, dict[str, str]] = {
    "TRL GRPO": {
        "reward": "reward",
        "reward_std": "reward_std",
        "rewards/format_reward/mean": "rewards/<function>/<statistic>",
        "rewards/format_reward": "rewards/<function>/<statistic>",
        "frac_reward_zero_std": "zero_variance_groups",
        "completions/mean_length": "episode_length",
        "completions/max_terminated_length": "terminated_length_max",
        "completions/clipped_ratio": "truncated_fraction",
        "completion_length": "episode_length",
        "kl": "kl_ref",
        "entropy": "entropy",
        "clip_ratio/region_mean": "clip_fraction",
        "clip_ratio/low_mean": "clip_fraction_low",
        "grad_norm": "grad/<block>/norm/raw",
        "learning_rate": "learning_rate",
        "loss": "loss",
        "eval_reward": "val/reward",
        "eval_loss": "val/loss",
        "eval_completions/mean_length": "val/episode_length",
        "eval_rewards/format_reward/mean": "val/rewards/<function>/<statistic>",
        "num_tokens": "",
        "step_time": "",
    },
    "TRL, TensorBoard": {
        "train/reward": "reward",
        "train/completions/mean_length": "episode_length",
        "train/rewards/format_reward/mean": "rewards/<function>/<statistic>",
        "train/kl": "kl_ref",
        "train/global_step": "",
    },
    "TRL PPO": {
        "objective/scores": "reward",
        "objective/rlhf_reward": "reward",
        "objective/kl": "kl_ref",
        "objective/entropy": "entropy",
        "objective/non_score_reward": "reward_penalty",
        "policy/approxkl_avg": "approx_kl",
        "policy/clipfrac_avg": "clip_fraction",
        "loss/value_avg": "value_loss",
        "val/num_eos_tokens": "eos_count",
        "val/clipfrac_avg": "value_clip_fraction",
        "val/ratio": "ratio/<statistic>",
        "eps": "",
        "episode": "",
    },
    "TRL PPO, old": {
        "ppo/mean_scores": "reward",
        "ppo/policy/entropy": "entropy",
        "ppo/policy/approxkl": "approx_kl",
        "ppo/loss/value": "value_loss",
        "ppo/val/var_explained": "explained_variance",
        "env/reward_mean": "reward",
        "tokens/responses_len_mean": "episode_length",
    },
    "TRL DPO": {
        "rewards/margins": "preference/margin",
        "rewards/accuracies": "preference/accuracy",
        "rewards/chosen": "preference/chosen_reward",
        "rewards/rejected": "preference/rejected_reward",
        "logps/chosen": "preference/chosen_log_prob",
        "eval_rewards/accuracies": "val/preference/accuracy",
        "mean_token_accuracy": "token_accuracy",
    },
    "verl": {
        "critic/score/mean": "reward",
        "critic/rewards/mean": "reward",
        "critic/score/max": "reward_max",
        "critic/advantages/mean": "advantages/<statistic>",
        "actor/entropy": "entropy",
        "actor_entropy": "entropy",
        "actor/entropy_loss": "entropy",
        "actor/ppo_kl": "approx_kl",
        "actor/kl_loss": "kl_ref",
        "actor/pg_clipfrac": "clip_fraction",
        "actor/grad_norm": "grad/<block>/norm/raw",
        "response_length/mean": "episode_length",
        "response_length/clip_ratio": "truncated_fraction",
        "val-core/openai/gsm8k/acc/mean@8": "val/success_rate",
        "val-core/math/reward/mean@1": "val/reward",
        "val/test_score/openai/gsm8k": "val/reward",
        "timing_s/reward": "",
        "perf/throughput": "",
        "global_seqlen/max": "",
    },
    "slime": {
        "rollout/raw_reward": "reward",
        "rollout/truncated_ratio": "truncated_fraction",
        "rollout/response_len/mean": "episode_length",
        "train/entropy_loss": "entropy",
        "train/kl_loss": "kl_ref",
        "train/train_rollout_kl": "sampler_kl",
        "perf/rollout_time": "",
    },
    "prime-rl": {
        "reward/all/mean": "reward",
        "mismatch_kl/mean": "sampler_kl",
        "batch/solve_none": "groups_all_wrong",
        "eval/aime2024/avg@16": "val/reward",
        "completion_len/mean": "episode_length",
        "optim/lr": "learning_rate",
        "time/step": "",
    },
    "NeMo-RL": {
        "train/reward": "reward",
        "validation/accuracy": "val/success_rate",
        "train/gen_kl_error": "sampler_kl",
        "train/mean_gen_tokens_per_sample": "episode_length",
        "train/kl_penalty": "kl_ref",
        "train/approx_entropy": "entropy",
    },
    "AReaL": {
        "ppo_actor/task_reward/avg": "reward",
        "grpo_actor/task_reward/avg": "reward",
        "ppo_actor/actor_clip_ratio/avg": "clip_fraction",
        "ppo_actor/importance_weight/avg": "ratio/<statistic>",
        "ppo_actor/no_eos_ratios/avg": "truncated_fraction",
    },
    "OpenRLHF": {
        "train/reward": "reward",
        "train/response_length": "episode_length",
        "train/ppo_clip_ratio": "clip_fraction",
        "train/vllm_kl": "sampler_kl",
        "train/actor_lr": "learning_rate",
        "eval_math_pass1": "val/success_rate",
    },
    "ROLL": {
        "actor/approxkl": "approx_kl",
        "actor/ppo_ratio_clipfrac": "clip_fraction",
        "actor/ratio_max": "ratio/<statistic>",
        "critic/score/mean": "reward",
        "response_length/mean": "episode_length",
    },
    "tinker": {
        "env/all/reward/total": "reward",
        "env/all/correct": "success_rate",
        "test/env/all/correct": "val/success_rate",
        "env/all/by_group/frac_mixed": "-zero_variance_groups",
        "env/all/ac_tokens_per_turn": "episode_length",
        "optim/kl_sample_train_v1": "sampler_kl",
        "optim/entropy": "entropy",
    },
    "ms-swift": {
        "reward": "reward",
        "entropy/mean": "entropy",
        "token_acc": "token_accuracy",
        "completions/mean_length": "episode_length",
        "rewards/MathAccuracy/mean": "rewards/<function>/<statistic>",
        "memory(GiB)": "",
        "train_speed(s/it)": "",
    },
    "SB3 PPO": {
        "rollout/ep_rew_mean": "reward",
        "rollout/ep_len_mean": "episode_length",
        "train/entropy_loss": "-entropy",
        "train/approx_kl": "approx_kl",
        "train/std": "action_noise",
        "train/loss": "loss",
        "eval/mean_reward": "val/reward",
        "eval/mean_ep_length": "val/episode_length",
        "time/fps": "",
        "train/n_updates": "",
    },
    "SB3 DQN": {
        "rollout/ep_rew_mean": "reward",
        "rollout/exploration_rate": "exploration_rate",
        "train/loss": "value_loss",
    },
    "SB3 SAC": {
        "rollout/ep_rew_mean": "reward",
        "train/actor_loss": "policy_loss",
        "train/critic_loss": "value_loss",
        "train/ent_coef": "entropy_coef",
        "train/ent_coef_loss": "entropy_coef_loss",
    },
    "SB3 TRPO": {
        "rollout/ep_rew_mean": "reward",
        "train/kl_divergence_loss": "approx_kl",
        "train/policy_objective": "-policy_loss",
    },
    "monitor": {"r": "reward", "l": "episode_length", "t": ""},
    "OpenAI baselines": {
        "eprewmean": "reward",
        "eplenmean": "episode_length",
        "loss/approxkl": "approx_kl",
        "misc/explained_variance": "explained_variance",
        "fps": "",
        "nupdates": "",
    },
    "OpenAI baselines, old": {"EpRewMean": "reward", "EpLenMean": "episode_length"},
    "OpenAI baselines DDPG": {
        "rollout/return": "reward",
        "rollout/Q_mean": "q_value",
        "train/loss_critic": "value_loss",
        "eval/return": "val/reward",
        "total/duration": "",
        "obs_rms_mean": "",
    },
    "Spinning Up": {
        "AverageEpRet": "reward",
        "StdEpRet": "reward_spread",
        "MaxEpRet": "reward_max",
        "AverageTestEpRet": "val/reward",
        "EpLen": "episode_length",
        "LossV": "value_loss",
        "LossPi": "policy_loss",
        "KL": "approx_kl",
        "ClipFrac": "clip_fraction",
        "Entropy": "entropy",
        "AverageQVals": "q_value",
        "StopIter": "",
        "Time": "",
        "TotalEnvInteracts": "",
    },
    "RLlib": {
        "episode_reward_mean": "reward",
        "episode_reward_max": "reward_max",
        "episode_len_mean": "episode_length",
        "evaluation/episode_reward_mean": "val/reward",
        "info/learner/default_policy/learner_stats/kl": "approx_kl",
        "info/learner/default_policy/learner_stats/vf_explained_var": "explained_variance",
        "info/learner/default_policy/entropy": "entropy",
        "ray/tune/episode_reward_mean": "reward",
        "ray/tune/info/learner/default_policy/vf_loss": "value_loss",
        "timers/learn_time_ms": "",
        "num_healthy_workers": "",
    },
    "RLlib, new": {
        "env_runners/episode_return_mean": "reward",
        "env_runners/episode_len_mean": "episode_length",
        "evaluation/env_runners/episode_return_mean": "val/reward",
        "learners/default_policy/mean_kl_loss": "approx_kl",
        "learners/default_policy/vf_loss": "value_loss",
        "learners/default_policy/gradients_default_optimizer_global_norm": "grad/<block>/norm/raw",
    },
    "CleanRL": {
        "charts/episodic_return": "reward",
        "charts/SPS": "",
        "losses/approx_kl": "approx_kl",
        "losses/entropy": "entropy",
        "losses/td_loss": "value_loss",
        "losses/qf1_values": "q_value",
    },
    "ML-Agents": {
        "Environment/Cumulative Reward": "reward",
        "Environment/Episode Length": "episode_length",
        "Policy/Entropy": "entropy",
        "Policy/Epsilon": "clip_range",
        "Policy/Beta": "entropy_coef",
        "Losses/Value Loss": "value_loss",
        "Policy/Extrinsic Reward": "rewards/<function>/<statistic>",
    },
    "rsl_rl": {
        "Train/mean_reward": "reward",
        "Train/mean_episode_length": "episode_length",
        "Policy/mean_noise_std": "action_noise",
        "Loss/value_function": "value_loss",
        "Loss/surrogate": "policy_loss",
        "Loss/learning_rate": "learning_rate",
        "Episode/rew_tracking_lin_vel": "rewards/<function>/<statistic>",
        "Episode_Reward/track_lin_vel": "rewards/<function>/<statistic>",
        "Perf/total_fps": "",
        "Perf/learning_time": "",
        "Train/mean_reward/time": "",
    },
    "rl_games": {
        "rewards/step": "reward",
        "episode_lengths/iter": "episode_length",
        "losses/a_loss": "policy_loss",
        "losses/c_loss": "value_loss",
        "info/last_lr": "learning_rate",
        "info/kl": "approx_kl",
        "info/e_clip": "clip_range",
        "performance/step_fps": "",
        "info/epochs": "",
    },
    "skrl": {
        "Reward / Total reward (mean)": "reward",
        "Reward / Total reward (max)": "reward_max",
        "Reward / Instantaneous reward (mean)": "step_reward",
        "Episode / Total timesteps (mean)": "episode_length",
        "Loss / Policy loss": "policy_loss",
        "Policy / Standard deviation": "action_noise",
        "Learning / Learning rate": "learning_rate",
        "Loss / Entropy loss": "",
    },
    "tianshou": {
        "test/reward": "val/reward",
        "test/reward_std": "val/reward_spread",
        "train/returns_stat/mean": "reward",
        "update/loss/ent": "entropy",
        "update/loss/vf": "value_loss",
        "train/length": "episode_length",
        "save/epoch": "",
    },
    "Dreamer": {
        "episode/score": "reward",
        "episode/length": "episode_length",
        "sim/train/return": "reward",
        "train/return": "reward",
        "test/return": "val/reward",
        "eval_return": "val/reward",
    },
    "PufferLib": {
        "environment/episode_return": "reward",
        "environment/score": "reward",
        "environment/perf": "success_rate",
        "losses/importance": "ratio/<statistic>",
        "performance/eval": "",
    },
    "Sample Factory": {
        "reward/reward": "reward",
        "len/len": "episode_length",
        "policy_stats/avg_true_objective": "reward",
        "train/kl_divergence": "approx_kl",
        "train/adv_std": "advantages/<statistic>",
        "perf/_fps": "",
    },
    "torchrl": {
        "train/reward": "reward",
        "eval/reward": "val/reward",
        "train/loss_critic": "value_loss",
        "train/kl_approx": "approx_kl",
        "train/episode_length": "episode_length",
    },
    "Acme": {"episode_return": "reward", "evaluator/episode_return": "val/reward"},
    "rl4co": {"train/reward": "reward", "val/reward": "val/reward", "test/reward": "val/reward"},
    "LLaMA-Factory": {"accuracy": "success_rate", "loss": "loss", "lr": "learning_rate"},
    "nobody's": {
        "mean_r": "reward",
        "avgReturn": "reward",
        "smoothed_return_100": "reward",
        "total_reward": "reward",
        "eval/gsm8k/accuracy": "val/success_rate",
        "test_acc": "val/success_rate",
        "success_rate": "success_rate",
        "pass@1": "success_rate",
        "win_rate": "success_rate",
        "policyEntropy": "entropy",
        "mean_episode_len": "episode_length",
        "vf_loss": "value_loss",
        "loss_q": "value_loss",
        "pg_loss": "policy_loss",
        "gradNorm": "grad/<block>/norm/raw",
        "grad_global_norm": "total_grad_norm",
        "lr": "learning_rate",
        "avgreturn": "reward",
        "winrate": "success_rate",
        "kldiv": "kl_ref",
        "action_std": "action_noise",
        "noise": "",
        "pass@8": "",
        "normalized_reward": "",
        "clip_frac": "clip_fraction",
        "format_reward": "rewards/<function>/<statistic>",
        "std_return": "reward_spread",
        "max_reward": "reward_max",
        "reward_scale": "",
        "loss_reward_model": "",
        "success_threshold": "",
        "target_reward": "",
        "reward_coef": "",
        "time/reward": "",
        "reward_time": "",
        "entropy_loss": "",
        "format_accuracy": "",
        "token_accuracy_loss": "",
        "best_train_accuracy": "",
        "failure_rate": "",
        "false_positive_rate": "",
        "kl_target": "",
        "r2": "",
        "value": "",
        "max": "",
        "fps": "",
        "steps": "",
    },
}


def said(name: str, names: list[str]) -> str:
    found = read_names(names).get(name)
    if found is None:
        return ""
    sign = "-" if found.alias is not None and found.alias.sign < 0 else ""
    return sign + found.metric.name


@pytest.mark.parametrize("tool", TOOLS)
def test_the_names_of_a_tool_are_read_as_what_they_are(tool: str) -> None:
    names = list(TOOLS[tool])
    assert {name: said(name, names) for name in names} == TOOLS[tool]


@pytest.mark.parametrize("tool", sorted(set(TOOLS) - {"monitor", "nobody's"}))
def test_case_and_separators_do_not_matter(tool: str) -> None:
    names = list(TOOLS[tool])
    for change in (str.upper, str.title, spaced, dotted, underscored, camel):
        changed = {name: change(name) for name in names}
        if len(set(changed.values())) < len(names):
            continue
        now = read_names(changed.values())
        for name, other in changed.items():
            found = now.get(other)
            assert (found.metric.name if found else "") == TOOLS[tool][name].removeprefix("-"), (
                name,
                other,
            )


def spaced(name: str) -> str:
    return re.sub(r"[/_.]", " ", name)


def dotted(name: str) -> str:
    return re.sub(r"[/_ ]+", ".", name)


def underscored(name: str) -> str:
    return "_".join(words_of(name))


def camel(name: str) -> str:
    return "".join(map(str.capitalize, words_of(name)))


letters = st.text(alphabet="bcdfghjklmnpqrstvwxyz", min_size=3, max_size=9)


@given(st.lists(letters, min_size=1, max_size=4), st.sampled_from("/_. -"))
def test_random_words_mean_nothing(words: list[str], separator: str) -> None:
    name = separator.join(words)
    parts = {part for word in words for part in words_of(word)}
    known = vocabulary()
    if not parts & (known.nouns | set(known.synonyms) | {"eps", "kls"}):
        assert resolve(name) is None, name


@given(st.sampled_from(sorted(vocabulary().traps)), st.sampled_from(["reward", "return", "score"]))
def test_a_reward_beside_a_word_of_settings_is_none(trap: str, noun: str) -> None:
    for name in (f"{noun}_{trap}", f"{trap}/{noun}"):
        found = resolve(name)
        assert found is None or found[0].name not in OUTCOMES, name


def test_held_out_goes_before_training_and_means_before_extremes() -> None:
    names = ["train/reward", "eval/reward_max", "eval/reward", "eval/success", "max_return"]
    found = read_names(names)
    first = {reading.metric.name: name for name, reading in reversed(found.items())}
    assert first["val/reward"] == "eval/reward"
    assert first["val/success_rate"] == "eval/success"
    assert first["reward"] == "train/reward"
    assert first["reward_max"] == "max_return"
    assert OUTCOMES.index("val/success_rate") < OUTCOMES.index("val/reward")
    assert OUTCOMES.index("val/reward") < OUTCOMES.index("reward")


def test_the_accuracy_of_a_discriminator_is_no_outcome_beside_a_reward() -> None:
    found = read_names(["agent acc", "demo acc", "mean 100 episode reward"])
    assert {each.metric.name for each in found.values()} == {"reward"}


def test_the_mean_over_data_sets_goes_before_a_single_one() -> None:
    names = ["eval/aime/accuracy", "eval/math/accuracy", "eval/accuracy"]
    assert next(iter(read_names(names))) == "eval/accuracy"
    names = ["val/test_score/aime", "val/test_score/overall"]
    assert next(iter(read_names(names))) == "val/test_score/overall"


def test_one_reward_function_alone_is_the_reward_and_of_two_none_is() -> None:
    (found,) = read_names(["step_time", "puzzle_reward"]).values()
    assert (found.metric.name, found.guessed) == ("reward", True)
    found, *_ = read_names(["accuracy_reward", "maze_reward"]).values()
    assert (found.name, found.metric.name) == ("accuracy_reward", "reward")
    found = read_names(["reward_valid_json", "reward_has_keys", "reward_env_interaction"])
    assert found["reward_env_interaction"].metric.name == "reward"
    assert found["reward_valid_json"].metric.name == "rewards/<function>/<statistic>"
    assert read_names(["valid_reward"])["valid_reward"].metric.name == "val/reward"
    two = read_names(["puzzle_reward", "maze_reward"])
    assert {reading.metric.name for reading in two.values()} == {"rewards/<function>/<statistic>"}


def test_a_pass_rate_of_a_part_counts_only_where_there_is_nothing_else() -> None:
    assert read_names(["hard_pass_rate"])["hard_pass_rate"].metric.name == "success_rate"
    assert "hard_pass_rate" not in read_names(["hard_pass_rate", "reward"])
    beside = read_names(["reward/pass_rate", "critic/score/mean"])["reward/pass_rate"]
    assert beside.metric.name == "rewards/<function>/<statistic>"  # a part, and no outcome


def log_of(columns: dict[str, Any], facts: dict[str, Any] | None = None) -> Log:
    size = len(next(iter(columns.values())))
    rows = [(step, {name: float(columns[name][step]) for name in columns}) for step in range(size)]
    return Log("made", name="made", run_id="made", rows=rows, facts=facts or {})


def test_an_offset_a_sign_and_per_cent_are_put_right() -> None:
    data = RunData(
        log_of(
            {
                "env/all/by_group/frac_mixed": [0.25, 1.0],
                "train/entropy_loss": [-2.0, -1.0],
                "eval/accuracy": [20.0, 55.0],
                "rollout/ep_rew_mean": [20.0, 55.0],
            }
        )
    )
    idle, entropy = data.get("zero_variance_groups"), data.get("entropy")
    score, reward = data.get("val/success_rate"), data.get("reward")
    assert idle is not None
    assert idle.values.tolist() == [0.75, 0.0]
    assert entropy is not None
    assert entropy.values.tolist() == [2.0, 1.0]
    assert score is not None
    assert np.allclose(score.values, [0.2, 0.55])
    assert reward is not None
    assert reward.values.tolist() == [20.0, 55.0]


def test_what_is_told_goes_before_what_a_name_says_and_is_kept() -> None:
    log = log_of({"reward": [0.0, 1.0], "puzzled": [5.0, 6.0], "mean_len": [1.0, 2.0]})
    data = RunData(log, told={"puzzled": "reward"})
    found = data.get("reward")
    assert found is not None
    assert found.name == "puzzled"
    assert [(each.column, each.meaning, each.how) for each in data.named] == [
        ("puzzled", "reward", "told"),
        ("mean_len", "episode_length", "guessed"),
    ]
    assert data.named[0].instead_of == ("reward",)
    assert data.outcomes[0] == "reward"
    assert RunData(log).outcomes == OUTCOMES
    both = log_of({"eval_reward": np.arange(20), "puzzled": -np.arange(20)})
    for told, column in ((None, "eval_reward"), ({"puzzled": "reward"}, "puzzled")):
        became = outcome_of(RunData(both, told=told))
        assert became is not None
        assert became.series.name == column
    kept = names_to_keep(log.names(), {"puzzled": "reward"})
    assert kept == {"told": {"puzzled": "reward"}, "guessed": {"mean_len": "episode_length"}}
    again = RunData(log_of({"puzzled": [5.0, 6.0], "mean_len": [1.0, 2.0]}, {"names": kept}))
    assert [(each.column, each.how) for each in again.named] == [
        ("puzzled", "told"),
        ("mean_len", "guessed"),
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["reward"], "write MEANING=COLUMN"),
        (["=x"], "write MEANING=COLUMN"),
        (["rewrd=x"], "did you mean 'reward'"),
        (["reward=x", "reward=y"], "two columns"),
        (["reward=x", "entropy=x"], "two meanings"),
        (["grad/all/norm/raw=x"], "unknown meaning"),
    ],
)
def test_what_is_told_wrongly_says_what_to_write(given: list[str], words: str) -> None:
    with pytest.raises(GradiometerError, match=re.escape(words)):
        parse_told(given)


def test_a_column_that_is_told_of_and_not_there_is_an_error_with_the_nearest() -> None:
    with pytest.raises(GradiometerError, match="did you mean 'puzzled'"):
        RunData(log_of({"puzzled": [1.0]}), told={"puzled": "reward"})


def test_every_alias_is_read_as_its_metric_in_a_log_of_its_own() -> None:
    for metric in CATALOGUE.values():
        for alias in metric.aliases:
            name = re.sub(r"<[a-z_]+>", "puzzle", alias.name)
            found = resolve(name)
            assert found is not None, name
            if not alias.when:
                assert found[0].name == metric.name, (name, found[0].name)


def test_whose_names_they_are() -> None:
    assert library_of(["AverageEpRet", "StdEpRet", "LossV", "Time"]) == "Spinning Up"
    assert library_of(["rollout/ep_rew_mean", "train/value_loss", "time/fps"]) == "SB3"
    assert library_of(["a", "b"]) == ""


def test_times_counters_and_hardware_are_bookkeeping_and_what_a_policy_does_is_not() -> None:
    assert all(map(is_bookkeeping, ["time/fps", "step_time", "num_tokens", "perf/mfu/actor"]))
    assert not any(map(is_bookkeeping, ["reward", "actor/entropy", "losses/td_loss", "kl"]))


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("rm_score", "reward"),
        ("performance_avg_return", "reward"),
        ("held_out_score", "val/reward"),
        ("kl_to_ref", "kl_ref"),
        ("avg_response_tokens", "episode_length"),
        ("frac_zero_variance_groups", "zero_variance_groups"),
        ("importance_weight_mean", "importance_weight"),
        ("effective_sample_size", "ess"),
        ("clipped_ratio", "truncated_fraction"),
        ("output_length", "episode_length"),
        ("gen_len", "episode_length"),
        ("dev_chrf", "val/reward"),
        ("eval_bleu", "val/reward"),
    ],
)
def test_what_scripts_call_it_is_read(name: str, meaning: str) -> None:
    found = read_names([name, "reward", "response_length"])[name]
    assert found.metric.name == meaning


def test_a_folder_for_all_numbers_of_a_row_does_not_change_what_they_are() -> None:
    names = ["kl", "critic/rewards/mean", "completions/clipped_ratio", "reward_std"]
    plain = {name: found.metric.name for name, found in read_names(names).items()}
    inside = {
        name.removeprefix("metrics/"): found.metric.name
        for name, found in read_names([f"metrics/{name}" for name in names]).items()
    }
    assert inside == plain


def test_beside_an_approximate_kl_that_of_the_policy_is_to_the_reference() -> None:
    found = read_names(["train/approx_kl", "policy/kl", "gen_len"])
    assert found["policy/kl"].metric.name == "kl_ref"


def test_beside_a_proxy_the_gold_reward_is_what_is_not_trained_for() -> None:
    found = read_names(["proxy_reward", "gold_reward", "kl"])
    assert {name: found[name].metric.name for name in ("proxy_reward", "gold_reward")} == {
        "proxy_reward": "reward",
        "gold_reward": "val/reward",
    }
    assert read_names(["true_reward", "entropy"])["true_reward"].metric.name == "reward"
    beside = read_names(["episode_return", "gold_reward"])
    assert beside["gold_reward"].metric.name == "val/reward"


def test_one_reward_of_several_agents_is_the_outcome_where_there_is_no_other() -> None:
    found = read_names(["reward_cell1", "reward_cell2", "reward_cell3"])
    assert [each.metric.name for each in found.values()].count("reward") == 1
    assert found["reward_cell1"].metric.name == "reward"


def test_beside_a_reward_the_score_of_the_game_is_the_outcome() -> None:
    def meant(*names: str) -> dict[str, str]:
        return {name: found.metric.name for name, found in read_names(names).items()}

    both = meant("Episode", "Score", "Total_Reward", "Epsilon")
    assert (both["Score"], both["Total_Reward"]) == ("val/reward", "reward")
    assert meant("episode", "score", "epsilon")["score"] == "reward"
    assert meant("Avg_Reward_100", "Avg_Final_Score_100")["Avg_Final_Score_100"] == "val/reward"
    assert (
        meant("step", "critic/score/mean", "critic/rewards/mean")["critic/score/mean"] == "reward"
    )


def test_the_score_of_a_game_is_not_called_held_out(tmp_path: Path) -> None:
    rows = [f"{k},{3 * k + k % 4},{-50 - k % 7},{0.99**k:.3f}" for k in range(80)]
    (tmp_path / "log.csv").write_text("\n".join(["episode,score,reward,epsilon", *rows, ""]))
    found = outcome_of(RunData(load(tmp_path / "log.csv")))
    assert found is not None
    assert (found.series.name, found.noun, found.course) == ("score", "score", "gained")


def test_beside_the_kl_of_an_update_a_plain_one_is_that_to_the_reference() -> None:
    found = read_names(["update", "mean_reward", "approx_kl", "kl_div"])
    assert (found["approx_kl"].metric.name, found["kl_div"].metric.name) == ("approx_kl", "kl_ref")
    assert read_names(["update", "mean_reward", "kl_div"])["kl_div"].metric.name == "approx_kl"


@pytest.mark.parametrize("name", ["frac_zero_std", "zero_adv_frac", "frac_zero_advantage"])
def test_the_share_of_groups_that_teach_nothing_has_many_names(name: str) -> None:
    assert read_names(["step", "reward", name])[name].metric.name == "zero_variance_groups"


def test_an_average_beside_a_best_is_the_score_where_nothing_else_is() -> None:
    assert said("Avg", ["Avg", "Best", "epsilon", "Buffer"]) == "reward"
    assert said("Avg", ["Avg", "BestAvg", "Noise"]) == "reward"
    assert said("Avg", ["Avg", "loss"]) == ""
    assert said("Avg", ["Avg", "Best", "reward"]) == ""
    assert said("avg", ["avg", "mean", "best"]) == ""
