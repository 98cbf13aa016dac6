"""Every living object of a class in this process: optimizers, modules, scalers."""

from __future__ import annotations

import gc
from typing import Any

from torch import nn

__all__ = ["living", "outermost"]


def living(*kinds: type) -> dict[type, list[Any]]:
    """Objects of these classes. By type: proxies answer isinstance with work of their own.

    It looks at all objects of the process: milliseconds to half a second, so once and rarely.
    """
    found: dict[type, list[Any]] = {kind: [] for kind in kinds}
    known: dict[type, type | None] = {}
    for held in gc.get_objects():
        own = type(held)
        if own not in known:
            known[own] = next((kind for kind in kinds if issubclass(own, kind)), None)
        kind = known[own]
        if kind is not None:
            found[kind].append(held)
    return found


def outermost(modules: list[nn.Module]) -> list[nn.Module]:
    """Modules that are part of no other, largest first: a wrapper comes before what it wraps."""
    made = [module for module in modules if "_modules" in vars(module)]
    children = (child for module in made for child in module._modules.values())
    inside = {id(child) for child in children if child is not None}
    roots = [module for module in made if id(module) not in inside]
    return sorted(roots, key=lambda module: -sum(1 for _ in module.parameters()))
