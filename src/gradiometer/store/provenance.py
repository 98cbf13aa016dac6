"""Where a log comes from: what its steps count, whose names it uses, what it is called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradiometer.metrics import library_votes
from gradiometer.store.facts import redact
from gradiometer.store.logs import ENV_STEPS, Gathered, Log
from gradiometer.store.opening import is_inside, read_json_file
from gradiometer.store.step_column import axis_of

__all__ = ["config_beside", "log_of", "name_of", "origin", "place_of"]

AXES = {
    "SB3": ENV_STEPS,
    "CleanRL": ENV_STEPS,
    "TRL": "optimizer steps",
    "transformers": "optimizer steps",
    "verl": "rollout batches",
    "RAGEN": "rollout batches",
    "ROLL": "rollout batches",
    "tinker": "rollout batches",
    "RLlib": ENV_STEPS,
    "ML-Agents": ENV_STEPS,
    "rsl_rl": "updates",
    "Dreamer": ENV_STEPS,
    "tianshou": ENV_STEPS,
    "LLaMA-Factory": "optimizer steps",
    "ms-swift": "optimizer steps",
}
"""What `step` counts, by library (W&B's `_step` counts calls of its own, whoever makes them)."""

MARKS = (
    ("charts/", "CleanRL"),
    ("time/fps", "SB3"),
    ("time/total_timesteps", "SB3"),
    ("rollout/ep_", "SB3"),
    ("timing_s/", "verl"),
    ("timing_per_token_ms/", "verl"),
    ("perf/total_num_tokens", "verl"),
    ("perf/throughput", "verl"),
    ("perf/mfu", "verl"),
    ("val-core/", "verl"),
    ("val-aux/", "verl"),
    ("system/", "ROLL"),
    ("progress/done_frac", "tinker"),
    ("optim/lr", "tinker"),
    ("env/all/", "tinker"),
    ("ray/tune/", "RLlib"),
    ("info/learner/", "RLlib"),
    ("env_runners/", "RLlib"),
    ("learners/", "RLlib"),
    ("iterations_since_restore", "RLlib"),
    ("episodes_this_iter", "RLlib"),
    ("policy_reward_mean", "RLlib"),
    ("Environment/", "ML-Agents"),
    ("Train/mean_reward", "rsl_rl"),
    ("Train/mean_episode_length", "rsl_rl"),
    ("Perf/total_fps", "rsl_rl"),
    ("AverageEpRet", "Spinning Up"),
    ("AverageVVals", "Spinning Up"),
    ("EpLen", "Spinning Up"),
    ("rollout/return_history", "baselines"),
    ("reference_Q", "baselines"),
    ("EpRewMean", "baselines"),
    ("eprewmean", "baselines"),
    ("misc/nupdates", "baselines"),
    ("episode/score", "Dreamer"),
    ("train/return", "Dreamer"),
    ("fps/policy", "Dreamer"),
    ("test/reward", "tianshou"),
    ("test/returns_stat/", "tianshou"),
    ("train/returns_stat/", "tianshou"),
    ("percentage", "LLaMA-Factory"),
    ("train_speed(", "ms-swift"),
    ("completions/", "TRL"),
    ("completion_length", "TRL"),
    ("reward_std", "TRL"),
    ("frac_reward_zero_std", "TRL"),
    ("rewards/margins", "TRL"),
    ("rewards/chosen", "TRL"),
    ("logps/", "TRL"),
    ("train/completions/", "TRL"),
    ("objective/", "TRL"),
    ("hp_metric", "Lightning"),
)
"""Beginnings that only one library uses, beside the aliases of the catalogue."""

SURE = 2
PLAIN = re.compile(r"[a-z0-9]+")

OF_A_FOLDER = ("run.db", "progress.csv", "progress.txt", "trainer_state.json", "result.json")
GENERIC = (
    "progress",
    "trainer_state",
    "trainer_log",
    "logging",
    "metrics",
    "log",
    "history",
    "train",
    "results",
    "result",
    "monitor",
    "evaluations",
)
CHECKPOINT = re.compile(r"checkpoint-\d+|global_step_\d+")
CONFIGS = (
    "args.json",
    "training_args.json",
    "params.json",
    "hparams.json",
    "hyperparameters.json",
    "config.json",
)
LARGEST_CONFIG = 1 << 20


def origin(kind: str, names: Iterable[str], *, step: str = "", library: str = "") -> dict[str, Any]:
    """What is known of a log by its format, its names and its step column; the rest is absent."""
    names = list(names)
    library = _library(names) or library
    axis = axis_of(step) or ("" if step == "_step" else AXES.get(library, ""))
    ppo = any(name.startswith("objective/") for name in names)
    if library == "TRL" and axis == "optimizer steps" and ppo:
        axis = "updates"  # TRL's PPO counts those
    known = {"format": kind, "library": library, "step": step, "x_axis": axis}
    return {key: value for key, value in known.items() if value}


def log_of(
    path: Path,
    rows: Gathered,
    kind: str,
    run_id: str,
    *,
    name: str = "",
    names: Iterable[str] = (),
    step: str = "",
    library: str = "",
    config: Mapping[str, Any] | None = None,
) -> Log:
    """A log with what is known of its origin, and `config` or the settings beside it."""
    log = Log(path, name=name or name_of(path), run_id=run_id, rows=rows, facts={"imported": {}})
    log.facts["imported"] |= origin(kind, names or log.names(), step=step, library=library)
    settings = config_beside(path) if config is None else config
    if settings or config is not None:
        log.facts["config"] = dict(settings)
    return log


def name_of(path: Path) -> str:
    """What people call a log: its file's name, or its folder's where all such files share one."""
    if not _shares_its_name(path):
        return path.stem
    folder = path.resolve().parent
    return (folder.parent if CHECKPOINT.fullmatch(folder.name) else folder).name or path.stem


def place_of(path: Path) -> Path:
    """What to call a log found in a folder: the folder if the file's name says nothing."""
    if path.name not in OF_A_FOLDER and "tfevents" not in path.name and path.suffix != ".wandb":
        return path
    folder = path.parent
    place = folder.parent if CHECKPOINT.fullmatch(folder.name) else folder
    return place if place.name else path


def config_beside(path: Path) -> dict[str, Any]:
    """The settings somebody wrote beside a log as JSON, secrets blotted out; empty when there are
    none.

    Only where the folder is the run's own, so that they are not another's. A model's own
    `config.json` is no setting of a training. YAML and pickles (`training_args.bin`) are not
    opened.
    """
    for name in CONFIGS if _shares_its_name(path) else ():
        file = path.parent / name
        if not file.is_file() or not is_inside(file) or file.stat().st_size > LARGEST_CONFIG:
            continue
        try:
            content = read_json_file(file)
        except (ValueError, RecursionError, OSError):
            continue
        if isinstance(content, dict) and not {"model_type", "architectures"} & set(content):
            held: dict[str, Any] = redact(content)
            return held
    return {}


def _shares_its_name(path: Path) -> bool:
    return path.stem.lower() in GENERIC or "tfevents" in path.name


def _library(names: list[str]) -> str:
    """Whose names they are; a word of small letters is anybody's, and one name alone says nothing
    unless it is a mark."""
    votes = library_votes([name for name in names if not PLAIN.fullmatch(name)])
    for name in names:
        for start, library in MARKS:
            votes[library] += SURE * name.startswith(start)
    best = max(sorted(votes), key=votes.__getitem__, default="")
    return best if votes[best] >= SURE else ""
