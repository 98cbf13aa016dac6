"""What `gm.watch` with its default settings takes of a plain training: a 10M transformer on 4 × 64
tokens, AdamW.

A plain step and a watched step take turns, as late in a training, when the 100 steps that every
training gets measured are behind it. The budget pays for a measured step about every three
seconds, so the 81M transformer, at one in sixteen, cannot be seen on the clock in the time there
is; its measured step is in the part `meter`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import gradiometer as gm
from benchmarks.models import next_token_loss, train_step, transformer
from benchmarks.relay import alternate, overhead_rows
from benchmarks.rows import Row, Scale

__all__ = ["rows"]


def rows(scale: Scale) -> Iterator[Row]:
    """The clock and the hooks."""
    size, tokens, steps = scale.of((384, 5), (64, 2)), scale.of((4, 64), (2, 8)), scale.of(12, 2)

    def training() -> tuple[Any, Any, Callable[[], None]]:
        model = transformer(*size)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        step = train_step(model, optimizer, next_token_loss(model, *tokens))
        step()  # the first step allocates and warms up
        return model, optimizer, step

    with tempfile.TemporaryDirectory() as folder:

        def watched() -> tuple[Callable[[], None], Any]:
            model, optimizer, step = training()
            return step, gm.watch(model, optimizer, run=Path(folder) / "run")

        plain, ours = alternate(training()[2], watched, 1 + scale.rounds(10), steps)
    yield from overhead_rows("10M transformer", plain, ours, at_most=0.01)
