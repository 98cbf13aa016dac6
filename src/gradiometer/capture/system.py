"""What a training takes of its machine: processor, memory and graphics cards.

Part of a run where `watch(..., system=True)` asks for it. Read when an optimizer steps and at most
every ten seconds, so nothing runs beside the training; of this process, and on a machine with
NVIDIA cards and pynvml of every card that NVML lists.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["SystemReader"]

SECONDS = 10.0
"""From one look to the next."""
MIB = 2**20
PROCESS, MACHINE = Path("/proc/self/statm"), Path("/proc/meminfo")


class SystemReader:
    """Reads the machine when it is due."""

    def __init__(self) -> None:
        self._due = 0.0
        self._wall, self._cpu = time.monotonic(), time.process_time()
        self._cards = _cards()

    def values(self) -> dict[str, float] | None:
        """By their names in the catalogue; None when the last look was a moment ago."""
        now = time.monotonic()
        if now < self._due:
            return None
        self._due = now + SECONDS
        found = _memory()
        cpu, wall = time.process_time(), now - self._wall
        if wall > 0:
            found["system/cpu"] = (cpu - self._cpu) / wall
        self._wall, self._cpu = now, cpu
        for place, card in enumerate(self._cards):
            found |= card(place)
        return found


def _memory() -> dict[str, float]:
    """Of this process, and the share of the machine's that is taken; what cannot be read is left
    out."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(PROCESS.read_text().split()[1])
        found["system/memory"] = pages * os.sysconf("SC_PAGE_SIZE") / MIB
    with contextlib.suppress(OSError, ValueError, KeyError, ZeroDivisionError):
        lines = (line.partition(":") for line in MACHINE.read_text().splitlines())
        sizes = {name: float(rest.split()[0]) for name, _, rest in lines if rest.strip()}
        found["system/memory_share"] = 1.0 - sizes["MemAvailable"] / sizes["MemTotal"]
    return found


def _cards() -> list[Any]:
    """A reader for each card; none where there is no NVML."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    except Exception:  # no package, no driver, no card: NVML has an error of its own for each
        return []

    def reader(handle: Any) -> Any:
        def read(place: int) -> dict[str, float]:
            with contextlib.suppress(Exception):
                return {
                    f"system/gpu/{place}/busy": nvml.nvmlDeviceGetUtilizationRates(handle).gpu
                    / 100,
                    f"system/gpu/{place}/memory": nvml.nvmlDeviceGetMemoryInfo(handle).used / MIB,
                }
            return {}

        return read

    return [reader(handle) for handle in handles]
