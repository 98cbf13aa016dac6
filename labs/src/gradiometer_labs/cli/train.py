"""`gradiometer train`: a lab, its overrides, and a progress bar."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import gradiometer_labs as labs
from gradiometer.cli.printing import console
from gradiometer.cli.progress import progress_bar
from gradiometer.words import number
from gradiometer_labs.cli.commands import TrainRequest

if TYPE_CHECKING:
    from gradiometer_labs.config import LabConfig, TrainingProgress

__all__ = ["prepared", "train", "training_bar"]


def train(request: TrainRequest) -> None:
    """Train with the overrides on top of a case study's and of the lab's defaults, and say where
    the run is."""
    from gradiometer_labs import study

    lab = labs.find(request.lab)
    studied = study.overrides_from(request.config, request.variation, lab)
    overrides = [*studied, *request.overrides]
    settings = prepared(request.lab, overrides, config_name=request.config_name)
    with training_bar(request.lab, wording=lab.wording) as progress:
        result = lab.train(settings, progress)
    out, words = console(), lab.wording
    reached = f"{words.result} {number(result.mean_return)} over {lab.return_over}"
    out.print(f"{reached}; {result.episodes} {words.counted} in all", soft_wrap=True)
    if result.run is not None:
        out.print(f"kept in {result.run}; look at it with: gradiometer show {result.run}")


def prepared(name: str, overrides: list[str], *, config_name: str | None = None) -> LabConfig:
    """The lab's config with the overrides and a folder for the run; says on stderr which keys do
    nothing here."""
    from gradiometer_labs.config import configure

    config_class = labs.find(name).config()
    now = time.strftime("%Y%m%d-%H%M%S")
    config = configure(
        config_class, [f"run=runs/{name}-{now}", *overrides], config_name=config_name
    )
    if config.run_name is not None and config.run == f"runs/{name}-{now}":
        config = dataclasses.replace(config, run=f"runs/{config.run_name}-{now}")
    unused = config_class.no_effect(overrides)
    if unused:
        print(f"no effect in this lab: {', '.join(unused)}", file=sys.stderr, flush=True)
    return config


@contextmanager
def training_bar(
    label: str, *, wording: labs.Wording | None = None
) -> Iterator[Callable[[TrainingProgress], None]]:
    """The progress bar with the live return of a training."""
    words = wording or labs.Wording()
    with progress_bar(label, value_name=words.live) as show:

        def show_training(now: TrainingProgress) -> None:
            reached = "" if math.isnan(now.mean_return) else f"{now.mean_return:.{words.decimals}f}"
            show(now.done, now.total, unit=now.unit, value=reached, notes=now.notes)

        yield show_training
