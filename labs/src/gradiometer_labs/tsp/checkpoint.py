"""last.ckpt: one file that is whole or not there, from which a training goes on as if never
stopped.

    format, problem, algorithm, step   what it is
    config                             of the training, as a plain dict
    state_dict, optimizer              of the policy and of Adam
    recent                             mean rewards of the last updates
    meter                              the meter's past

It is read with weights_only=True: a checkpoint runs no code.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradiometer.errors import UsageError
from gradiometer_labs.config import torch_device
from gradiometer_labs.tsp import problem
from gradiometer_labs.tsp.config import Config
from gradiometer_labs.tsp.model import TourPolicy

__all__ = ["FILE_NAME", "load_policy", "make_policy", "resume", "save", "state_of"]

FILE_NAME = "last.ckpt"
FORMAT = 1
_KEYS = {
    "format",
    "problem",
    "algorithm",
    "step",
    "config",
    "state_dict",
    "optimizer",
    "recent",
    "meter",
}
_SHAPE = ("embed_dim", "num_layers", "num_heads")


def make_policy(config: Config) -> TourPolicy:
    """The policy the config describes, its weights drawn from the seed; torch's global state stays
    as it was."""
    found = problem.find(config.problem)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        shape = {name: getattr(config, name) for name in _SHAPE}
        return TourPolicy(found, **shape).to(torch_device(config.device))


def state_of(
    policy: TourPolicy,
    optimizer: Optimizer,
    *,
    step: int,
    recent: Iterable[float],
    meter: Mapping[str, Any],
) -> dict[str, Any]:
    """What a training is made of after `step` updates."""
    return {
        "step": step,
        "state_dict": policy.state_dict(),
        "optimizer": optimizer.state_dict(),
        "recent": list(recent),
        "meter": dict(meter),
    }


def save(folder: Path, config: Config, state: Mapping[str, Any]) -> Path:
    """Written beside its place and moved there when it is whole."""
    folder.mkdir(parents=True, exist_ok=True)  # a meter that is switched off has not made it
    file = folder / FILE_NAME
    partial = file.with_name(f".{FILE_NAME}.partial")
    told = {
        "problem": config.problem,
        "algorithm": config.algorithm,
        "config": dataclasses.asdict(config),
    }
    content = {"format": FORMAT, **told, **state}
    assert content.keys() == _KEYS
    torch.save(content, partial)
    os.replace(partial, file)
    return file


def load_policy(
    path: str | Path,
    *,
    algorithm: str | None = None,
    problem: str | None = None,
    device: str = "cpu",
) -> tuple[TourPolicy, Config]:
    """The policy of a last.ckpt and the config it was trained with; one error if it is of another
    algorithm or problem."""
    content = _read(Path(path))
    for name, wanted in (("algorithm", algorithm), ("problem", problem)):
        if wanted is not None and content[name] != wanted:
            raise UsageError(
                f"{path} was trained with {name} {content[name]}, not {wanted}: ask for"
                f" {content[name]}"
            )
    config = _config_in(Path(path), content, device)
    policy = make_policy(config)
    _fill(policy, content["state_dict"], Path(path))
    return policy, config


def resume(config: Config, policy: TourPolicy, optimizer: Optimizer) -> dict[str, Any] | None:
    """Put the checkpoint that the config names into the policy and the optimizer; returns all of
    it, None without one."""
    if config.resume is None:
        return None
    path = Path(config.resume)
    content = _read(path)
    there = content["config"]
    differences = [
        f"{name}={there.get(name)}, not {getattr(config, name)}"
        for name in ("problem", "algorithm", *_SHAPE)
        if there.get(name) != getattr(config, name)
    ]
    if differences:
        raise UsageError(f"{path} is of another training: it has {'; '.join(differences)}")
    if content["step"] >= config.steps:
        raise UsageError(
            f"{path} is at step {content['step']}, and steps={config.steps} leaves nothing to do: "
            f"use {content['step'] + 1} or more"
        )
    _fill(policy, content["state_dict"], path)
    try:
        optimizer.load_state_dict(dict(content["optimizer"]))
    except (LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is damaged or of another training: its optimizer does not fit the policy"
        ) from error
    return content


def _read(path: Path) -> dict[str, Any]:
    """What is in the file, if it is a checkpoint of this lab."""
    path = path / FILE_NAME if path.is_dir() else path
    if not path.is_file():
        raise UsageError(
            f"there is no checkpoint {path}: give the {FILE_NAME} of a run of the tsp lab"
        )
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # of any bytes, torch raises nearly anything
        raise UsageError(
            f"{path} cannot be read as a checkpoint of the tsp lab: it is damaged, or another file"
        ) from error
    if not (isinstance(content, dict) and content.keys() >= _KEYS):
        raise UsageError(
            f"{path} is not a checkpoint of the tsp lab: give the {FILE_NAME} of one of its runs"
        )
    for name in ("config", "state_dict", "optimizer"):
        if not isinstance(content[name], Mapping):
            raise UsageError(
                f"{path} is damaged: its {name} is a {type(content[name]).__name__}, not a mapping"
            )
    if content["format"] != FORMAT:
        raise UsageError(
            f"{path} has format {content['format']}, and this version reads {FORMAT}: update"
            " Gradiometer"
        )
    return content


def _config_in(path: Path, content: Mapping[str, Any], device: str) -> Config:
    try:
        return Config(**{**content["config"], "device": device})
    except TypeError as error:  # a key that this version does not have
        raise UsageError(
            f"{path} has a config that this version does not know ({error})"
        ) from error


def _fill(policy: TourPolicy, there: Mapping[str, Any], path: Path) -> None:
    """The weights, or one error that says what does not fit."""
    strangers = [name for name, weight in there.items() if not isinstance(weight, Tensor)]
    if strangers:
        raise UsageError(
            f"{path} is damaged: {', '.join(map(str, strangers[:3]))} in its state_dict is no"
            " tensor"
        )
    here = policy.state_dict()
    differences = [
        f"{name} has the shape {list(there[name].shape)}, not {list(weight.shape)}"
        for name, weight in here.items()
        if name in there and there[name].shape != weight.shape
    ]
    differences += [f"{name} is missing" for name in here if name not in there]
    differences += [f"{name} is unknown" for name in there if name not in here]
    if differences:
        raise UsageError(
            f"{path} holds weights of another shape than its config: {'; '.join(differences[:3])}"
        )
    policy.load_state_dict(there)
