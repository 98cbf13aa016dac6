"""Random numbers stay the training's own: what runs a second time draws the same ones again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

__all__ = ["RandomState", "replayed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomState:
    """Where the generators of torch, numpy and Python stand."""

    cpu: Tensor
    cuda: tuple[Tensor, ...]
    numpy: Any
    python: Any

    @classmethod
    def now(cls) -> Self:
        """As they stand at this moment."""
        cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        return cls(
            cpu=torch.get_rng_state(),
            cuda=cuda,
            numpy=np.random.get_state(),
            python=random.getstate(),
        )

    def restore(self) -> None:
        """Take them back to where they stood."""
        self.restore_torch()
        np.random.set_state(self.numpy)
        random.setstate(self.python)

    def restore_torch(self) -> None:
        """Those of torch alone, which is a hundred times faster than numpy's."""
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)


@contextmanager
def replayed(state: RandomState) -> Iterator[None]:
    """Draw the random numbers of an earlier moment again, then go on as before."""
    now = RandomState.now()
    state.restore()
    try:
        yield
    finally:
        now.restore()
