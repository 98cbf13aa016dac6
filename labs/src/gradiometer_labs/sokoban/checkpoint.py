"""Checkpoints: a folder global_step_<N> that is whole or not there, from which a training goes on
as if never stopped.

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
from torch.optim import Optimizer

from gradiometer.errors import UsageError
from gradiometer_labs.sokoban.config import Config
from gradiometer_labs.sokoban.learner import Learner
from gradiometer_labs.sokoban.model import quiet

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
    (partial / "config.json").write_text(
        json.dumps(dataclasses.asdict(config), indent=2) + "\n", encoding="utf-8"
    )
    shutil.rmtree(
        folder, ignore_errors=True
    )  # of an earlier training that went on past the one we resumed from
    partial.rename(folder)
    return folder


def newest(folder: Path | None) -> Path | None:
    """The checkpoint of the highest step in a folder, None if there is none."""
    if folder is None or not folder.is_dir():
        return None
    steps = {
        int(found[1]): each for each in folder.iterdir() if (found := _FOLDER.fullmatch(each.name))
    }
    return steps[max(steps)] if steps else None


def resume(learner: Learner, config: Config) -> dict[str, Any] | None:
    """Put the checkpoint that the config names into the learner; returns the meter's past, None
    when there is nothing."""
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
            f"{folder} is at step {step}, and"
            f" trainer.total_training_steps={trainer.total_training_steps} leaves nothing to do:"
            f" use {step + 1} or more"
        )
    return load(learner, config, folder)


def load(learner: Learner, config: Config, folder: Path) -> dict[str, Any]:
    """Weights, optimizers and step of a checkpoint; returns the meter's past."""
    _check_whole(learner, folder)
    actor = _weights(folder / "actor")
    _check_same_model(learner, config, folder, actor)
    _fill(learner.actor, actor, folder / "actor")
    _fill(learner.reference, _weights(folder / "reference"), folder / "reference")
    if learner.critic is not None:
        _fill(learner.critic, _read(folder / "critic.pt"), folder / "critic.pt")
    training = _read(folder / "training.pt")
    for name, optimizer in (
        ("actor", learner.actor_optimizer),
        ("critic", learner.critic_optimizer),
    ):
        if optimizer is not None:
            _fill_optimizer(optimizer, training, name, folder / "training.pt")
    _restore_learning_rates(learner, config)
    learner.step = _step_of(folder)
    meter_state = training.get("meter")
    if not isinstance(meter_state, dict):
        raise _damaged(folder / "training.pt", "it has no past of the meter")
    return meter_state


def _fill(model: nn.Module, there: Mapping[str, Any], file: Path) -> None:
    """The weights, or one error that says what does not fit; tied weights are kept once."""
    strangers = [
        f"{name} is no tensor" for name, weight in there.items() if not isinstance(weight, Tensor)
    ]
    differences = strangers or _differences(there, model)
    if differences:
        raise _damaged(file, "; ".join(differences[:3]))
    model.load_state_dict(there, strict=False)


def _fill_optimizer(
    optimizer: Optimizer, training: Mapping[str, Any], name: str, file: Path
) -> None:
    """Its past, which must be of the parameters it has now."""
    try:
        optimizer.load_state_dict(training["optimizers"][name])
        shapes = {
            (past.shape, parameter.shape)
            for parameter, state in optimizer.state.items()
            for past in state.values()
            if isinstance(past, Tensor) and past.dim()
        }
    except (LookupError, TypeError, ValueError, AttributeError) as problem:
        raise _damaged(file, f"no past of the {name}'s optimizer") from problem
    for past, parameter in shapes:
        if past != parameter:
            raise _damaged(
                file,
                f"the {name}'s optimizer has a past of shape {list(past)}, not {list(parameter)}",
            )


def _damaged(file: Path, reason: object) -> UsageError:
    first_line = str(reason).partition("\n")[0]
    return UsageError(
        f"{file} is damaged or of another training ({first_line}): use an earlier checkpoint"
    )


def _restore_learning_rates(learner: Learner, config: Config) -> None:
    """An optimizer's state holds its old step size; the config's counts."""
    learner.actor_optimizer.param_groups[0]["lr"] = config.actor_rollout_ref.actor.optim.lr
    if learner.critic_optimizer is not None:
        learner.critic_optimizer.param_groups[0]["lr"] = config.critic.optim.lr


def _check_whole(learner: Learner, folder: Path) -> None:
    """Every file that is needed is there."""
    missing = [
        name
        for name in ("config.json", "training.pt", "actor", "reference")
        if not (folder / name).exists()
    ]
    if missing:
        raise UsageError(f"{folder} is not a whole checkpoint: {', '.join(missing)} is missing")
    if learner.critic is not None and not (folder / "critic.pt").exists():
        raise UsageError(
            f"{folder} has no critic, which algorithm.adv_estimator=gae needs: resume with"
            " algorithm.adv_estimator=grpo"
        )


def _check_same_model(
    learner: Learner, config: Config, folder: Path, actor: Mapping[str, Tensor]
) -> None:
    """One error that says what differs, before anything is loaded."""
    there = _config(folder / "config.json")
    here = dataclasses.asdict(config)
    keys = (
        [f"model.{key}" for key in here["model"]] if config.model_path is None else ["model_path"]
    )
    settings = [
        f"{key}={_at(there, key)}, not {_at(here, key)}"
        for key in keys
        if _at(there, key) != _at(here, key)
    ]
    shapes = _differences(actor, learner.actor)
    if shapes:
        raise UsageError(
            f"{folder} holds another model than this config makes:"
            f" {'; '.join(settings or shapes[:3])}"
        )


def _differences(there: Mapping[str, Tensor], model: nn.Module) -> list[str]:
    """How stored weights differ in shape from a model's; a weight that is kept once under two names
    is no difference."""
    here = model.state_dict()
    differences = [
        f"{name} has the shape {list(there[name].shape)}, not {list(weight.shape)}"
        for name, weight in here.items()
        if name in there and there[name].shape != weight.shape
    ]
    held = {here[name].data_ptr() for name in there.keys() & here.keys()}
    differences += [
        f"{name} is missing"
        for name in here
        if name not in there and here[name].data_ptr() not in held
    ]
    return differences + [f"{name} is unknown" for name in there if name not in here]


def _weights(folder: Path) -> dict[str, Tensor]:
    """All shards of a folder written by save_pretrained."""
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            weights |= load_file(file)
        except Exception as problem:  # SafetensorError and more: what a reader says of any bytes
            raise _damaged(file, problem) from problem
    return weights


def _read(file: Path) -> dict[str, Any]:
    try:
        content = torch.load(file, weights_only=True, map_location="cpu")
    except Exception as problem:  # of any bytes, torch raises nearly anything
        raise _damaged(file, problem) from problem
    if not isinstance(content, dict):
        raise _damaged(file, f"it holds a {type(content).__name__}")
    return content


def _config(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise _damaged(file, problem) from problem
    if not isinstance(content, dict):
        raise _damaged(file, f"it holds a {type(content).__name__}")
    return content


def _at(tree: Any, dotted: str) -> Any:
    """None where there is nothing."""
    for key in dotted.split("."):
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def _step_of(folder: Path) -> int:
    found = _FOLDER.fullmatch(folder.name)
    if found is None or not folder.is_dir():
        raise UsageError(f"{folder} is not a checkpoint: give a folder global_step_<N>")
    return int(found[1])
