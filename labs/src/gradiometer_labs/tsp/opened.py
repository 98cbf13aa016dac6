"""A checkpoint of this lab, opened for `gradiometer variance`."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradiometer.errors import UsageError
from gradiometer.maths import estimators
from gradiometer.probes.replicates import OpenedPolicy, Subject
from gradiometer_labs.tsp.checkpoint import load_policy, make_policy
from gradiometer_labs.tsp.problem import find

__all__ = ["open_checkpoint"]


def open_checkpoint(
    path: str,
    *,
    problem: str,
    num_loc: int,
    algorithm: str | None,
    device: str,
    num_starts: int | None,
) -> OpenedPolicy:
    """The policy of a last.ckpt; one error if it was trained with another `algorithm` than this."""
    find(problem)
    _, config = load_policy(path, problem=problem, device=device)
    if algorithm is not None and estimators.find(config.algorithm) != estimators.find(algorithm):
        raise UsageError(
            f"{path} was trained with algorithm {config.algorithm}, not {algorithm}: ask for"
            f" {config.algorithm}, or add --any-algorithm to measure another estimator on its"
            " policy"
        )
    return OpenedPolicy(
        load=partial(_subject, path, device, num_starts, trained=True),
        load_random=partial(_subject, path, device, num_starts, trained=False),
        instances=partial(_instances, problem, num_loc),
        config={"trained_with": config.algorithm, "trained_on": config.num_loc},
        options=(
            {"k": config.k, "baseline": config.baseline} if config.algorithm == "maxk_pomo" else {}
        ),
        library="gradiometer",
        rollouts=num_loc if num_starts is None else num_starts,
    )


def _subject(path: str, device: str, num_starts: int | None, *, trained: bool) -> Subject:
    policy, config = load_policy(path, device=device)
    if not trained:
        policy = make_policy(dataclasses.replace(config, seed=config.seed + 1))
    return Subject(policy, partial(_rollout, policy, num_starts))


def _rollout(policy: Any, num_starts: int | None, instances: Tensor) -> tuple[Tensor, Tensor]:
    device = next(policy.parameters()).device
    rewards, log_likelihood = policy(instances.to(device), num_starts=num_starts)
    return rewards, log_likelihood


def _instances(problem: str, num_loc: int, number: int, seed: int) -> Tensor:
    return find(problem).generate(number, num_loc, torch.Generator().manual_seed(seed))
