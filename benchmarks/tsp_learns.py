"""Does the tsp lab learn? Trains it with its defaults and compares its tours with LKH's; a minute
or two each.

`python -m benchmarks.tsp_learns` runs POMO on three seeds, max@K and leader reward on one; `...
pomo:1 maxk_pomo:2` what is named. It learns if greedy tours of 20 cities, the best of every start
and eight symmetries, are within 8 % of the optimum after at most ten minutes. The instances are the
same 200 for all, and of no training. Seconds are those of the processor, on one thread, with the
meter watching and the run kept. The first line is the policy before its first update.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gradiometer_labs.config import configure
from gradiometer_labs.tsp import problem
from gradiometer_labs.tsp.checkpoint import load_policy, make_policy
from gradiometer_labs.tsp.config import Config
from gradiometer_labs.tsp.evaluate import evaluate, gap
from gradiometer_labs.tsp.model import TourPolicy
from gradiometer_labs.tsp.train import train

__all__ = ["gaps", "main"]

TRAININGS = ("pomo:1", "pomo:2", "pomo:3", "maxk_pomo:1", "leader_reward:1")
NUM_INSTANCES = 200
INSTANCES_SEED = 20_240  # its own generator: no training draws from it
MAX_GAP = 0.08
MAX_SECONDS = 600.0


def gaps(policy: TourPolicy, instances: Tensor, reference: Tensor) -> tuple[float, float, float]:
    """Of one start, of all starts, and of all starts and symmetries."""
    with torch.no_grad():
        single = policy.rollouts(instances, num_starts=1, greedy=True).reward[:, 0]
    found = evaluate(policy, instances)
    return gap(single, reference), gap(found.plain, reference), gap(found.augmented, reference)


def line(name: str, seed: str, steps: int, seconds: float, found: Sequence[float]) -> None:
    """A row of the table."""
    shown = "  ".join(f"{each:7.2%}" for each in found)
    learns = found[-1] <= MAX_GAP and seconds <= MAX_SECONDS
    print(
        f"{name:14} {seed:>4} {steps:6d} {seconds:8.0f}   {shown}   {'yes' if learns else 'NO'}",
        flush=True,
    )


def one(algorithm: str, seed: str, folder: Path, instances: Tensor, reference: Tensor) -> bool:
    """Train, print a line, say whether it learns."""
    config = configure(Config, [f"algorithm={algorithm}", f"seed={seed}", f"run={folder}"])
    start = time.process_time()
    result = train(config)
    seconds = time.process_time() - start
    assert result.checkpoint is not None
    policy, _ = load_policy(result.checkpoint, algorithm=algorithm)
    found = gaps(policy, instances, reference)
    line(algorithm, seed, config.steps, seconds, found)
    return found[-1] <= MAX_GAP and seconds <= MAX_SECONDS


def main(chosen: Sequence[str] = TRAININGS) -> int:
    """A line for each training; 1 if one does not learn."""
    torch.set_num_threads(1)
    tsp, num_loc = problem.find("tsp"), Config().num_loc
    instances = tsp.generate(NUM_INSTANCES, num_loc, torch.Generator().manual_seed(INSTANCES_SEED))
    reference = tsp.reference(instances)
    print("gradiometer train tsp algorithm=<algorithm> seed=<seed>")
    print(
        f"gap to LKH (mean length {-float(reference.mean()):.4f}) on {NUM_INSTANCES} instances of"
        f" {num_loc} cities"
    )
    print(
        f"algorithm      seed  steps  seconds   1 start  {num_loc} starts  × 8   within"
        f" {MAX_GAP:.0%}"
    )
    line("untrained", "1", 0, 0.0, gaps(make_policy(Config()), instances, reference))
    with tempfile.TemporaryDirectory() as folder:
        parts = [each.partition(":") for each in chosen]
        learned = [
            one(name, seed, Path(folder) / f"{name}-{seed}", instances, reference)
            for name, _, seed in parts
        ]
    return 0 if all(learned) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or TRAININGS))
