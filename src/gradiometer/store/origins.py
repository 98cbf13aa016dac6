"""Where a log comes from: which column counts its steps and what it counts, whose names it uses, what it is called."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradiometer.metrics import resolve
from gradiometer.store.facts import redact
from gradiometer.store.logs import ENV_STEPS

__all__ = ["STEP_KEYS", "config_beside", "expected_steps", "name_of", "origin", "place_of", "step_key"]

STEP_KEYS: dict[str, str] = {
    "_step": "",
    "step": "",
    "global_step": "",
    "training/global_step": "rollout batches",
    "train/global_step": "optimizer steps",
    "trainer/global_step": "optimizer steps",
    "time/total_timesteps": ENV_STEPS,
    "total_timesteps": ENV_STEPS,
    "timesteps_total": ENV_STEPS,
    "num_env_steps_sampled_lifetime": ENV_STEPS,
    "env_steps": ENV_STEPS,
    "totalenvinteracts": ENV_STEPS,
    "time/iterations": "updates",
    "training_iteration": "updates",
    "iteration": "updates",
    "update": "updates",
    "episode": "episodes",
    "epoch": "epochs",
}
"""What may count the steps, in order of preference, with what it counts where the name says so."""

AXES = {
    "SB3": ENV_STEPS,
    "CleanRL": ENV_STEPS,
    "TRL": "optimizer steps",
    "transformers": "optimizer steps",
    "verl": "rollout batches",
    "RAGEN": "rollout batches",
}
"""What `step` counts, by library (W&B's `_step` counts calls of its own, whoever makes them)."""

MARKS = (
    ("charts/", "CleanRL"),
    ("time/", "SB3"),
    ("timing_s/", "verl"),
    ("perf/", "verl"),
    ("val-core/", "verl"),
    ("completions/", "TRL"),
    ("train/completions/", "TRL"),
    ("objective/", "TRL"),
    ("hp_metric", "Lightning"),
)
"""Beginnings that only one library uses, beside the aliases of the catalogue."""

OF_A_FOLDER = ("run.db", "progress.csv", "trainer_state.json")
GENERIC = ("progress", "trainer_state", "metrics", "log", "history", "train", "results")
CHECKPOINT = re.compile(r"checkpoint-\d+|global_step_\d+")
CONFIGS = ("args.json", "training_args.json", "hparams.json", "hyperparameters.json", "config.json")
LARGEST_CONFIG = 1 << 20


def step_key(filled: Mapping[str, int], rows: int) -> str | None:
    """The name that counts the steps, given in how many of the first rows each name has a value.

    The first of `STEP_KEYS`, whatever its case, that at least half of the rows have; else the one most rows have.
    """
    known = [(key, name) for key in STEP_KEYS for name in filled if name.lower() == key and filled[name]]
    for _, name in known:
        if 2 * filled[name] >= rows:
            return name
    return max((name for _, name in known), key=filled.__getitem__, default=None)


def expected_steps() -> str:
    """The step names for an error message."""
    return ", ".join(STEP_KEYS)


def origin(kind: str, names: Iterable[str], *, step: str = "", library: str = "") -> dict[str, Any]:
    """What is known of a log by its format, its names and its step column; what is not known is absent."""
    names = list(names)
    library = _library(names) or library
    axis = STEP_KEYS.get(step.lower(), "") or ("" if step == "_step" else AXES.get(library, ""))
    if library == "TRL" and axis == "optimizer steps" and any(name.startswith("objective/") for name in names):
        axis = "updates"  # TRL's PPO counts those
    known = {"format": kind, "library": library, "step": step, "x_axis": axis}
    return {key: value for key, value in known.items() if value}


def name_of(path: Path) -> str:
    """What people call a log: its file's name, or its folder's where every such file has the same name."""
    if not _shares_its_name(path):
        return path.stem
    folder = path.resolve().parent
    return (folder.parent if CHECKPOINT.fullmatch(folder.name) else folder).name or path.stem


def place_of(path: Path) -> Path:
    """What to call a log when it is found in a folder: the folder, where the file says nothing; a checkpoint's is its run's."""
    if path.name not in OF_A_FOLDER and "tfevents" not in path.name and path.suffix != ".wandb":
        return path
    folder = path.parent
    place = folder.parent if CHECKPOINT.fullmatch(folder.name) else folder
    return place if place.name else path


def config_beside(path: Path) -> dict[str, Any]:
    """The settings somebody wrote beside a log as JSON, secrets blotted out; empty when there are none.

    Only where the folder is the run's own, so that they are not another's. A model's own `config.json` is no setting of a
    training. YAML and pickles (`training_args.bin`) are not opened.
    """
    for name in CONFIGS if _shares_its_name(path) else ():
        file = path.parent / name
        if not file.is_file() or file.stat().st_size > LARGEST_CONFIG:
            continue
        try:
            content = json.loads(file.read_bytes())
        except (ValueError, RecursionError, OSError):
            continue
        if isinstance(content, dict) and not {"model_type", "architectures"} & set(content):
            held: dict[str, Any] = redact(content)
            return held
    return {}


def _shares_its_name(path: Path) -> bool:
    return path.stem.lower() in GENERIC or "tfevents" in path.name


def _library(names: list[str]) -> str:
    votes: Counter[str] = Counter()
    for name in names:
        found = resolve(name)
        whose = "" if found is None or found[1] is None else found[1].library
        if whose and whose != "scripts" and "," not in whose.partition(" (")[0]:
            votes[whose.partition(" ")[0]] += 1
        votes.update(library for start, library in MARKS if name.startswith(start))
    return max(sorted(votes), key=votes.__getitem__, default="")
