"""How long a user waits: `gradiometer --help`, `doctor` of a log of 5,000 steps, `show --layers`
of a run of 1,000,000 points in 200 series.

Each is a real process, from start to end. The help is held against a bare import of the two
libraries it is printed with, since a machine may be slow today.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.rows import Row as Figure
from benchmarks.rows import Scale, clock, measured
from benchmarks.timing import in_turns
from gradiometer.records import Row
from gradiometer.store.writer import Writer

__all__ = ["rows"]

SERIES = 200
BARE = "import typer, rich"


def write_run(folder: Path, steps: int) -> None:
    """A run of 200 series."""
    names = [f"grad/layer.{number}/norm/raw" for number in range(SERIES)]
    with Writer(folder) as writer:
        for step in range(steps):
            writer.put(
                Row(step=step, wall_time=float(step), values=dict.fromkeys(names, float(step)))
            )
            if step % 500 == 0:
                writer.flush()


def write_log(file: Path, steps: int) -> None:
    """A CSV as a trainer logs it: a reward that rises, and seven more columns."""
    rng = np.random.default_rng(0)
    table = rng.normal(1.0, 0.1, (steps, 8))
    table[:, 0] += np.linspace(0.0, 5.0, steps)
    names = "reward,entropy,value_loss,policy_loss,approx_kl,clip_fraction,grad_norm,learning_rate"
    lines = [",".join(f"{x:.6g}" for x in (step, *row)) for step, row in enumerate(table)]
    file.write_text("\n".join([f"step,{names}", *lines]) + "\n", encoding="utf-8")


def call(*arguments: str) -> None:
    """A real process, from start to end."""
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


def rows(scale: Scale) -> Iterator[Figure]:
    """Each, beside the import that they do without."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, log = Path(temporary) / "run", Path(temporary) / "progress.csv"
        write_log(log, scale.of(5_000, 50))
        write_run(folder, scale.of(5_000, 50))
        taken = in_turns(
            {
                "import torch": lambda: call("-c", "import torch"),
                BARE: lambda: call("-c", BARE),
                "--help": lambda: call("-m", "gradiometer", "--help"),
                "doctor": lambda: call("-m", "gradiometer", "doctor", str(log)),
                "show": lambda: call("-m", "gradiometer", "show", str(folder), "--layers"),
            },
            rounds=scale.rounds(),
            warm_up=scale.of(1, 0),
        )
    yield measured(
        f'`gradiometer --help` / `python -c "{BARE}"`',
        taken["--help"] / taken[BARE],
        at_most=1.6,
        note=clock(taken, BARE),
    )
    for name, limit in (("--help", 0.4), ("doctor", 0.5), ("show", 2.0)):
        yield measured(f"`gradiometer {name}`", taken[name], unit="s", at_most=limit)
        ratio = taken[name] / taken["import torch"]
        yield measured(
            f'`gradiometer {name}` / `python -c "import torch"`',
            ratio,
            note=clock(taken, "import torch"),
        )
