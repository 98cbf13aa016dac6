"""Held still: whatever a probe does to a model, the next training step does not notice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradiometer.capture.blocks import Model, modules_of
from gradiometer.capture.distributed import refuse_shards
from gradiometer.capture.randomness import RandomState
from gradiometer.errors import UsageError

__all__ = ["check_whole", "held_still", "need_gradients", "seed_everything"]


@contextmanager
def held_still(model: Model) -> Iterator[None]:
    """Random states, buffers, modes and autocast's cache as they were.

    `.grad` is never written: probes use autograd.grad. A data-parallel model neither averages
    gradients nor broadcasts buffers meanwhile: ranks walk different micro-batches.
    """
    refuse_shards(model)
    parts = [part for module in modules_of(model).values() for part in module.modules()]
    modes = [part.training for part in parts]
    buffers = [(part, dict(part._buffers), _copies(part)) for part in parts]
    state, caching = RandomState.now(), torch.is_autocast_cache_enabled()
    # A forward without gradients would leave weights in the cache that later have none.
    torch.set_autocast_cache_enabled(False)
    try:
        with ExitStack() as stack:
            for part in parts:
                if isinstance(part, DistributedDataParallel):
                    stack.enter_context(_alone(part))
            yield
    finally:
        torch.set_autocast_cache_enabled(caching)
        state.restore()
        for part, training in zip(parts, modes, strict=True):
            part.training = training
        for part, held, copies in buffers:
            _restore(part, held, copies)


def _copies(part: nn.Module) -> dict[str, Tensor]:
    return {name: held.detach().clone() for name, held in part._buffers.items() if held is not None}


def _restore(part: nn.Module, held: dict[str, Tensor | None], copies: dict[str, Tensor]) -> None:
    """The same tensors under the same names: a forward may have rebound a buffer (self.m = ...)."""
    part._buffers.clear()
    part._buffers.update(held)
    for name, before in copies.items():
        # By way of .data: batch norm changes its statistics without counting it as a change, and so
        # must we.
        held[name].data.copy_(before)  # type: ignore[union-attr]


@contextmanager
def _alone(part: DistributedDataParallel) -> Iterator[None]:
    """Without the broadcast of buffers, and without the reducer, which would wait for ever."""
    broadcasts = part.require_forward_param_sync
    with part.no_sync():
        part.require_forward_param_sync = False
        try:
            yield
        finally:
            part.require_forward_param_sync = broadcasts


def seed_everything(seed: int) -> None:
    """torch, numpy and Python, as the max@K study does."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def need_gradients() -> None:
    """One error for a probe that is called where there can be none."""
    if torch.is_inference_mode_enabled():
        raise UsageError(
            "a probe needs gradients, and torch.inference_mode() is on: call it outside"
        )


def check_whole(name: str, number: Any, least: int) -> None:
    """One error for what should be a count."""
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise UsageError(f"{name} is a whole number of {least} or more; found {number!r}")
