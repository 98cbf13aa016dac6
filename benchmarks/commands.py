"""How long a user waits: `gradiometer --help`, and `show` of a run with a million points, beside Python's own start."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.timing import in_turns, row
from gradiometer.records import Row
from gradiometer.store.writer import Writer

__all__ = ["main"]

SERIES, STEPS = 200, 5_000


def write_a_million(folder: Path) -> None:
    """A run of 200 series × 5,000 steps."""
    names = [f"grad/layer.{number}/norm/raw" for number in range(SERIES)]
    with Writer(folder) as writer:
        for step in range(STEPS):
            writer.put(Row(step=step, wall_time=float(step), values=dict.fromkeys(names, float(step))))
            if step % 500 == 0:
                writer.flush()


def call(*arguments: str) -> None:
    """A real process, from start to end."""
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        write_a_million(folder)
        taken = in_turns(
            {
                "python -c pass": lambda: call("-c", "pass"),
                "import torch": lambda: call("-c", "import torch"),
                "gradiometer --help": lambda: call("-m", "gradiometer", "--help"),
                "gradiometer show, 1,000,000 points": lambda: call(
                    "-m", "gradiometer", "show", str(folder), "--layers"
                ),
            },
            rounds=5,
            warm_up=1,
        )
    targets = {"gradiometer --help": "target ≤ 0.4 s", "gradiometer show, 1,000,000 points": "target ≤ 2 s"}
    print("\ncommands, as a user waits for them (ratio to starting Python)")
    for name, seconds in taken.items():
        print(row(name, seconds, taken["python -c pass"], targets.get(name, "")))


if __name__ == "__main__":
    main()
