"""A log that somebody else wrote, in memory, with the reading interface of our own `Run`."""

from __future__ import annotations

import hashlib
import math
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gradiometer.errors import UnknownName, UsageError
from gradiometer.records import Cosine, Event, Finding, Row, Summary, Table, Vector
from gradiometer.store.columns import Columns
from gradiometer.store.readable import Floats, Ints, Readable, unknown_step

__all__ = ["ENV_STEPS", "INT64", "SPOKEN", "Gathered", "Log", "flat", "is_table", "short_id"]

INT64 = range(-(2**63), 2**63)
"""What a step can be."""

LARGEST = int(np.finfo(np.float64).max)
SPOKEN = {sign + word: number for sign in ("", "+", "-") for word, number in (("nan", math.nan), ("inf", math.inf))}
SPOKEN |= {sign + "infinity": number for sign, number in (("", math.inf), ("+", math.inf), ("-", -math.inf))}
SPOKEN["-inf"] = -math.inf
"""How logs spell the numbers that JSON does not know, in small letters."""
ENV_STEPS = "environment steps"


class Gathered:
    """What a reader found so far: numbers in columns, tables, the steps of all rows, and names of what is neither."""

    def __init__(self) -> None:
        self.columns, self.clock = Columns(), Columns()
        self.steps = array("q")
        self.tables: dict[str, dict[int, Any]] = {}
        self.left_out: set[str] = set()

    def row(self, step: int, values: Mapping[str, Any], where: str) -> None:
        """Sort one row in; `where` begins the error on what cannot be kept."""
        if step not in INT64:
            raise UsageError(f"{where}: a step of {len(str(abs(step)))} digits does not fit into 64 bits")
        self.steps.append(step)
        for name, value in flat(values, where).items():
            number = _number(value)
            if number is not None:
                self.columns.add(name, step, number)
            elif is_table(value):
                self.tables.setdefault(name, {})[step] = {"columns": value["columns"], "data": value["data"]}
            else:
                self.left_out.add(name)


