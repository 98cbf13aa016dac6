"""Memory is looked at in a fresh process, forked from one that has imported torch and nothing else
has happened in."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

__all__ = ["MIB", "in_fresh_processes", "resident"]

MIB = 2**20
PRELOADED = ["torch", "gradiometer", "benchmarks.models"]
T = TypeVar("T")


def resident(field: str = "VmRSS") -> int:
    """Bytes of this process in memory now; `VmHWM` is the most there ever were."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/self/status has no {field}")


def in_fresh_processes(calls: Sequence[Callable[[], T]], *, at_once: int = 1) -> list[T]:
    """What each call returns, run in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(at_once, mp_context=context, max_tasks_per_child=1) as pool:
        return list(pool.map(_call, calls))


def _call(call: Callable[[], T]) -> T:
    import torch

    torch.set_num_threads(1)
    return call()
