"""Random numbers by their purpose: each has a stream of its own at each step.

So a training that is resumed, or one in which something more is drawn, draws the same elsewhere.
"""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["generator_of", "seed_of"]


def seed_of(*key: int) -> int:
    """A seed made of several numbers, such as a training's seed, a purpose and a step."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]) >> 1


def generator_of(*key: int, device: torch.device | str = "cpu") -> torch.Generator:
    """The random numbers of that key."""
    return torch.Generator(device).manual_seed(seed_of(*key))
