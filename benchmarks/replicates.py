"""Replicates: memory against instances, two workers against one, the share of statistics, and the estimators alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.memory import MIB, ROOT, resident
from gradiometer.labs.tsp.checkpoint import make_policy
from gradiometer.labs.tsp.config import Config
from gradiometer.maths import estimators
from gradiometer.probes import spread
from gradiometer.probes.replicates import study
from gradiometer.probes.subject import Recipe, Subject

__all__ = ["main"]

FEW, MANY = 128, 8_192


def subject(num_loc: int, embed_dim: int) -> Subject:
    """A policy of the tsp lab with fresh weights; a worker makes its own."""
    policy = make_policy(Config(num_loc=num_loc, embed_dim=embed_dim))
    return Subject(policy, policy)


def instances(num: int, num_loc: int) -> Tensor:
    """Cities."""
    return torch.rand(num, num_loc, 2, generator=torch.Generator().manual_seed(0))


def peak_with(num: int) -> int:
    """Peak bytes beyond the loaded policy, with that many instances."""
    load = partial(subject, 6, 16)
    load()
    cities = instances(num, 6)
    before = resident()
    study(load, cities, Recipe(algorithm="pomo"), num_replicates=2, controls=False)
    return resident("VmHWM") - before


def print_memory() -> None:
    """Each in a fresh process."""
    sizes: dict[int, int] = {}
    for num in (FEW, MANY):
        command = [sys.executable, "-m", "benchmarks.replicates", str(num)]
        sizes[num] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)
    few, many = (sizes[num] / MIB for num in (FEW, MANY))
    whole = (sizes[MANY] - sizes[FEW]) / resident()
    print(f"peak beyond the policy: {few:.0f} MiB with {FEW} instances, {many:.0f} MiB with {MANY}")
    print(f"  the difference is {100 * whole:.1f} % of the process (target at most 10 %)")


def print_workers() -> None:
    """The same study in one process and in two, after each has started."""
    load, cities = partial(subject, 20, 64), instances(4 * FEW, 20)
    taken: dict[str, float] = {}
    for name, options in {"one": {"engine": "serial"}, "two": {"engine": "processes", "workers": 2}}.items():
        start = time.perf_counter()
        study(load, cities, Recipe(algorithm="pomo"), num_replicates=8, controls=False, **options)  # type: ignore[arg-type]
        taken[name] = time.perf_counter() - start
    print(f"one process {taken['one']:.1f} s, two workers {taken['two']:.1f} s with their start:", end=" ")
    print(f"{taken['one'] / taken['two']:.2f} × (target 1.6)")


def print_share() -> None:
    """Time in the statistics of a serial study, by wrapping what makes them."""
    spent = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal spent
            start = time.perf_counter()
            result = function(*arguments, **options)
            spent += time.perf_counter() - start
            return result

        return call

    originals = {name: getattr(spread, name) for name in ("unit_row", "combined", "described")}
    for name, function in originals.items():
        setattr(spread, name, timed(function))
    start = time.perf_counter()
    study(
        partial(subject, 20, 64), instances(FEW, 20), Recipe(algorithm="maxk", options={"k": 8, "baseline": "subloo"})
    )
    whole = time.perf_counter() - start
    for name, function in originals.items():
        setattr(spread, name, function)
    print(
        f"statistics {spent:.2f} s of {whole:.1f} s: {100 * spent / (whole - spent):.1f} % of the gradients (target 5 %)"
    )


def print_estimators() -> None:
    """Weights of 4,096 instances of 512 rollouts."""
    rewards = torch.randn(4_096, 512)
    for name, options in (
        ("pomo", {}),
        *(("maxk", {"k": 64, "baseline": b}) for b in ("none", "subloo", "sample_loo")),
    ):
        start = time.perf_counter()
        estimators.find(name)(rewards, **options)
        label = f"{name} {options.get('baseline', '')}"
        print(f"{label:<18} {time.perf_counter() - start:.2f} s for 4,096 × 512 (target 1 s)")


def main() -> None:
    """All four."""
    print_estimators()
    print_share()
    print_workers()
    print_memory()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        print(peak_with(int(sys.argv[1])))
    else:
        main()
