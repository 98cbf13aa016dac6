"""`gradiometer prune`: bound what sketches and histograms take."""

from __future__ import annotations

from pathlib import Path

from gradiometer.cli.commands import PruneRequest
from gradiometer.cli.printing import console, print_json
from gradiometer.store.batches import prune as prune_run

__all__ = ["prune"]


def prune(request: PruneRequest) -> None:
    """Remove all but the last `keep` vectors of each name."""
    run, keep = request.run, request.keep
    removed = prune_run(Path(run), keep=keep)
    if request.json:
        print_json({"run": run, "keep": keep, "removed": removed})
    else:
        console().print(
            f"{run}: removed {removed} sketches and histograms, kept the last {keep} of each"
        )
