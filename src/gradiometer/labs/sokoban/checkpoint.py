"""Checkpoints: a folder global_step_<N> that is whole or not there, from which a training goes on as if never stopped.

    actor/ reference/   weights (safetensors), model config and tokenizer: each can be a model_path
    critic.pt           the critic's weights, for gae
    training.pt         optimizers, and the meter's past
    config.json         the config of the training

Every file is read with weights_only=True or as safetensors: a checkpoint runs no code.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from gradiometer.errors import UsageError
from gradiometer.labs.sokoban.config import Config
from gradiometer.labs.sokoban.learner import Learner
from gradiometer.labs.sokoban.model import quiet

__all__ = ["newest", "resume", "save"]

_FOLDER = re.compile(r"global_step_(\d+)")


def save(learner: Learner, config: Config, meter_state: Mapping[str, Any]) -> Path:
    """Written beside its place and moved there when it is whole."""
    assert config.checkpoint_dir is not None
    folder = config.checkpoint_dir / f"global_step_{learner.step}"
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, model in (("actor", learner.actor), ("reference", learner.reference)):
        with quiet():
            model.save_pretrained(partial / name)
        learner.tokenizer.save_pretrained(partial / name)
    if learner.critic is not None:
        torch.save(learner.critic.state_dict(), partial / "critic.pt")
    optimizers = {"actor": learner.actor_optimizer, "critic": learner.critic_optimizer}
    states = {name: each.state_dict() for name, each in optimizers.items() if each is not None}
    torch.save({"optimizers": states, "meter": dict(meter_state)}, partial / "training.pt")
    (partial / "config.json").write_text(json.dumps(dataclasses.asdict(config), indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier training that went on past the one we resumed from
    partial.rename(folder)
    return folder


def newest(folder: Path | None) -> Path | None:
    """The checkpoint of the highest step in a folder, None if there is none."""
    if folder is None or not folder.is_dir():
        return None
    steps = {int(found[1]): each for each in folder.iterdir() if (found := _FOLDER.fullmatch(each.name))}
    return steps[max(steps)] if steps else None


def resume(learner: Learner, config: Config) -> dict[str, Any] | None:
    """Put the checkpoint that the config names into the learner; returns the meter's past, None when there is nothing."""
    trainer = config.trainer
    if trainer.resume_mode == "disable":
        return None
    if trainer.resume_mode == "auto":
        folder = newest(config.checkpoint_dir)
        if folder is None:
            return None
    else:
        folder = Path(str(trainer.resume_from_path))
    step = _step_of(folder)
    if step >= trainer.total_training_steps:
        raise UsageError(
            f"{folder} is at step {step}, and trainer.total_training_steps={trainer.total_training_steps} leaves nothing "
            f"to do: use {step + 1} or more"
        )
    return load(learner, config, folder)


def load(learner: Learner, config: Config, folder: Path) -> dict[str, Any]:
    """Weights, optimizers and step of a checkpoint; returns the meter's past."""
    _check_same_model(learner, config, folder)
    for name, model in (("actor", learner.actor), ("reference", learner.reference)):
        model.load_state_dict(_weights(folder / name), strict=False)  # tied weights are kept once
    if learner.critic is not None:
        learner.critic.load_state_dict(_read(folder / "critic.pt"))
    training = _read(folder / "training.pt")
    learner.actor_optimizer.load_state_dict(training["optimizers"]["actor"])
    if learner.critic_optimizer is not None:
        learner.critic_optimizer.load_state_dict(training["optimizers"]["critic"])
    _restore_learning_rates(learner, config)
    learner.step = _step_of(folder)
    meter_state: dict[str, Any] = training["meter"]
    return meter_state


def _restore_learning_rates(learner: Learner, config: Config) -> None:
    """An optimizer's state holds its old step size; the config's counts."""
    learner.actor_optimizer.param_groups[0]["lr"] = config.actor_rollout_ref.actor.optim.lr
    if learner.critic_optimizer is not None:
        learner.critic_optimizer.param_groups[0]["lr"] = config.critic.optim.lr


def _check_same_model(learner: Learner, config: Config, folder: Path) -> None:
    """One error that says what differs, before anything is loaded."""
    missing = [name for name in ("config.json", "training.pt", "actor", "reference") if not (folder / name).exists()]
    if missing:
        raise UsageError(f"{folder} is not a whole checkpoint: {', '.join(missing)} is missing")
    if learner.critic is not None and not (folder / "critic.pt").exists():
        raise UsageError(
            f"{folder} has no critic, which algorithm.adv_estimator=gae needs: resume with algorithm.adv_estimator=grpo"
        )
    there = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    here = dataclasses.asdict(config)
    keys = [f"model.{key}" for key in here["model"]] if config.model_path is None else ["model_path"]
    settings = [f"{key}={_at(there, key)}, not {_at(here, key)}" for key in keys if _at(there, key) != _at(here, key)]
    shapes = _differences(_weights(folder / "actor"), learner.actor)
    if shapes:
        raise UsageError(f"{folder} holds another model than this config makes: {'; '.join(settings or shapes[:3])}")


def _differences(there: Mapping[str, Tensor], model: nn.Module) -> list[str]:
    """How stored weights differ in shape from a model's; a weight that is kept once under two names is no difference."""
    here = model.state_dict()
    differences = [
        f"{name} has the shape {list(there[name].shape)}, not {list(weight.shape)}"
        for name, weight in here.items()
        if name in there and there[name].shape != weight.shape
    ]
    held = {here[name].data_ptr() for name in there.keys() & here.keys()}
    differences += [f"{name} is missing" for name in here if name not in there and here[name].data_ptr() not in held]
    return differences + [f"{name} is unknown" for name in there if name not in here]


def _weights(folder: Path) -> dict[str, Tensor]:
    """All shards of a folder written by save_pretrained."""
    return {name: weight for file in sorted(folder.glob("*.safetensors")) for name, weight in load_file(file).items()}


def _read(file: Path) -> Any:
    return torch.load(file, weights_only=True, map_location="cpu")


def _at(tree: Mapping[str, Any], dotted: str) -> Any:
    for key in dotted.split("."):
        tree = tree[key]
    return tree


def _step_of(folder: Path) -> int:
    found = _FOLDER.fullmatch(folder.name)
    if found is None or not folder.is_dir():
        raise UsageError(f"{folder} is not a checkpoint: give a folder global_step_<N>")
    return int(found[1])
