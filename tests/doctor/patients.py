"""Made-up patients for the doctor: a run through the real writer, with the series a test asks
for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradiometer.records import Event, Row, Table
from gradiometer.store.reader import Run
from gradiometer.store.reader import load as load_run
from gradiometer.store.writer import Writer
from gradiometer_labs.synthetic import ar1

__all__ = ["ar1", "patient"]

Values = Any
"""An array-like at steps 0, 1, 2, ...; or a pair (steps, values)."""


def patient(
    folder: Path,
    series: Mapping[str, Values],
    *,
    facts: Mapping[str, Any] | None = None,
    events: Sequence[Event] = (),
    tables: Sequence[Table] = (),
) -> Run:
    """A run on disk that holds exactly this. NaN in an array is a recorded NaN; what is not in it
    is missing."""
    rows: dict[int, dict[str, float]] = {}
    for name, given in series.items():
        steps, values = given if isinstance(given, tuple) else (range(len(given)), given)
        for step, value in zip(steps, values, strict=True):
            rows.setdefault(int(step), {})[name] = float(value)
    number = sum(1 for _ in folder.iterdir()) if folder.exists() else 0
    made = folder / f"patient-{number}"
    writer = Writer(made, facts={"config": dict(facts or {})})
    for step in sorted(rows):
        writer.put(Row(step=step, wall_time=float(step), values=rows[step]))
    for record in (*events, *tables):
        writer.put(record)
    writer.close()
    return load_run(made)
