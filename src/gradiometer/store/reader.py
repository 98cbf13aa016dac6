"""The reader: a run as numpy arrays, while it is written or years later, from any folder."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gradiometer.errors import NotARun, RunNotFound, UnknownName, close_names
from gradiometer.records import Cosine, Event, Evidence, Finding, Summary, Table, Vector
from gradiometer.store import database
from gradiometer.store.readable import Floats, Ints, Readable, unknown_step
from gradiometer.store.strictjson import from_json
from gradiometer.store.thinning import Thinned, bucket_edges, thin, whole

__all__ = ["Run", "finding_of", "load", "nothing_at"]

SUMMARIES = """
SELECT name, count, nans,
    newest, (SELECT value FROM points WHERE series_id = id AND step = newest),
    mean, low, high
FROM series JOIN (
    SELECT series_id, count(*) AS count, count(*) - count(value) AS nans, max(step) AS newest,
        avg(value) AS mean, min(value) AS low, max(value) AS high
    FROM points GROUP BY series_id
) ON series_id = id
ORDER BY name
"""
MOST_NAMES = 1_000
"""Of a folder, among which a mistyped one is looked for."""
IN_PYTHON = 20_000
"""Points up to which it is quicker to fetch a series than to let SQLite look at it bucket by bucket."""
INFINITIES = (float("inf"), float("-inf"))
COLUMNS = ("wall_time", "env_steps", "rollout", "epoch")


def load(path: str | os.PathLike[str]) -> Run:
    """Open a run for reading: its folder, or the `run.db` in it."""
    return Run(_locate(Path(path)))


class Run(Readable):
    """A run, read-only. Each call sees what was on disk when it was made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = database.open_for_reading(path)
        self._finalizer = weakref.finalize(self, self._db.close)

    @property
    def name(self) -> str:
        """What people call the run: its folder's name, or the file's when it was renamed."""
        return self.path.resolve().parent.name if self.path.name == database.DATABASE_NAME else self.path.stem

    @property
    def facts(self) -> dict[str, Any]:
        """Config, versions, git, seed, hardware, schema_version."""
        return {key: from_json(value) for key, value in self._rows("SELECT key, value FROM run ORDER BY key")}

    @property
    def newest_step(self) -> int | None:
        """The last step on disk; None before the first."""
        step: int | None = self._rows("SELECT max(step) FROM steps")[0][0]
        return step

    @property
    def first_step(self) -> int | None:
        """The first step on disk; None before there is one."""
        step: int | None = self._rows("SELECT min(step) FROM steps")[0][0]
        return step

    def names(self) -> list[str]:
        """Every series of the run, in order."""
        return [name for (name,) in self._rows("SELECT name FROM series ORDER BY name")]

    def series(self, name: str) -> tuple[Ints, Floats]:
        """The steps and values of a series; NaN where a NaN was recorded, nothing where nothing was."""
        return self.part(name)

    def part(self, name: str, first: int | None = None, last: int | None = None) -> tuple[Ints, Floats]:
        """The points of a series from step `first` to step `last`, both included."""
        return self._part(self._id(name), first, last)

    def thinned(self, name: str, most: int, first: int | None = None, last: int | None = None) -> Thinned:
        """The same in at most `most` points; what is longer comes in buckets with their extremes. A million takes 0.2 s."""
        series = self._id(name)
        steps, values = self._part(series, first, last, limit=max(most, IN_PYTHON) + 1)
        if len(steps) <= most:
            return whole(steps, values)
        if len(steps) <= IN_PYTHON:
            return thin(steps, values, bucket_edges(int(steps[0]), int(steps[-1]), most))
        newest = self._last_step(series, last)
        return self._buckets(series, bucket_edges(int(steps[0]), newest, most).tolist(), newest)

    def latest(self, name: str, steps: Ints) -> Floats:
        """The value of a series at each of the steps, or where it has none there its last before; NaN before its first."""
        series = self._id(name)
        asked = "SELECT value FROM points WHERE series_id = ? AND step <= ? ORDER BY step DESC LIMIT 1"
        found = [self._rows(asked, series, step) for step in steps.tolist()]
        return _floats([rows[0][0] if rows else None for rows in found])

    def where(self, column: str, steps: Ints) -> Floats:
        """A column of `steps()` (wall_time, env_steps, rollout, epoch) at each of the steps; NaN where nobody said."""
        asked = f"SELECT {COLUMNS[COLUMNS.index(column)]} FROM steps WHERE step = ?"
        found = [self._rows(asked, step) for step in steps.tolist()]
        return _floats([rows[0][0] if rows else None for rows in found])

    def steps(self) -> dict[str, Any]:
        """Where each step lies, as columns: step, wall_time, env_steps, rollout, epoch; NaN where nobody said."""
        rows = self._rows("SELECT step, wall_time, env_steps, rollout, epoch FROM steps ORDER BY step")
        columns = {"step": np.array([row[0] for row in rows], dtype=np.int64)}
        return columns | {name: _floats([row[place] for row in rows]) for place, name in enumerate(COLUMNS, 1)}

    def summaries(self) -> list[Summary]:
        """Each series in a line, in order of name."""
        return [
            Summary(
                name=name, count=count, nan_count=nans, last_step=step,
                last=_float(last), mean=_float(mean), min=_float(low), max=_float(high),
            )
            for name, count, nans, step, last, mean, low, high in self._rows(SUMMARIES)
        ]  # fmt: skip

    def events(self, kind: str | None = None) -> list[Event]:
        """What happened, in the order it was recorded."""
        rows = self._rows(
            "SELECT step, kind, message, detail FROM events WHERE kind = coalesce(?, kind) ORDER BY id", kind
        )
        return [Event(step=step, kind=of, message=text, detail=from_json(more)) for step, of, text, more in rows]

    def findings(self) -> list[Finding]:
        """What the live doctor found, first found first."""
        return [finding_of(from_json(text)) for (text,) in self._rows("SELECT json FROM findings ORDER BY id")]

    def table_names(self) -> list[str]:
        """Every table of the run, in order."""
        return [name for (name,) in self._rows("SELECT DISTINCT name FROM tables ORDER BY name")]

    def table(self, name: str, step: int | None = None) -> Table:
        """A table at a step; the latest unless told."""
        wanted = "SELECT step, json FROM tables WHERE name = ? AND step = coalesce(?, step) ORDER BY step DESC LIMIT 1"
        rows = self._rows(wanted, name, step)
        if not rows:
            raise self._unknown("table", name, step, self.table_names())
        return Table(step=rows[0][0], name=name, content=from_json(rows[0][1]))

    def tables(self, name: str) -> list[Table]:
        """A table at every step it was recorded."""
        rows = self._rows("SELECT step, json FROM tables WHERE name = ? ORDER BY step", name)
        if not rows:
            raise self._unknown("table", name, None, self.table_names())
        return [Table(step=step, name=name, content=from_json(text)) for step, text in rows]

    def vector_names(self) -> list[str]:
        """Every vector of the run, in order."""
        return [name for (name,) in self._rows("SELECT DISTINCT name FROM vectors ORDER BY name")]

    def vector_steps(self, name: str) -> Ints:
        """The steps at which a vector is kept."""
        rows = self._rows("SELECT step FROM vectors WHERE name = ? ORDER BY step", name)
        if not rows:
            raise self._unknown("vector", name, None, self.vector_names())
        return np.array([step for (step,) in rows], dtype=np.int64)

    def vector(self, name: str, step: int) -> Vector:
        """A vector at a step."""
        rows = self._rows("SELECT dtype, shape, blob FROM vectors WHERE name = ? AND step = ?", name, step)
        if not rows:
            raise self._unknown("vector", name, step, self.vector_names())
        dtype, shape, blob = rows[0]
        return Vector(step=step, name=name, values=np.frombuffer(blob, dtype=dtype).reshape(from_json(shape)).copy())

    def cosine(self, step_a: int, step_b: int, block: str = "all") -> Cosine:
        """Between the gradients of any two steps whose sketches are kept, with the sketch's own error 1/√k."""
        a, b = (self.vector(f"sketch/{block}", step).values.astype(np.float64) for step in (step_a, step_b))
        size = float(np.linalg.norm(a) * np.linalg.norm(b))
        value = float(a @ b) / size if size > 0 else float("nan")
        return Cosine(value=value, error=float(1 / np.sqrt(len(a))))

    @contextmanager
    def still(self) -> Iterator[None]:
        """Within it every call sees the same moment, also of a run that is being written."""
        self._rows("BEGIN")
        try:
            yield
        finally:
            self._rows("COMMIT")

    def close(self) -> None:
        """Let the file go; twice is fine."""
        self._finalizer()

    def _id(self, name: str) -> int:
        known = self._rows("SELECT id FROM series WHERE name = ?", name)
        if not known:
            raise UnknownName("series", name, self.names())
        return int(known[0][0])

    def _part(self, series: int, first: int | None, last: int | None, limit: int = -1) -> tuple[Ints, Floats]:
        asked = "SELECT step, value FROM points WHERE series_id = ? AND step BETWEEN ? AND ? ORDER BY step LIMIT ?"
        ends = (database.FIRST_STEP if first is None else first, database.LAST_STEP if last is None else last)
        rows = self._rows(asked, series, *ends, limit)
        return np.array([step for step, _ in rows], dtype=np.int64), _floats([value for _, value in rows])

    def _last_step(self, series: int, last: int | None) -> int:
        asked = "SELECT max(step) FROM points WHERE series_id = ? AND step <= ?"
        return int(self._rows(asked, series, database.LAST_STEP if last is None else last)[0][0])

    def _buckets(self, series: int, starts: list[int], newest: int) -> Thinned:
        """A query a bucket: SQLite sorts what it groups, and that takes three times as long."""
        values = "SELECT avg(value), min(value), max(value), count(*) - count(value) FROM points "
        within = "WHERE series_id = ? AND step BETWEEN ? AND ?"
        found = []
        for start, end in zip(starts, [*(later - 1 for later in starts[1:]), newest], strict=True):
            step = self._rows(f"SELECT max(step) FROM points {within}", series, start, end)[0][0]
            if step is None:
                continue
            mean, low, high, nans = self._rows(values + within, series, start, end)[0]
            if low in INFINITIES or high in INFINITIES:
                part = thin(*self._part(series, start, end), np.array([start]))
                found.append((step, part.mean[0], part.low[0], part.high[0], True))
            else:
                found.append((step, mean if mean is None else min(max(mean, low), high), low, high, nans > 0))
        steps, mean, low, high, broken = zip(*found, strict=True)
        return Thinned(
            steps=np.array(steps, dtype=np.int64), mean=_floats(list(mean)), low=_floats(list(low)),
            high=_floats(list(high)), broken=np.array(broken, dtype=np.bool_), whole=False,
        )  # fmt: skip

    def _rows(self, statement: str, *parameters: Any) -> list[Any]:
        with database.translated(self.path):
            return self._db.execute(statement, parameters).fetchall()

    def _unknown(self, kind: str, name: str, step: int | None, known: list[str]) -> UnknownName:
        if step is None or name not in known:
            return UnknownName(kind, name, known)
        steps = self._rows(f"SELECT step FROM {kind}s WHERE name = ? ORDER BY step", name)
        return unknown_step(kind, name, step, (number for (number,) in steps))


