"""A loss as its graph had it, read from a run: its terms, what each is multiplied by, and how much
of each arrives in which block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from gradiometer.errors import UsageError
from gradiometer.metrics import key, parse
from gradiometer.store.importers import Log
from gradiometer.store.reader import Run

__all__ = ["LossTerm", "Wiring", "read_wiring", "wiring_steps"]

TABLE = "wiring"
BY_HAND = "terms"
"""The table of terms that `meter.terms` was given: path, zero or none by term and block."""
NORM, RAW = "grad/<block>/term/<term>/norm", "grad/<block>/norm/raw"
VALUE, ERROR = "grad/<block>/term/<term>/loss", "grad/all/term/additivity_error"
MOST_STEPS = 400
BROADCAST = "shapes-broadcast"


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
    wrong: str = ""
    """What is proved of it besides: shapes that broadcast, and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The losses of one step."""

    step: int
    loss: float | None
    terms: tuple[LossTerm, ...]
    additivity_error: float | None
    backwards: int


def read_wiring(run: Run | Log, step: int | None = None) -> Wiring:
    """The newest wiring, or that of a step; of terms that were given by hand what is known."""
    names = run.table_names() if isinstance(run, Run) else []
    if not isinstance(run, Run) or not {TABLE, BY_HAND} & set(names):
        raise UsageError(
            f"{run.path} has no wiring: it is read off the graph of a loss when a training is"
            " watched. Record one: gradiometer run SCRIPT.py"
        )
    kept = TABLE if TABLE in names else BY_HAND
    tables = run.tables(kept)
    known = [table for table in tables if step is None or table.step <= step]
    if not known:
        raise UsageError(
            f"{run.path} has no wiring at step {step}: the first is of step {tables[0].step}"
        )
    newest = run.newest_step if step is None else step
    at = known[-1].step if newest is None else newest
    if kept == BY_HAND:
        return _by_hand(run, known[-1].content, at)
    content = known[-1].content
    rows = [{**row, "value": _value(run, row, at)} for row in content["terms"]]
    alone = sum(bool(row["alive"]) for row in rows) == 1
    return Wiring(
        step=known[-1].step,
        loss=_loss(content, rows),
        terms=tuple(_term(run, row, at, alone=alone) for row in rows),
        additivity_error=content["additivity_error"],
        backwards=content["backward"],
    )


def _value(run: Run, row: Mapping[str, Any], at: int) -> float | None:
    """What a term added at the step; where that was not written, when the record was."""
    found = _latest(run, key(VALUE, block="all", term=row["name"]), at)
    return row["value"] if found is None else found


def _loss(content: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The loss of the step, from its terms; that of the record where one of them has no value."""
    values, kept = ([row["value"] for row in each] for each in (rows, content["terms"]))
    whole: float | None = content["loss"]
    return whole if values == kept or None in values else sum(values)


def wiring_steps(run: Run | Log) -> list[int]:
    """The steps at which the loss was split, at most `MOST_STEPS` of them, the newest among them;
    of a loss of one term those at which its gradient was measured."""
    if not isinstance(run, Run):
        return []
    names = run.names()
    split = [name for name in names if (parse(NORM, name) or {}).get("block") == "all"]
    read = split or [name for name in (key(RAW, block="all"),) if name in names]
    steps = sorted({int(step) for name in read for step in run.series(name)[0]})
    wanted = np.linspace(0, len(steps) - 1, min(len(steps), MOST_STEPS)).round().tolist()
    return [steps[int(place)] for place in wanted]


def _by_hand(run: Run, states: Mapping[str, Mapping[str, str]], at: int) -> Wiring:
    rows: list[dict[str, Any]] = [
        {
            "name": term,
            "role": None,
            "coefficient": None,
            "value": _latest(run, key(VALUE, block="all", term=term), at),
            "alive": any(state != "none" for state in reach.values()),
            "reaches": [block for block, state in reach.items() if state != "none"],
            "named_by": "hand",
            "backward": 1,
        }
        for term, reach in states.items()
    ]
    values = [row["value"] for row in rows]
    return Wiring(
        step=at,
        loss=None if None in values else sum(values),
        terms=tuple(_term(run, row, at, alone=len(rows) == 1) for row in rows),
        additivity_error=_latest(run, ERROR, at),
        backwards=1,
    )


def _term(run: Run, row: Mapping[str, Any], at: int, *, alone: bool) -> LossTerm:
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
        wrong=_wrong(run, row["name"]),
    )


def _wrong(run: Run, term: str) -> str:
    for event in run.events(BROADCAST):
        known = event.detail
        if known.get("name") != term or not isinstance(known.get("shapes"), list):
            continue
        first, second, result = (tuple(shape) for shape in (*known["shapes"][:2], known["result"]))
        line = known.get("line")
        where = f" ({PurePath(str(known.get('file'))).name}:{line})" if line else ""
        return f"broadcasts {first} against {second} to {result}{where}"
    return ""


def _norm(run: Run, block: str, term: str, at: int, *, alone: bool) -> float | None:
    """The newest up to the step; of a loss of one term it is that of the gradient itself."""
    name = key(NORM, block=block, term=term)
    return _latest(run, name if name in run.names() or not alone else key(RAW, block=block), at)


def _latest(run: Run, name: str, at: int) -> float | None:
    """The newest value up to a step."""
    if name not in run.names():
        return None
    value = float(run.latest(name, np.array([at], dtype=np.int64))[0])
    return None if np.isnan(value) else value
