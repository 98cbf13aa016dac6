"""Replicates in a run: the series of each algorithm, its record, and the comparison."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradiometer.metrics import key
from gradiometer.probes.replicates import Replicates
from gradiometer.records import Row, Table
from gradiometer.store import facts
from gradiometer.store.writer import Writer

__all__ = ["keep_replicates", "values_of"]

SOURCE = ("grad_norm", "grad_proj", "ess_mean", "weights_abs_max_mean")
INTERVALS = ("trace", "snr")
NUMBERS = ("signal_norm", "mean_cosine", "instance_trace")
CONCENTRATION = ("ess_abs", "cancellation", "top_share")


def keep_replicates(folder: Path, studies: Sequence[Replicates], extra: dict[str, Any]) -> None:
    """Replicate r stands at step r; what is of all replicates together at step 0."""
    kept = facts.collect(studies[0].record["config"], studies[0].record["config"]["seed"])
    with Writer(folder, facts={**kept, "kind": "replicates"}) as writer:
        for study in studies:
            series = study.record["per_replicate"]
            for step in range(len(series["grad_norm"])):
                values = {
                    key(f"variance/<algorithm>/{name}", algorithm=study.label): series[name][step] for name in SOURCE
                }
                if step == 0:
                    values |= values_of(study)
                writer.put(Row(step=step, wall_time=time.time(), values=values))
        writer.put(Table(step=0, name="replicates", content=[study.record for study in studies]))
        for name, content in extra.items():
            writer.put(Table(step=0, name=name, content=content))


def values_of(study: Replicates) -> dict[str, float]:
    """The numbers of the extended pass by name; what is undefined is left out."""
    extended = study.record.get("extended")
    if extended is None:
        return {}
    found: dict[str, float | None] = {name: extended[name] for name in NUMBERS}
    for name in INTERVALS:
        interval = extended[name] or {"value": None, "low": None, "high": None}
        found |= {name: interval["value"], f"{name}_low": interval["low"], f"{name}_high": interval["high"]}
    found |= {name: extended["concentration"][name] for name in CONCENTRATION}
    return {
        key(f"variance/<algorithm>/{name}", algorithm=study.label): value
        for name, value in found.items()
        if value is not None
    }
