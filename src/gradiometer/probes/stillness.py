"""Held still: whatever a probe does to a model, the next training step does not notice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradiometer.capture.blocks import Model, modules_of

__all__ = ["held_still"]


@contextmanager
def held_still(model: Model) -> Iterator[None]:
    """Random states, buffers and modes as they were before; `.grad` is never written, for gradients come from autograd.grad.

    A forward without gradients may leave weights in autocast's cache that later have none: it is emptied on both sides.
    """
    modules = list(modules_of(model).values())
    parts = [part for module in modules for part in module.modules()]
    modes = [part.training for part in parts]
    buffers = [(buffer, buffer.detach().clone()) for module in modules for buffer in module.buffers()]
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    torch.clear_autocast_cache()
    try:
        with ExitStack() as stack:
            for part in modules:
                if isinstance(part, DistributedDataParallel):
                    stack.enter_context(part.no_sync())  # its reducer would wait for a backward that never comes
            yield
    finally:
        torch.clear_autocast_cache()
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        _restore(parts, modes, buffers)


def _restore(parts: list[nn.Module], modes: list[bool], buffers: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for part, training in zip(parts, modes, strict=True):
        part.training = training
    for buffer, before in buffers:
        # By way of .data: batch norm changes its statistics without counting it as a change, and so must we.
        buffer.data.copy_(before)
