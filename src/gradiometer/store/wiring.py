"""A loss as its graph had it, read from a run: its terms, what each is multiplied by, and how much
of each arrives in which block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradiometer.errors import UsageError
from gradiometer.metrics import key
from gradiometer.store.importers import Log
from gradiometer.store.reader import Run

__all__ = ["LossTerm", "Wiring", "read_wiring"]

TABLE = "wiring"
NORM, RAW = "grad/<block>/term/<term>/norm", "grad/<block>/norm/raw"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerm:
    """One part of a loss."""

    name: str
    role: str | None
    coefficient: float | None
    value: float | None
    """What it added to the loss, coefficient included."""
    alive: bool
    """Whether it has a gradient at all."""
    reaches: Mapping[str, float | None]
    """The norm of its gradient by block; None where it was not measured."""
    named_by: str
    backward: int
    """Which backward of the step it was in, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The losses of one step."""

    step: int
    loss: float | None
    terms: tuple[LossTerm, ...]
    additivity_error: float | None
    backwards: int


def read_wiring(run: Run | Log, step: int | None = None) -> Wiring:
    """The newest wiring, or that of a step."""
    if not isinstance(run, Run) or TABLE not in run.table_names():
        raise UsageError(
            f"{run.path} has no wiring: it is read off the graph of a loss when a training is"
            " watched. Record one: gradiometer run SCRIPT.py"
        )
    tables = run.tables(TABLE)
    known = [table for table in tables if step is None or table.step <= step]
    if not known:
        raise UsageError(
            f"{run.path} has no wiring at step {step}: the first is of step {tables[0].step}"
        )
    content = known[-1].content
    at = run.newest_step if step is None else step
    rows = content["terms"]
    alone = sum(bool(row["alive"]) for row in rows) == 1
    return Wiring(
        step=known[-1].step,
        loss=content["loss"],
        terms=tuple(_term(run, row, at, alone=alone) for row in rows),
        additivity_error=content["additivity_error"],
        backwards=content["backward"],
    )


def _term(run: Run, row: Mapping[str, Any], at: int | None, *, alone: bool) -> LossTerm:
    reaches = {
        block: _norm(run, block, row["name"], at, alone=alone)
        for block in row["reaches"]
        if block != "all" or row["reaches"] == ["all"]
    }
    return LossTerm(
        name=row["name"],
        role=row["role"],
        coefficient=row["coefficient"],
        value=row["value"],
        alive=row["alive"],
        reaches=reaches,
        named_by=row["named_by"],
        backward=row["backward"],
    )


def _norm(run: Run, block: str, term: str, at: int | None, *, alone: bool) -> float | None:
    """The newest up to the step; of a loss of one term it is that of the gradient itself."""
    names = set(run.names())
    name = key(NORM, block=block, term=term)
    if name not in names and alone:
        name = key(RAW, block=block)
    if name not in names:
        return None
    steps, values = run.series(name)
    last = len(steps) if at is None else int(np.searchsorted(steps, at, side="right"))
    return float(values[last - 1]) if last else None
