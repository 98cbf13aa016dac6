"""What the meter takes of memory, and whether it grows: resident size, each candidate in a fresh
process.

The tiers are told apart after 12 measured steps of the 10M transformer, with the gradients still
there: `light` keeps nothing of the size of the parameters, `standard` one scratch beside its sketch
tables. A run of the 2×64 MLP of 20,000 measured steps, kept on disk, is looked at after every
2,000; the first 2,000, which fill SQLite's page cache, are left out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

import gradiometer as gm
from benchmarks.fresh import MIB, in_fresh_processes, resident
from benchmarks.models import (
    actor_critic_loss,
    mlp,
    num_parameters,
    sgd,
    token_loss,
    train_step,
    transformer,
)
from benchmarks.rows import Row, Scale, measured
from gradiometer.capture.settings import Tier

__all__ = ["rows"]

MEASURED_STEPS = 12
TIERS: dict[Tier, float] = {
    "light": 0.1,
    "standard": 1.1,
}  # "none" and "one scratch", and a tenth for what moves by itself
FLAT = 1.01


def tier_size(tier: Tier | None, size: tuple[int, int]) -> tuple[int, int]:
    """Bytes in memory after some measured steps, and those of the parameters."""
    model = transformer(*size)
    optimizer = sgd(model)
    meter = None if tier is None else gm.watch(model, optimizer, run=None, tier=tier, budget=None)
    step = train_step(model, optimizer, token_loss(model))
    for _ in range(MEASURED_STEPS):
        step()
    now = resident()
    if meter is not None:
        meter.close()
    return now, 4 * num_parameters(model)


def growth(tier: Tier, marks: int, steps: int) -> list[int]:
    """Bytes after every so many measured steps of the MLP."""
    model = mlp()
    optimizer = sgd(model)
    step = train_step(model, optimizer, actor_critic_loss(model))
    with (
        tempfile.TemporaryDirectory() as folder,
        gm.watch(model, optimizer, run=Path(folder) / "run", tier=tier, budget=None),
    ):
        return [_after(step, steps) for _ in range(marks)]


def _after(step: Callable[[], None], steps: int) -> int:
    for _ in range(steps):
        step()
    return resident()


def rows(scale: Scale) -> Iterator[Row]:
    """By tier, then by steps; what is not timed may use both cores."""
    size = scale.of((384, 5), (64, 2))
    calls = [
        partial(tier_size, tier, size) for _ in range(scale.rounds()) for tier in (None, *TIERS)
    ]
    found = np.array(in_fresh_processes(calls, at_once=2), dtype=np.float64).reshape(
        -1, 1 + len(TIERS), 2
    )
    parameters = found[0, 0, 1]
    for place, (tier, limit) in enumerate(TIERS.items(), 1):
        extra = (found[:, place, 0] - found[:, 0, 0]) / parameters
        told = f"{np.median(extra) * parameters / MIB:.1f} of {parameters / MIB:.1f} MiB"
        yield measured(
            f"10M transformer: `{tier}` takes / the parameters", extra, at_most=limit, note=told
        )
    marks, steps = 1 + scale.rounds(), scale.of(2_000, 20)
    grown = in_fresh_processes([partial(growth, tier, marks, steps) for tier in TIERS], at_once=2)
    for tier, sizes in zip(TIERS, np.array(grown, dtype=np.float64), strict=True):
        told = f"{sizes[0] / MIB:.1f} to {sizes[-1] / MIB:.1f} MiB from 2,000 to 20,000 steps"
        name = f"2×64 MLP: `{tier}`, resident after 2,000 more steps / before"
        yield measured(name, sizes[1:] / sizes[:-1], at_most=FLAT, note=told)
        yield measured(
            f"2×64 MLP: `{tier}`, resident after 2,000·n steps / after 2,000", sizes[1:] / sizes[0]
        )
