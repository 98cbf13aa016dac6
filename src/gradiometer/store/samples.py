"""Samples of texts, read from a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gradiometer.store.importers import Log
from gradiometer.store.reader import Run

__all__ = ["TextSample", "read_samples", "sample_steps"]

TABLE = "samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSample:
    """What was asked, what was answered, what that was paid and how the update weighs it."""

    step: int
    prompt: str
    completion: str
    reward: float | None
    credit: float | None


def sample_steps(run: Run | Log) -> list[int]:
    """The steps that have samples."""
    there = isinstance(run, Run) and TABLE in run.table_names()
    return [table.step for table in run.tables(TABLE)] if there else []


def read_samples(run: Run | Log, step: int | None = None) -> list[TextSample]:
    """The samples of a step, or all of them; what is not as we write it is left out."""
    if not isinstance(run, Run) or TABLE not in run.table_names():
        return []
    tables = run.tables(TABLE)
    asked = [table for table in tables if step is None or table.step == step]
    return [sample for table in asked for sample in _rows(table.step, table.content)]


def _rows(step: int, content: Any) -> Iterator[TextSample]:
    rows = content.get("rows", ()) if isinstance(content, Mapping) else ()
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, Mapping):
            yield TextSample(
                step=step,
                prompt=str(row.get("prompt", "")),
                completion=str(row.get("completion", "")),
                reward=_number(row.get("reward")),
                credit=_number(row.get("credit")),
            )


def _number(value: Any) -> float | None:
    there = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if there else None
