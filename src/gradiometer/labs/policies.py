"""Trained policies by their checkpoint: of the tsp lab, or of rl4co; what `gradiometer variance` measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradiometer.errors import MissingExtra, UsageError
from gradiometer.maths import estimators
from gradiometer.probes.subject import Subject

__all__ = ["Opened", "open_checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A checkpoint's policy, as loaders that a worker can be sent."""

    load: Callable[[], Subject]
    load_random: Callable[[], Subject]
    """The same architecture, untrained."""
    instances: Callable[[int, int], Any]
    """Number and seed in, instances out."""
    config: dict[str, Any]
    iid: bool
    library: str
    rollouts: int
    """Of each instance."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the estimator it was trained with."""


def open_checkpoint(
    path: str,
    *,
    problem: str,
    num_loc: int,
    algorithm: str | None,
    device: str,
    num_starts: int | None,
    library: str = "auto",
) -> Opened:
    """A last.ckpt of our lab, or a checkpoint that rl4co wrote. `algorithm=None` takes any."""
    if library not in ("auto", "gradiometer", "rl4co"):
        raise UsageError(f"--library is auto, gradiometer or rl4co; found {library!r}")
    if not Path(path).exists():
        raise UsageError(f"there is no checkpoint {path}: train one with `gradiometer train tsp run=runs/tsp`")
    if library == "rl4co" or (library == "auto" and _is_of_rl4co(Path(path))):
        return _of_rl4co(path, problem, num_loc, device, num_starts)
    return _of_lab(path, problem, num_loc, algorithm, device, num_starts)


def _of_lab(
    path: str, problem: str, num_loc: int, algorithm: str | None, device: str, num_starts: int | None
) -> Opened:
    from gradiometer.labs.tsp.checkpoint import load_policy
    from gradiometer.labs.tsp.problem import find

    find(problem)
    _, config = load_policy(path, problem=problem, device=device)
    if algorithm is not None and estimators.find(config.algorithm) != estimators.find(algorithm):
        raise UsageError(
            f"{path} was trained with algorithm {config.algorithm}, not {algorithm}: ask for {config.algorithm}, or add "
            "--any-algorithm to measure another estimator on its policy"
        )
    return Opened(
        load=partial(_lab_subject, path, device, num_starts, trained=True),
        load_random=partial(_lab_subject, path, device, num_starts, trained=False),
        instances=partial(_lab_instances, problem, num_loc),
        config={"trained_with": config.algorithm, "trained_on": config.num_loc},
        options={"k": config.k, "baseline": config.baseline} if config.algorithm == "maxk_pomo" else {},
        iid=False,
        library="gradiometer",
        rollouts=num_loc if num_starts is None else num_starts,
    )


def _lab_subject(path: str, device: str, num_starts: int | None, *, trained: bool) -> Subject:
    from gradiometer.labs.tsp.checkpoint import load_policy, make_policy

    policy, config = load_policy(path, device=device)
    if not trained:
        policy = make_policy(dataclasses.replace(config, seed=config.seed + 1))
    return Subject(policy, partial(_rollout, policy, num_starts))


def _rollout(policy: Any, num_starts: int | None, instances: Tensor) -> tuple[Tensor, Tensor]:
    device = next(policy.parameters()).device
    rewards, log_likelihood = policy(instances.to(device), num_starts=num_starts)
    return rewards, log_likelihood


def _lab_instances(problem: str, num_loc: int, number: int, seed: int) -> Tensor:
    from gradiometer.labs.tsp.problem import find

    return find(problem).generate(number, num_loc, torch.Generator().manual_seed(seed))


def _of_rl4co(path: str, problem: str, num_loc: int, device: str, num_starts: int | None) -> Opened:
    from gradiometer.integrations import rl4co

    found = rl4co.open_checkpoint(path, problem=problem, num_loc=num_loc, device=device, num_starts=num_starts)
    return Opened(
        load=found.load,
        load_random=found.load_random,
        instances=found.instances,
        config=found.config,
        iid=found.iid,
        library="rl4co",
        rollouts=found.config["num_starts"] or num_loc,
    )


def _is_of_rl4co(path: Path) -> bool:
    """Whether the file names something of rl4co; nothing of it is run to find out."""
    if path.is_dir():
        return False
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (OSError, ValueError, RuntimeError):
        return False
    named = any(name.startswith("rl4co.") for name in names)
    if named and find_spec("rl4co") is None:
        raise MissingExtra("rl4co", "rl4co", f"{path}, a checkpoint of rl4co,")
    return named
