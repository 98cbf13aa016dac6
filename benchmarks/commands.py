"""How long a user waits: `gradiometer --help`, and `show --layers` of a run of 1,000,000 points in
200 series.

Each is a real process, from start to end.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.rows import Row as Figure
from benchmarks.rows import Scale, clock, measured
from benchmarks.timing import in_turns
from gradiometer.records import Row
from gradiometer.store.writer import Writer

__all__ = ["rows"]

SERIES = 200


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


def call(*arguments: str) -> None:
    """A real process, from start to end."""
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


def rows(scale: Scale) -> Iterator[Figure]:
    """Both, beside the import that they do without."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        write_run(folder, scale.of(5_000, 50))
        taken = in_turns(
            {
                "import torch": lambda: call("-c", "import torch"),
                "--help": lambda: call("-m", "gradiometer", "--help"),
                "show": lambda: call("-m", "gradiometer", "show", str(folder), "--layers"),
            },
            rounds=scale.rounds(),
            warm_up=scale.of(1, 0),
        )
    for name, limit in (("--help", 0.4), ("show", 2.0)):
        yield measured(f"`gradiometer {name}`", taken[name], unit="s", at_most=limit)
        ratio = taken[name] / taken["import torch"]
        yield measured(
            f'`gradiometer {name}` / `python -c "import torch"`',
            ratio,
            note=clock(taken, "import torch"),
        )
