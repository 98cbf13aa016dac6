"""What the script calls its models and tensors."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

__all__ = ["fresh", "names_of", "unwrapped"]


def unwrapped(module: nn.Module) -> nn.Module:
    """What a wrapper of torch (DDP, compile) wraps: its name says more."""
    for name in ("module", "_orig_mod"):
        if type(module).__module__.startswith("torch.") and isinstance(inner := getattr(module, name, None), nn.Module):
            return unwrapped(inner)
    return module


def names_of(things: Sequence[Any]) -> list[str]:
    """What the script calls them: its global variables, then attributes of its objects, then their class."""
    found: dict[int, str] = {}
    wanted = {id(thing) for thing in things}
    for names in (vars(sys.modules["__main__"]), *map(_attributes, gc.get_referrers(*things))):
        for name, value in list(names.items()):
            if id(value) in wanted and isinstance(name, str) and re.fullmatch(r"[A-Za-z]\w*", name):
                found.setdefault(id(value), name)
    taken: dict[str, None] = {}
    for thing in things:
        taken[fresh(found.get(id(thing)) or _class_word(thing), taken)] = None
    return list(taken)


def _attributes(holder: Any) -> Mapping[Any, Any]:
    if type(holder) is dict:
        return holder
    try:
        return dict(vars(holder))
    except TypeError:  # a tuple, a list, a frame
        return {}


def _class_word(thing: Any) -> str:
    kind = "Parameter" if isinstance(thing, Tensor) else type(unwrapped(thing)).__name__
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()


def fresh(name: str, taken: Mapping[str, object]) -> str:
    if name == "all":  # the block of all blocks
        name = "all_models"
    number, fresh = 1, name
    while fresh in taken:
        number += 1
        fresh = f"{name}_{number}"
    return fresh
