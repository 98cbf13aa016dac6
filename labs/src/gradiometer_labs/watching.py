"""The meter around a lab's training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import gradiometer as gm
from gradiometer.errors import RunExists
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
    try:
        return _meter(model, optimizer, config, first if kept_before else None, facts or {}, more)
    except RunExists as found:
        held = str(found).partition(": resume=")[0]
        raise RunExists(
            f"{held}: overwrite=true starts afresh, or choose another folder with run="
        ) from found


def _meter(
    model: Any,
    optimizer: Any,
    config: LabConfig,
    resume: int | None,
    facts: Mapping[str, Any],
    more: Mapping[str, Any],
) -> gm.Meter:
    return gm.watch(
        model,
        optimizer,
        run=config.run,
        resume=resume,
        overwrite=config.overwrite and resume is None,
        every=config.every,
        budget=None,  # the same steps on every machine
        tier=cast(Tier, config.tier),
        config={**dataclasses.asdict(config), **facts},
        seed=config.seed,
        sinks=config.trackers,
        quiet=True,  # a command has its own last line, and the clinic trains hundreds
        **more,
    )
