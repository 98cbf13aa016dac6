"""A stand-in of pynvml, with the functions that are called of it."""

from __future__ import annotations

from collections.abc import Collection
from types import ModuleType, SimpleNamespace
from typing import Any

__all__ = ["nvml_with_cards"]


def nvml_with_cards(number: int, failing: Collection[int] = ()) -> ModuleType:
    """Cards that compute half of the time and hold a GiB; of those that fail nothing is told."""

    def told(answer: Any) -> Any:
        def ask(handle: int) -> Any:
            if handle in failing:
                raise RuntimeError("GPU is lost")
            return answer

        return ask

    nvml: Any = ModuleType("pynvml")
    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetCount = lambda: number
    nvml.nvmlDeviceGetHandleByIndex = lambda place: place
    nvml.nvmlDeviceGetUtilizationRates = told(SimpleNamespace(gpu=50, memory=10))
    nvml.nvmlDeviceGetMemoryInfo = told(SimpleNamespace(used=2**30, total=2**34))
    made: ModuleType = nvml
    return made