class Log(Readable):
    """What another tool logged, read like a run: it has a run's names, but neither events, findings nor vectors.

    Rows of values by step, sorted into series and tables; rows of the same step are one row, the last word counts.

    A nested value is named by its path, `a/b`. A dict with `columns` and `data` is a table. `left_out` names what was
    logged and is neither a number nor a table. `facts["imported"]` says how the log was read: `format`, `library` (whose
    names they are), `step` (the column that counts the steps), `x_axis` (what it counts), `replaced` (how many values gave
    way to a later one of the same step), `returns` (where steps go backwards, as after a resume).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str,
        run_id: str,
        rows: Iterable[tuple[int, Mapping[str, Any]]] | Gathered,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = Path(path)
        self.name = name
        self.run_id = run_id
        self.facts: dict[str, Any] = dict(facts or {})
        gathered = rows if isinstance(rows, Gathered) else self._gather(rows)
        self._columns, self._clock, self._tables = gathered.columns, gathered.clock, gathered.tables
        self._columns.finish()
        self._clock.finish()
        self._steps: Ints = np.unique(np.frombuffer(gathered.steps, dtype=np.int64))
        self.left_out: tuple[str, ...] = tuple(sorted(gathered.left_out))
        if "imported" in self.facts:
            told = {"replaced": self._columns.replaced, "returns": [list(pair) for pair in self._columns.returns]}
            self.facts["imported"] = {**self.facts["imported"], **{key: value for key, value in told.items() if value}}

    @property
    def newest_step(self) -> int | None:
        """The last step of the log; None when it has none."""
        return int(self._steps[-1]) if len(self._steps) else None

    @property
    def first_step(self) -> int | None:
        """The first step of the log; None when it has none."""
        return int(self._steps[0]) if len(self._steps) else None

    def names(self) -> list[str]:
        """Every series of the log, in order."""
        return self._columns.names()

    def series(self, name: str) -> tuple[Ints, Floats]:
        """The steps and values of a series; NaN where a NaN was logged, nothing where nothing was."""
        if name not in self._columns:
            raise UnknownName("series", name, self._columns.names())
        return self._columns.series(name)

    def table_names(self) -> list[str]:
        """Every table of the log, in order."""
        return sorted(self._tables)

    def table(self, name: str, step: int | None = None) -> Table:
        """A table at a step; the latest unless told."""
        found = {table.step: table for table in self.tables(name)}
        if step is None:
            return found[max(found)]
        if step not in found:
            raise unknown_step("table", name, step, found)
        return found[step]

    def tables(self, name: str) -> list[Table]:
        """A table at every step it was logged."""
        if name not in self._tables:
            raise UnknownName("table", name, self._tables)
        return [Table(step=step, name=name, content=content) for step, content in sorted(self._tables[name].items())]

    def rows(self) -> Iterator[Row]:
        """Step by step what was logged, in order; when it was is known where the log says so."""
        where = self.steps()
        for place, (step, values) in enumerate(self._columns.rows(self._steps)):
            env_steps = step if self._counts_env_steps else None
            yield Row(step=step, wall_time=float(where["wall_time"][place]), values=values, env_steps=env_steps)

    def steps(self) -> dict[str, Any]:
        """The steps, with the columns of a run's: NaN where nobody said when and where they lie."""
        columns = {"step": np.array(self._steps)}
        others = ("wall_time", "env_steps", "rollout", "epoch")
        columns |= {name: np.full(len(self._steps), np.nan) for name in others}
        for name in self._clock.names():
            at, values = self._clock.series(name)
            columns[name][np.searchsorted(self._steps, at)] = values
        if self._counts_env_steps:
            columns["env_steps"] = self._steps.astype(np.float64)
        return columns

    @property
    def _counts_env_steps(self) -> bool:
        return bool(self.facts.get("imported", {}).get("x_axis") == ENV_STEPS)

    def summaries(self) -> list[Summary]:
        """Each series in a line, in order of name."""
        return [_summary(name, *self.series(name)) for name in self.names()]

    def events(self, kind: str | None = None) -> list[Event]:
        """None: a log of numbers has no events."""
        return []

    def findings(self) -> list[Finding]:
        """None: no doctor was there."""
        return []

    def vector_names(self) -> list[str]:
        """None: a log of numbers has no sketches and no histograms."""
        return []

    def vector_steps(self, name: str) -> Ints:
        """An error, as for every name a run does not have."""
        raise UnknownName("vector", name, ())

    def vector(self, name: str, step: int) -> Vector:
        """An error, as for every name a run does not have."""
        raise UnknownName("vector", name, ())

    def cosine(self, step_a: int, step_b: int, block: str = "all") -> Cosine:
        """An error: there are no sketches to read it off."""
        raise UnknownName("vector", f"sketch/{block}", ())

    def close(self) -> None:
        """Nothing to let go; here because a `Run` has it."""

    def _gather(self, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> Gathered:
        gathered = Gathered()
        for step, values in rows:
            gathered.row(step, values, f"{self.path}, step {step}" if step in INT64 else str(self.path))
        return gathered


def is_table(value: Any) -> bool:
    """Whether a logged value is a table: a dict that has its columns and its rows."""
    return isinstance(value, Mapping) and isinstance(value.get("columns"), list) and isinstance(value.get("data"), list)


def flat(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Each logged value by its path, `a/b`; flat values stay as they are. `where` begins the error on what cannot be kept."""
    try:
        found = dict(_leaves(values))
    except RecursionError as problem:
        raise UsageError(f"{where}: values are nested too deeply to be read") from problem
    for name, value in found.items():
        if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
            raise UsageError(f"{where}: {name} has {len(str(abs(value)))} digits, too large for a float")
    return found


def short_id(*parts: Any) -> str:
    """Eight hexadecimal digits that stand for the parts: the same for the same parts, on every machine."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:8]


def _summary(name: str, steps: Ints, values: Floats) -> Summary:
    known = values[~np.isnan(values)]
    with np.errstate(invalid="ignore"):  # the mean of both infinities is NaN
        mean, low, high = (float(f(known)) if len(known) else float("nan") for f in (np.mean, np.min, np.max))
    return Summary(
        name=name, count=len(values), nan_count=len(values) - len(known), last_step=int(steps[-1]),
        last=float(values[-1]), mean=mean, min=low, max=high,
    )  # fmt: skip


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each logged value with its path. A null is no value; a dict with a `_type` is a picture or a histogram, not rows."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if value is None:
            continue
        if isinstance(value, Mapping) and "_type" not in value and not is_table(value):
            yield from _leaves(value, f"{name}/")
        else:
            yield name, value


def _number(value: Any) -> float | None:
    if isinstance(value, bool | int | float):
        return float(value)
    return SPOKEN.get(value.strip().lower()) if isinstance(value, str) else None
