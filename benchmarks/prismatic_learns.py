"""Does the prismatic lab learn? Trains it with its defaults and compares its loss with the
source's; a minute or two each.

`python -m benchmarks.prismatic_learns` runs the Prismatic router on three seeds, its merge per
sample and top-k routing on one; `... prismatic:1 topk:2` what is named. It learns if on unseen text
at most 2 % are left of the distance between knowing nothing, ln 28 nats a character, and the source
itself, after at most five minutes. The text is the same 512 sequences for all, and of no training.
Seconds are those of the processor, on one thread, with the meter watching and the run kept. The
first line is the model before its first update; `order 2` is the best prediction from two
characters alone, counted on the test text itself.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from gradiometer_labs.config import configure
from gradiometer_labs.prismatic.config import Config
from gradiometer_labs.prismatic.model import LanguageModel, make_model
from gradiometer_labs.prismatic.text import ALPHABET, decoded
from gradiometer_labs.prismatic.train import PrismaticPurpose, Validation, text_for, train, validate

__all__ = ["main", "order_2"]

KINDS = {
    "prismatic": ["router_type=prismatic"],
    "per_sample": ["router_type=prismatic", "merge=sample"],
    "topk": ["router_type=topk"],
}
TRAININGS = ("prismatic:1", "prismatic:2", "prismatic:3", "per_sample:1", "topk:1")
NUM_SEQUENCES = 512
TEXT_SEED = 20_240  # of no training
MAX_LEFT = 0.02
MAX_SECONDS = 300.0


def judged(model: LanguageModel, config: Config) -> Validation:
    """On the common text."""
    return validate(model, dataclasses.replace(config, seed=TEXT_SEED, val_size=NUM_SEQUENCES))


def left(found: Validation) -> float:
    """What is not learned yet, as a share of what there is to learn."""
    return found.excess / (math.log(len(ALPHABET)) - found.floor)


def order_2(config: Config) -> float:
    """Cross-entropy of the best prediction from two characters, in nats."""
    texts = text_for(
        dataclasses.replace(config, seed=TEXT_SEED), PrismaticPurpose.VALIDATION, 0, NUM_SEQUENCES
    ).numpy()
    windows = [decoded(row[i - 2 : i + 1]) for row in texts for i in range(config.prompt, len(row))]
    triples, pairs = Counter(windows), Counter(window[:2] for window in windows)
    return float(np.mean([-math.log(triples[window] / pairs[window[:2]]) for window in windows]))


def line(name: str, seed: str, steps: int, seconds: float, found: Validation) -> bool:
    """A row of the table; whether it learns."""
    learns = left(found) <= MAX_LEFT and seconds <= MAX_SECONDS
    shown = f"{found.loss:7.4f}  {found.excess:7.4f}  {left(found):7.2%}"
    print(
        f"{name:12} {seed:>4} {steps:6d} {seconds:8.0f}   {shown}   {'yes' if learns else 'NO'}",
        flush=True,
    )
    return learns


def one(name: str, seed: str, folder: Path) -> bool:
    """Train, print a line, say whether it learns."""
    config = configure(Config, [*KINDS[name], f"seed={seed}", f"run={folder}"])
    start = time.process_time()
    result = train(config)
    return line(name, seed, config.steps, time.process_time() - start, judged(result.model, config))


def main(chosen: Sequence[str] = TRAININGS) -> int:
    """A line for each training; 1 if one does not learn."""
    torch.set_num_threads(1)
    untrained = judged(make_model(Config()), Config())
    print(
        "gradiometer train prismatic router_type=<prismatic or topk> merge=<batch or sample>"
        " seed=<seed>"
    )
    print(
        f"nats a character on {NUM_SEQUENCES} unseen sequences: source {untrained.floor:.4f}, order"
        f" 2 {order_2(Config()):.4f}"
    )
    print(f"training     seed  steps  seconds      loss   excess     left   within {MAX_LEFT:.0%}")
    line("untrained", "1", 0, 0.0, untrained)
    with tempfile.TemporaryDirectory() as folder:
        parts = [each.partition(":") for each in chosen]
        learned = [one(name, seed, Path(folder) / f"{name}-{seed}") for name, _, seed in parts]
    return 0 if all(learned) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or TRAININGS))
