"""What the integrations with their default settings take of a real training, each by its own callback.

A part is a function that prints its table; `python -m benchmarks.integrations sb3` runs one, without a name all of them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import integrations_trl
from benchmarks.trainers import PPO_STEPS, Taken, side_by_side

__all__ = ["main"]


def train_sb3(run: Path | None) -> Taken:
    """SB3's PPO on CartPole-v1, with the callback when there is a folder; the callback opens and closes the run itself."""
    from stable_baselines3 import PPO

    from gradiometer.integrations.sb3 import GradiometerCallback

    model = PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu", verbose=0)
    callback = None if run is None else GradiometerCallback(run=run)
    start, start_cpu = time.perf_counter(), time.process_time()
    model.learn(PPO_STEPS, callback=callback)
    wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    return Taken(wall=wall, cpu=cpu, hooks=seconds_in(callback), setting_up=0.0, run=run)


def seconds_in(callback: Any) -> float:
    """What the meter's hooks took, and the callback's own: reading the logger, saying where steps lie."""
    if callback is None:
        return 0.0
    return float(callback.meter._rig.seconds + callback._reader.seconds + callback.session.seconds)


def sb3(folder: Path) -> None:
    """Stable-Baselines3; the time of `watch()`, once, and of closing is in it."""
    side_by_side(f"SB3 PPO on CartPole-v1, {PPO_STEPS:,} steps", train_sb3, 4, "target ≤ 1.02 ×", folder)


PARTS: dict[str, Callable[[Path], None]] = {
    "sb3": sb3,
    "trl": integrations_trl.grpo,
    "transformers": integrations_trl.trainer,
}


def main(names: list[str] | None = None) -> None:
    """The parts that are named, or all of them."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        for name in names or PARTS:
            PARTS[name](Path(temporary))


if __name__ == "__main__":
    main(sys.argv[1:])
