"""The replicate studies of the runs that are looked at: from the tables that `gradiometer variance` keeps, or, in a log that
has only the numbers, from its series."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gradiometer.dashboard.desk import Open
from gradiometer.metrics import key, parse
from gradiometer.plots.panels import Reading
from gradiometer.plots.studies import (
    ESS,
    NORM,
    PROJECTION,
    SNR,
    TOP_SHARE,
    TRACE,
    Series,
    Studies,
    Study,
    read_studies,
)

__all__ = ["SIGNED_ESS", "extended_of", "replicates_of", "studies_of"]

PREFIX = NORM.partition("<")[0]
SIGNED_ESS = "variance/<algorithm>/ess_mean"


def studies_of(run: Open) -> Studies | None:
    """What a run measured with replicates; None when it did not."""
    if not any(name.startswith(PREFIX) for name in run.names):
        return None
    return read_studies(run.log) or _from_series(run)


def replicates_of(found: Studies, place: int, template: str) -> list[float]:
    """A number of every replicate; nothing where the records do not have it."""
    values = found.records[place].get("per_replicate", {}).get(template.rpartition("/")[2], [])
    return [float(value) for value in values]


def extended_of(found: Studies, place: int) -> Mapping[str, Any]:
    """The extended pass of a record; empty where there was none."""
    return found.records[place].get("extended") or {}


def _from_series(run: Open) -> Studies | None:
    algorithms = sorted(parts["algorithm"] for name in run.names if (parts := parse(NORM, name)))
    made = [(_record(run, algorithm), _study(run, algorithm)) for algorithm in algorithms]
    if not made:
        return None
    return Studies(run=run.label, records=[record for record, _ in made], studies=tuple(study for _, study in made))


def _record(run: Open, algorithm: str) -> Mapping[str, Any]:
    """As much of a record as the series give."""
    told = {
        template.rpartition("/")[2]: _values(run, template, algorithm) for template in (NORM, PROJECTION, SIGNED_ESS)
    }
    return {"config": {"label": algorithm}, "per_replicate": {name: values for name, values in told.items() if values}}


def _study(run: Open, algorithm: str) -> Study:
    readings = {template: _reading(run, template, algorithm) for template in (TRACE, SNR, ESS, TOP_SHARE)}
    return Study(
        name=algorithm,
        config={"label": algorithm},
        series={template: _series(_values(run, template, algorithm)) for template in (NORM, PROJECTION)},
        readings={template: reading for template, reading in readings.items() if reading.value is not None},
        controls={},
        bias=(),
        num_units=None,
    )


def _values(run: Open, template: str, algorithm: str) -> list[float]:
    name = key(template, algorithm=algorithm)
    return [float(value) for value in run.log.series(name)[1]] if name in run.names else []


def _series(values: list[float]) -> Series:
    return Series(
        values=tuple(values),
        mean=float(np.mean(values)) if values else math.nan,
        std=float(np.std(values)) if len(values) > 1 else math.nan,
    )


def _reading(run: Open, template: str, algorithm: str) -> Reading:
    ends = [template, *((f"{template}_low", f"{template}_high") if template in (TRACE, SNR) else ())]
    found = [next(iter(_values(run, end, algorithm)), None) for end in ends]
    return Reading(value=found[0], low=found[1] if len(found) > 1 else None, high=found[2] if len(found) > 1 else None)
