"""Does the sokoban lab learn? Trains it with its defaults and judges the reward; about five minutes
a training.

`python -m benchmarks.sokoban_learns` runs PPO on three seeds and GRPO on one; `... gae:1 grpo:2`
what is named. It learns if the reward rises by the block-mean trend test and the last fifth beats
the first by more than two standard errors of their difference. The last line is the share of games
solved in the last fifth, over all trainings, beside the aim. Seconds are those of the processor, on
one thread, warm start and validation included.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import gradiometer as gm
from gradiometer.maths import trends
from gradiometer_labs.config import configure
from gradiometer_labs.sokoban.config import Config
from gradiometer_labs.sokoban.train import train

__all__ = ["Verdict", "judge", "main", "summary"]

TRAININGS = ("gae:1", "gae:2", "gae:3", "grpo:1")
AIM = 0.6
"""Share of the games of the last fifth that are solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """First and last fifth of a training's rewards, as (mean, standard error), and the trend
    between."""

    first: tuple[float, float]
    last: tuple[float, float]
    gain_in_errors: float
    p_value: float | None
    learns: bool


def judge(steps: NDArray[np.int64], rewards: NDArray[np.float64]) -> Verdict:
    """Mann–Kendall on block means, and the difference of the fifths in its standard error."""
    fifth = len(rewards) // 5
    first, last = rewards[:fifth], rewards[-fifth:]
    errors = [float(part.std(ddof=1) / np.sqrt(fifth)) for part in (first, last)]
    gain = float(last.mean() - first.mean()) / math.hypot(*errors)
    trend = trends.drift(steps, rewards, min_effect=0.0)
    rises = trend is not None and trend.significant and trend.change > 0
    return Verdict(
        first=(float(first.mean()), errors[0]),
        last=(float(last.mean()), errors[1]),
        gain_in_errors=gain,
        p_value=None if trend is None else trend.p_value,
        learns=rises and gain > 2,
    )


def one(estimator: str, seed: int, folder: Path) -> tuple[bool, float]:
    """Train, print a line, say whether it learns and what share it solves in the end."""
    overrides = [f"algorithm.adv_estimator={estimator}", f"seed={seed}"]
    start = time.process_time()
    train(configure(Config, [*overrides, f"run={folder}"]))
    seconds = time.process_time() - start
    with gm.load(folder) as run:
        steps, rewards = run.series("reward")
        solved = run.series("success_rate")[1]
        validated = run.series("val/success_rate")[1]
    verdict, fifth = judge(steps, rewards), len(steps) // 5
    p_value = "none" if verdict.p_value is None else f"{verdict.p_value:.1e}"
    print(
        f"{estimator:5} {seed:4d} {len(steps):5d} {seconds:7.0f}  {verdict.first[0]:5.2f} ±"
        f" {verdict.first[1]:.2f}  {verdict.last[0]:5.2f} ± {verdict.last[1]:.2f} "
        f" {verdict.gain_in_errors:6.1f}  {p_value:>8}  {solved[:fifth].mean():5.0%} →"
        f" {solved[-fifth:].mean():4.0%}  {validated[0]:5.0%} → {validated[-1]:4.0%} "
        f" {'learns' if verdict.learns else 'does NOT learn'}",
        flush=True,
    )
    return verdict.learns, float(solved[-fifth:].mean())


def summary(solved: Sequence[float]) -> str:
    """Least and mean of the trainings, beside the aim."""
    least, mean = min(solved), float(np.mean(solved))
    reached = "met" if least >= AIM else "MISSED"
    return f"solved in the last fifth: mean {mean:.0%}, least {least:.0%}; aim {AIM:.0%} {reached}"


def main(chosen: Sequence[str] = TRAININGS) -> int:
    """A line for each training; 1 if one does not learn."""
    torch.set_num_threads(1)
    print("gradiometer train sokoban algorithm.adv_estimator=<adv> seed=<seed>")
    print(
        "adv   seed steps seconds  first fifth  last fifth   gain/SE  trend p   solved       "
        " validation"
    )
    with tempfile.TemporaryDirectory() as folder:
        parts = [each.partition(":") for each in chosen]
        ended = [one(adv, int(seed), Path(folder) / f"{adv}-{seed}") for adv, _, seed in parts]
    print(summary([solved for _, solved in ended]))
    return 0 if all(learned for learned, _ in ended) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or TRAININGS))
