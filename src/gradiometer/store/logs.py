"""A log that somebody else wrote, in memory, with the reading interface of our own `Run`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gradiometer.errors import UnknownName, UsageError
from gradiometer.records import Cosine, Event, Finding, Row, Summary, Table, Vector
from gradiometer.store.readable import Floats, Ints, Readable, unknown_step
from gradiometer.store.strictjson import SPOKEN

__all__ = ["INT64", "Log", "flat", "is_table", "short_id"]

INT64 = range(-(2**63), 2**63)
"""What a step can be."""

LARGEST = int(np.finfo(np.float64).max)


class Log(Readable):
    """What another tool logged, read like a run: it has a run's names, but neither events, findings nor vectors.

    Rows of values by step, sorted into series and tables; rows of the same step are one row, the last word counts.

    A nested value is named by its path, `a/b`. A dict with `columns` and `data` is a table. `left_out` names what was
    logged and is neither a number nor a table.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str,
        run_id: str,
        rows: Iterable[tuple[int, Mapping[str, Any]]],
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = Path(path)
        self.name = name
        self.run_id = run_id
        self.facts: dict[str, Any] = dict(facts or {})
        self._points: dict[str, dict[int, float]] = {}
        self._tables: dict[str, dict[int, Any]] = {}
        self._steps: set[int] = set()
        left_out: set[str] = set()
        for step, values in rows:
            if step not in INT64:
                raise UsageError(f"{self.path}: a step of {len(str(abs(step)))} digits does not fit into 64 bits")
            self._steps.add(step)
            left_out |= self._sort_in(step, flat(values, f"{self.path}, step {step}"))
        self.left_out: tuple[str, ...] = tuple(sorted(left_out))

    @property
    def newest_step(self) -> int | None:
        """The last step of the log; None when it has none."""
        return max(self._steps, default=None)

    def names(self) -> list[str]:
        """Every series of the log, in order."""
        return sorted(self._points)

    def series(self, name: str) -> tuple[Ints, Floats]:
        """The steps and values of a series; NaN where a NaN was logged, nothing where nothing was."""
        if name not in self._points:
            raise UnknownName("series", name, self._points)
        points = sorted(self._points[name].items())
        steps, values = ([point[place] for point in points] for place in (0, 1))
        return np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)

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
        """Step by step what was logged, in order; when it was is not known."""
        for step in sorted(self._steps):
            values = {name: points[step] for name, points in self._points.items() if step in points}
            yield Row(step=step, wall_time=float("nan"), values=values)

    def steps(self) -> dict[str, Any]:
        """The steps, with the columns of a run's: NaN, because nobody said when and where they lie."""
        steps = np.array(sorted(self._steps), dtype=np.int64)
        others = ("wall_time", "env_steps", "rollout", "epoch")
        return {"step": steps} | {name: np.full(len(steps), np.nan) for name in others}

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

    def _sort_in(self, step: int, values: Mapping[str, Any]) -> set[str]:
        left_out = set()
        for name, value in values.items():
            number = _number(value)
            if number is not None:
                self._points.setdefault(name, {})[step] = number
            elif is_table(value):
                self._tables.setdefault(name, {})[step] = {"columns": value["columns"], "data": value["data"]}
            else:
                left_out.add(name)
        return left_out


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
    return SPOKEN.get(value) if isinstance(value, str) else None
