"""Whose log it is: what trainers call the settings that a fix names, and the field of a run.

A language model's episode ends with a token and is cut by a budget; a robot's ends with a fall or a
time limit that good policies reach. What excuses the one does not excuse the other, so rules ask
for the field before they excuse anything.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from gradiometer import metrics
from gradiometer.doctor.rundata import RunData, Series, once
from gradiometer.names import of_language

__all__ = ["SETTINGS", "Field", "field_of", "key_for", "key_of"]

Field: TypeAlias = Literal["language", "preference", "control", "unknown"]

SETTINGS: dict[str, dict[str, str]] = {
    "action-noise": {
        "SB3": "ent_coef and log_std_init",
        "CleanRL": "--ent-coef and the bound of actor_logstd",
        "RLlib": "entropy_coeff and free_log_std",
        "rsl_rl": "algorithm.entropy_coef and policy.init_noise_std",
    },
    "advantages": {
        "SB3": "normalize_advantage=True",
        "CleanRL": "--norm-adv",
        "TRL": "scale_rewards (or whiten_rewards)",
        "verl": "algorithm.norm_adv_by_std_in_grpo",
        "OpenRLHF": "--advantage_estimator (group_norm)",
        "RLlib": "standardize_fields=['advantages']",
        "rsl_rl": "algorithm.normalize_advantage_per_mini_batch",
    },
    "batch": {
        "TRL": "gradient_accumulation_steps or num_generations",
        "verl": "data.train_batch_size or actor_rollout_ref.rollout.n",
        "SB3": "n_steps, n_envs and batch_size",
        "CleanRL": "--num-envs and --num-steps",
        "RLlib": "train_batch_size",
        "rsl_rl": "num_steps_per_env and num_envs",
        "OpenRLHF": "--rollout_batch_size and --n_samples_per_prompt",
    },
    "clip-high": {
        "verl": "actor_rollout_ref.actor.clip_ratio_high",
        "TRL": "epsilon_high",
        "OpenRLHF": "--eps_clip_low_high",
    },
    "critic": {
        "SB3": "vf_coef, n_epochs and learning_rate",
        "CleanRL": "--vf-coef, --update-epochs and --learning-rate",
        "verl": "critic.optim.lr and critic.ppo_epochs",
        "RLlib": "vf_loss_coeff and vf_clip_param",
        "rsl_rl": "algorithm.value_loss_coef and num_learning_epochs",
        "OpenRLHF": "--critic_learning_rate",
        "TRL": "vf_coef and cliprange_value",
    },
    "entropy": {
        "SB3": "ent_coef",
        "CleanRL": "--ent-coef",
        "verl": "actor_rollout_ref.actor.entropy_coeff",
        "TRL": "the entropy coefficient of the loss",
        "RLlib": "entropy_coeff",
        "rsl_rl": "algorithm.entropy_coef",
        "OpenRLHF": "--entropy_loss_coef",
    },
    "epochs": {
        "SB3": "n_epochs",
        "CleanRL": "--update-epochs",
        "TRL": "num_iterations and steps_per_generation",
        "verl": "actor_rollout_ref.actor.ppo_epochs and the staleness of the async trainer",
        "RLlib": "num_epochs (num_sgd_iter)",
        "rsl_rl": "algorithm.num_learning_epochs",
        "OpenRLHF": "--max_epochs",
    },
    "epsilon": {
        "SB3": "exploration_initial_eps, exploration_final_eps and exploration_fraction",
        "CleanRL": "--start-e, --end-e and --exploration-fraction",
        "RLlib": "epsilon",
    },
    "groups": {
        "TRL": "the dataset's difficulty, num_generations and temperature",
        "verl": "data.train_files, actor_rollout_ref.rollout.n and .temperature",
        "RAGEN": "env_configs, es_manager.train.group_size and rollout_filter_value",
        "OpenRLHF": "--dynamic_filtering, --n_samples_per_prompt and --temperature",
    },
    "kl-penalty": {
        "TRL": "beta (kl_coef)",
        "verl": "actor_rollout_ref.actor.kl_loss_coef or algorithm.kl_ctrl.kl_coef",
        "RAGEN": "actor_rollout_ref.actor.kl_loss_coef",
        "OpenRLHF": "--init_kl_coef (--kl_target)",
    },
    "learning-rate": {
        "SB3": "learning_rate",
        "CleanRL": "--learning-rate",
        "TRL": "learning_rate and warmup_steps (warmup_ratio)",
        "verl": "actor_rollout_ref.actor.optim.lr and .lr_warmup_steps",
        "RLlib": "lr",
        "rsl_rl": "algorithm.learning_rate and schedule",
        "OpenRLHF": "--actor_learning_rate and --lr_warmup_ratio",
    },
    "length": {
        "TRL": "max_completion_length, and mask_truncated_completions=True",
        "verl": "data.max_response_length, and reward_model.overlong_buffer.enable=True (DAPO)",
        "OpenRLHF": "--generate_max_len, and --overlong_buffer_len",
    },
    "preference": {
        "TRL": "beta and rpo_alpha (an NLL term on the chosen answers)",
        "OpenRLHF": "--beta and --nll_loss_coef",
        "verl": "the beta of the preference loss",
    },
    "reset": {
        "SB3": "the environment's terminated, and reset()",
        "CleanRL": "the environment's terminated, and its auto-reset",
        "RLlib": "the environment's terminated, and horizon",
        "rsl_rl": "terminations (illegal contacts, limits) and the reset state",
    },
    "reward-functions": {
        "TRL": "reward_funcs and reward_weights",
        "verl": "custom_reward_function (the sum in compute_score)",
        "OpenRLHF": "--remote_rm_url (the reward function)",
        "rsl_rl": "the reward scales of the task",
    },
    "reward-scale": {
        "SB3": "VecNormalize(norm_reward=True)",
        "CleanRL": "gym.wrappers.NormalizeReward",
        "TRL": "scale_rewards",
        "verl": "the reward function's scale",
        "RLlib": "clip_rewards, or a reward-scaling connector",
        "rsl_rl": "the reward scales of the task",
        "OpenRLHF": "--normalize_reward",
    },
    "step": {
        "SB3": "learning_rate, n_epochs, clip_range and target_kl",
        "CleanRL": "--learning-rate, --update-epochs and --target-kl",
        "TRL": "learning_rate and num_iterations (num_ppo_epochs)",
        "verl": "actor_rollout_ref.actor.optim.lr and .ppo_epochs",
        "RLlib": "lr, num_epochs and kl_target",
        "rsl_rl": "algorithm.learning_rate, num_learning_epochs and desired_kl",
        "OpenRLHF": "--actor_learning_rate and --max_epochs",
    },
    "stop-token": {
        "TRL": "stop_token (stop_token_id), and missing_eos_penalty",
        "verl": "the eos_token_id of the generation config and the chat template",
        "OpenRLHF": "the tokenizer's eos_token and --apply_chat_template",
    },
    "target": {
        "SB3": "target_update_interval and tau",
        "CleanRL": "--target-network-frequency and --tau",
        "RLlib": "target_network_update_freq and tau",
    },
}
"""What trainers call the settings that a fix names: by what they set, and by trainer."""


def key_of(series: Series, setting: str, ours: str) -> str:
    """What the trainer the series came from calls a setting, or our own words for it."""
    return _named(series.library, setting, ours)


def key_for(run: RunData, setting: str, ours: str, *series: Series) -> str:
    """The same by all that is known of the run's trainer: these series, or most of its names."""
    libraries = [each.library for each in series] + [metrics.library_of(run.source.names())]
    return _named(" ".join(libraries), setting, ours)


def _named(library: str, setting: str, ours: str) -> str:
    return next((key for known, key in SETTINGS[setting].items() if known in library), ours)


@once
def field_of(run: RunData) -> Field:
    """What kind of training this is, by the names in its log."""
    if run.has("preference/margin") or run.has("preference/chosen_log_prob"):
        return "preference"
    language = of_language(run.source.names())
    if language is None:
        return "unknown"
    return "language" if language else "control"
