"""What of an rl4co module is trained, under which names; rl4co itself is not imported."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from gradiometer.capture.blocks import Model, named_parameters

__all__ = ["blocks", "is_rl4co", "trained"]

BLOCKS = {
    "actor": r"policy\.",
    "encoder": r"policy\.encoder\.",
    "decoder": r"policy\.decoder\.",
    "critic": r"(baseline\.)*critic\.",
}


def is_rl4co(module: nn.Module) -> bool:
    """Whether it is one of rl4co's own or made of one: then every batch is a rollout."""
    return any(kind.__module__.partition(".")[0] == "rl4co" for kind in type(module).__mro__)


def trained(model: Any, module: nn.Module) -> Model:
    """`model`, which may wrap `module`; without the copy of the policy that a rollout baseline keeps and nobody trains."""
    copied = any(re.match(r"(baseline\.)+policy\.", name) for name, _ in module.named_parameters())
    if model is not module or not copied or not is_rl4co(module):
        return model  # type: ignore[no-any-return]
    return {name: part for name, part in module.named_children() if name != "baseline"}


def blocks(model: Model, module: nn.Module) -> dict[str, str] | None:
    """Those of rl4co's networks that are there; None for a module that is not of rl4co."""
    names = list(named_parameters(model)) if is_rl4co(module) else []
    found = {block: f"^{words}" for block, words in BLOCKS.items() if any(re.match(words, name) for name in names)}
    if "critic" not in found:
        found.pop("actor", None)  # it is all there is
    return found or None
