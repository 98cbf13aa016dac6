"""The norm of the gradient at its stages: after backward, after the clip, and what the step did to the weights."""

from __future__ import annotations

from collections.abc import Sequence

from gradiometer.dashboard.desk import Open
from gradiometer.dashboard.shape import Line
from gradiometer.dashboard.views.layers import block_title, blocks_of
from gradiometer.dashboard.views.series import Curves, named

__all__ = ["STAGES", "norm_lines"]

STAGES = ("raw", "clipped", "update")
MOST_BLOCKS = 12


def norm_lines(curves: Curves, run: Open, stages: Sequence[str] = STAGES, block: str = "all") -> list[Line]:
    """A line for each stage of a block. A run that has nothing under `all` has its blocks, or what its trainer logged."""
    there = [stage for stage in stages if f"grad/{block}/norm/{stage}" in run.names]
    if there or block != "all":
        return [curves.line(run, f"grad/{block}/norm/{stage}", stage, role=stage) for stage in there]
    blocks = blocks_of(run)
    held = {block: f"grad/{block}/norm/raw" for block in blocks.named or blocks.layers[:MOST_BLOCKS]}
    own = [(block, name) for block, name in held.items() if name in run.names]
    if own:
        return [curves.line(run, name, block_title(block), role=f"block:{block}") for block, name in own]
    theirs = named(run, "grad/<block>/norm/raw") or named(run, "total_grad_norm")[:1]
    roles = ["raw"] if len(theirs) == 1 else [f"block:{name.partition('/')[0]}" for name in theirs]
    return [curves.line(run, name, name, role=role) for name, role in zip(theirs, roles, strict=True)]