def _locate(path: Path) -> Path:
    if path.is_dir():
        file = path / database.DATABASE_NAME
        if file.exists():
            return file
        inside = _runs_in(path)
        if inside:
            shown = ", ".join(inside[:10]) + (f" and {len(inside) - 10} more" if len(inside) > 10 else "")
            raise NotARun(f"{path} is not a run but a folder of runs: open one of {shown}")
        raise NotARun(f"{path} is not a run: no {database.DATABASE_NAME} in it")
    if not path.exists():
        raise RunNotFound(nothing_at(path))
    return path


def nothing_at(path: Path) -> str:
    """Of a path where nothing is: the names beside it that are close, or the folder that is missing."""
    if not path.parent.is_dir():
        return f"no run at {path}: there is no folder {path.parent}"
    close = close_names(path.name, (each.name for each in islice(path.parent.iterdir(), MOST_NAMES)))
    found = " or ".join(repr(str(path.parent / name)) for name in close)
    return f"no run at {path}" + (f"; did you mean {found}?" if close else "")


def _runs_in(folder: Path) -> list[str]:
    return sorted(file.parent.name for file in folder.glob(f"*/{database.DATABASE_NAME}"))


def finding_of(content: dict[str, Any]) -> Finding:
    """A finding from its JSON."""
    lists = {name: tuple(content[name]) for name in ("fix", "suppressed", "references")}
    evidence = tuple(Evidence(**item) for item in content["evidence"])
    return Finding(**{**content, **lists, "evidence": evidence})


def _floats(values: list[float | None]) -> Floats:
    return np.array(values, dtype=np.float64)  # numpy reads None as NaN


def _float(value: float | None) -> float:
    return float("nan") if value is None else value
