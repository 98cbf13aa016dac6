"""Replicates of a gradient, on policies of the tsp lab with fresh weights: workers, the share of
statistics, memory, weights.

Workers are forked from a server that imports torch, which takes seconds in the first round and
nothing after it, as in a process that makes several studies; their speed is that between the first
results and the last, and the whole study with their start, which the target is for, stands beside
it. Statistics are timed by wrapping what makes them, beside the gradients of 128 instances of
TSP-20; their share falls with the instances.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.fresh import MIB, in_fresh_processes, resident
from benchmarks.rows import Row, Scale, measured
from benchmarks.timing import in_turns
from gradiometer.maths import estimators
from gradiometer.probes import spread
from gradiometer.probes.replicates import Recipe, Subject, study
from gradiometer_labs.tsp.checkpoint import make_policy
from gradiometer_labs.tsp.config import Config

__all__ = ["rows"]

FEW, MANY = 128, 8_192
WORKERS = 2
STATISTICS = ("unit_row", "combined", "described")


def subject(num_loc: int, embed_dim: int) -> Subject:
    """A policy of the tsp lab with fresh weights; a worker makes its own."""
    policy = make_policy(Config(num_loc=num_loc, embed_dim=embed_dim))
    return Subject(policy, policy)


def instances(num: int, num_loc: int) -> Tensor:
    """Cities."""
    return torch.rand(num, num_loc, 2, generator=torch.Generator().manual_seed(0))


def weights(scale: Scale) -> Iterator[Row]:
    """Of 4,096 instances of 512 rollouts, by estimator; max@K beside POMO."""
    rewards = torch.randn(*scale.of((4_096, 512), (64, 32)))
    k = scale.of(64, 8)
    named: dict[str, Callable[[], object]] = {"pomo": partial(estimators.find("pomo"), rewards)}
    for baseline in ("none", "subloo", "sample_loo"):
        named[f"maxk, {baseline}"] = partial(
            estimators.find("maxk"), rewards, k=k, baseline=baseline
        )
    taken = in_turns(named, rounds=scale.rounds())
    for name, seconds in taken.items():
        yield measured(f"weights of 4,096 × 512, {name}", seconds, unit="s", at_most=1)
    yield measured(
        "weights, the dearest max@K / pomo", np.max(list(taken.values()), 0) / taken["pomo"]
    )


def share(scale: Scale) -> Iterator[Row]:
    """Time in the statistics of one serial study: a round is some of its tasks; what comes at the
    end is spread over all."""
    recipe = Recipe(algorithm="maxk", options={"k": 8, "baseline": "subloo"})
    spent, marks = 0.0, list[tuple[float, float]]()

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal spent
            start = time.perf_counter()
            result = function(*arguments, **options)
            spent += time.perf_counter() - start
            return result

        return call

    def mark(*_: int) -> None:
        marks.append((time.perf_counter(), spent))

    load, cities = partial(subject, 20, scale.of(64, 16)), instances(scale.of(FEW, 8), 20)
    with ExitStack() as stack:
        for name in STATISTICS:
            stack.enter_context(patch.object(spread, name, timed(getattr(spread, name))))
        mark()
        study(load, cities, recipe, num_replicates=scale.of(9, 2), progress=mark)
        mark()
    *tasks, end = np.diff(np.array(marks), axis=0)
    rounds = np.array([part.sum(0) for part in np.array_split(tasks, scale.rounds())])
    statistics = rounds[:, 1] + end[1] / len(rounds)
    yield measured(
        "statistics / gradients",
        100 * statistics / (rounds[:, 0] - rounds[:, 1]),
        unit="%",
        at_most=5,
    )


def studied(engine: str, num: int, replicates: int) -> tuple[float, float]:
    """Seconds of a study, and seconds a task once every worker has given its first."""
    seen: list[float] = []
    cities, recipe = instances(num, 20), Recipe(algorithm="pomo")
    options: dict[str, Any] = {"engine": engine, "workers": 1 if engine == "serial" else WORKERS}
    start = time.perf_counter()
    study(
        partial(subject, 20, 64),
        cities,
        recipe,
        num_replicates=replicates,
        controls=False,
        progress=lambda done, total: seen.append(time.perf_counter()),
        **options,
    )
    whole = time.perf_counter() - start
    return whole, (seen[-1] - seen[WORKERS - 1]) / (len(seen) - WORKERS)


def workers(scale: Scale) -> Iterator[Row]:
    """The same study in one process and in two, in turns."""
    num, replicates = scale.of((FEW, 6), (4, 4))
    rounds = [
        [studied(engine, num, replicates) for engine in ("serial", "processes")]
        for _ in range(scale.rounds())
    ]
    one, two = np.array(rounds).transpose(1, 2, 0)
    told = f"a study takes {np.median(one[0]):.1f} s alone"
    yield measured("two workers / one process, once started", one[1] / two[1], note=told)
    yield measured("two workers / one process, their start included", one[0] / two[0], at_least=1.6)


def peak_with(num: int) -> int:
    """Peak bytes beyond the loaded policy, with that many instances."""
    load = partial(subject, 6, 16)
    load()
    cities = instances(num, 6)
    before = resident()
    study(load, cities, Recipe(algorithm="pomo"), num_replicates=1, controls=False)
    return resident("VmHWM") - before


def memory(scale: Scale) -> Iterator[Row]:
    """Of few and of many instances, each in a fresh process."""
    few, many = FEW, scale.of(MANY, 2 * FEW)
    calls = [partial(peak_with, num) for _ in range(scale.rounds()) for num in (few, many)]
    peaks = np.array(in_fresh_processes(calls, at_once=2), dtype=np.float64).reshape(-1, 2).T
    told = (
        f"beyond the policy {np.median(peaks[0]) / MIB:.0f} and {np.median(peaks[1]) / MIB:.0f} MiB"
    )
    yield measured(
        f"peak with {MANY:,} instances / with {FEW}", peaks[1] / peaks[0], at_most=1.1, note=told
    )


def rows(scale: Scale) -> Iterator[Row]:
    """All four."""
    yield from weights(scale)
    yield from share(scale)
    yield from workers(scale)
    yield from memory(scale)
