"""How long a diagnosis takes: one long log, a hundred runs, and the live doctor's share of a training."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from gradiometer.doctor.chart import Chart
from gradiometer.doctor.diagnosis import diagnose, judged
from gradiometer.doctor.live import MAX_POINTS
from gradiometer.doctor.rule import rules
from gradiometer.records import Row
from gradiometer.store.reader import load
from gradiometer.store.writer import Writer

__all__ = ["main"]

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


def make(folder: Path, steps: int, seed: int = 0) -> int:
    """A run of 40 series that learns, with autocorrelated noise; returns how many values it holds."""
    rng = np.random.default_rng(seed)
    names = [*LOGGED, *(f"grad/{block}/{name}" for block in BLOCKS for name in MEASURED)]
    noise = 0.1 * np.cumsum(rng.normal(size=(steps, len(names))), 0) / np.sqrt(np.arange(1, steps + 1))[:, None]
    values = np.exp(noise) * 0.5
    values[:, 0] += np.linspace(0, 5, steps)
    with Writer(folder) as writer:
        for step in range(steps):
            writer.put(
                Row(step=step, wall_time=float(step), values=dict(zip(names, values[step].tolist(), strict=True)))
            )
    return steps * len(names)


def main() -> None:
    """The three tables."""
    rules()
    with tempfile.TemporaryDirectory() as folder:
        count = make(Path(folder) / "long", 5000)
        with load(Path(folder) / "long") as run:
            diagnose(run)
            started = time.perf_counter()
            diagnose(run)
            taken = time.perf_counter() - started
            chart = Chart(run, max_points=MAX_POINTS)
            started = time.perf_counter()
            judged(chart, rules())
            live = time.perf_counter() - started
        print(f"{count:,} values, 5,000 steps × 40 series, {len(rules())} rules: {taken:.2f} s   target ≤ 1.5 s")
        print(
            f"a live look at the same run: {live:.2f} s in another process, {live / 5000 * 1e3:.3f} ms a step if it came once"
        )
        for number in range(100):
            make(Path(folder) / f"run-{number}", 500, number)
        started = time.perf_counter()
        for number in range(100):
            with load(Path(folder) / f"run-{number}") as run:
                diagnose(run)
        print(f"100 runs of 500 steps × 40 series: {time.perf_counter() - started:.1f} s   target ≤ 30 s")


if __name__ == "__main__":
    main()
