"""How long a diagnosis takes: one long log, a hundred runs, and the live doctor's share of a
training.

A live look runs in another process; by step is what it takes if it comes once in 5,000 logged
steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.rows import Row as Figure
from benchmarks.rows import Scale, clock, measured
from benchmarks.timing import in_turns
from gradiometer.doctor.diagnosis import diagnose, judged
from gradiometer.doctor.live import MAX_POINTS
from gradiometer.doctor.rule import rules
from gradiometer.doctor.rundata import RunData
from gradiometer.records import Row
from gradiometer.store.reader import Run, load
from gradiometer.store.writer import Writer

__all__ = ["rows"]

LOGGED = (
    "reward",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "explained_variance",
    "value_loss",
    "policy_loss",
    "learning_rate",
)
BLOCKS = ("all", "actor", "critic", "shared")
MEASURED = (
    "norm/raw",
    "norm/clipped",
    "norm/update",
    "update_ratio",
    "clip/ratio",
    "clip/active",
    "cos_prev",
    "noise_scale",
)


def make(folder: Path, steps: int, seed: int = 0) -> None:
    """A run of 40 series that learns, with autocorrelated noise."""
    rng = np.random.default_rng(seed)
    names = [*LOGGED, *(f"grad/{block}/{name}" for block in BLOCKS for name in MEASURED)]
    noise = (
        0.1
        * np.cumsum(rng.normal(size=(steps, len(names))), 0)
        / np.sqrt(np.arange(1, steps + 1))[:, None]
    )
    values = np.exp(noise) * 0.5
    values[:, 0] += np.linspace(0, 5, steps)
    with Writer(folder) as writer:
        for step in range(steps):
            writer.put(
                Row(
                    step=step,
                    wall_time=float(step),
                    values=dict(zip(names, values[step].tolist(), strict=True)),
                )
            )


def read(run: Run) -> None:
    """All of its series, which is what any diagnosis has to do first."""
    for name in run.names():
        run.series(name)


def rows(scale: Scale) -> Iterator[Figure]:
    """The long log, the live look, and the hundred."""
    rules()
    steps, number = scale.of(5000, 300), scale.of(12, 2)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        make(folder / "long", steps)
        long = stack.enter_context(load(folder / "long"))
        for each in range(number):
            make(folder / f"run-{each}", scale.of(500, 100), each)

        def many() -> None:
            for each in range(number):
                with load(folder / f"run-{each}") as run:
                    diagnose(run)

        taken = in_turns(
            {
                "reading": lambda: read(long),
                "diagnosis": lambda: diagnose(long),
                "live": lambda: judged(RunData(long, max_points=MAX_POINTS), rules()),
                "many": many,
            },
            rounds=scale.rounds(),
        )
    log = "5,000 steps × 40 series"
    yield measured(log, taken["diagnosis"], unit="s", at_most=1.5, note=f"{len(rules())} rules")
    ratio = taken["diagnosis"] / taken["reading"]
    yield measured(f"{log}: diagnosing / reading every series", ratio, note=clock(taken, "reading"))
    told = f"{clock(taken, 'live')}, in a process of its own"
    yield measured(
        "a live look at it, by step", 1e3 * taken["live"] / steps, unit="ms", at_most=1, note=told
    )
    hundred = 100 / number * taken["many"]
    yield measured(
        "100 runs of 500 steps × 40 series",
        hundred,
        unit="s",
        at_most=30,
        note="by twelve in each round",
    )
