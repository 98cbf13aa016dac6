"""The meter around a lab's training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import gradiometer as gm
from gradiometer.metrics import Tier
from gradiometer_labs.config import LabConfig

__all__ = ["watched"]


def watched(
    model: Any,
    optimizer: Any,
    config: LabConfig,
    *,
    facts: Mapping[str, Any] | None = None,
    first: int = 0,
    **more: Any,
) -> gm.Meter:
    """`gm.watch` with the settings that every lab has; `facts` are kept beside the config.

    A training that is resumed, with `first` updates behind it, goes on in its run if that is there.
    """
    kept_before = config.run is not None and first > 0 and (Path(config.run) / "run.db").exists()
    return gm.watch(
        model,
        optimizer,
        run=config.run,
        resume=first if kept_before else None,
        every=config.every,
        budget=None,  # the same steps on every machine
        tier=cast(Tier, config.tier),
        config={**dataclasses.asdict(config), **(facts or {})},
        seed=config.seed,
        sinks=config.trackers,
        quiet=True,  # a command has its own last line, and the clinic trains hundreds
        **more,
    )
