"""The reader: a run as numpy arrays, while it is written or years later, from any folder."""

from __future__ import annotations

import os
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from gradiometer.errors import (
    GradiometerWarning,
    NotARun,
    RunDamaged,
    RunNotFound,
    UnknownName,
    UsageError,
    close_names,
)
from gradiometer.records import Cosine, Event, Finding, Summary, Table, Vector
from gradiometer.store import cells, checksums, database
from gradiometer.store.checksums import CheckedSpan, Damage
from gradiometer.store.opening import check_readable
from gradiometer.store.thinning import Floats, Ints, Thinned, bucket_edges, thin, whole
from gradiometer.words import some

__all__ = ["Floats", "Ints", "Reader", "Run", "load", "nothing_at", "unknown_step"]

SUMMARIES = """
SELECT name, count, nans,
    newest, (SELECT value FROM points WHERE series_id = id AND step = newest),
    mean, low, high
FROM series JOIN (
    SELECT series_id, count(*) AS count, count(*) - count(value) AS nans, max(step) AS newest,
        avg(value) AS mean, min(value) AS low, max(value) AS high
    FROM points WHERE series_id IN (SELECT id FROM series) GROUP BY series_id
) AS counted ON series_id = id
ORDER BY name
"""
SPANS = """
SELECT id, first_step, last_step, points, crc FROM series LEFT JOIN checks ON series_id = id
WHERE name = ? ORDER BY first_step
"""
NO_SPANS = "SELECT id, NULL, NULL, NULL, NULL FROM series WHERE name = ?"
MOST_NAMES = 1_000
"""Of a folder, among which a mistyped one is looked for."""
IN_PYTHON = 20_000
"""Points up to which fetching a series is quicker than SQLite looking bucket by bucket."""
INFINITIES = (float("inf"), float("-inf"))
COLUMNS = ("wall_time", "env_steps", "rollout", "epoch")
DOCUMENT_KINDS = {"tables": "itt", "vectors": "itttb", "events": "ifttt", "findings": "ttnt"}
NAMED = ("name", "kind", "finding", "key")

T = TypeVar("T")


def load(path: str | os.PathLike[str]) -> Run:
    """Open a run for reading: its folder, or the `run.db` in it."""
    return Run(_locate(Path(path)))


class Reader(ABC):
    """Series and tables by step; a test sees that `Run` and `Log` have the same public names."""

    path: Path

    @abstractmethod
    def names(self) -> list[str]:
        """Every series, in order."""

    @abstractmethod
    def series(self, name: str) -> tuple[Ints, Floats]:
        """The steps and values of a series."""

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from gradiometer.store.notebook_view import as_html

        return as_html(self)  # type: ignore[arg-type]

    def part(
        self, name: str, first: int | None = None, last: int | None = None
    ) -> tuple[Ints, Floats]:
        """The points of a series from step `first` to step `last`, both included."""
        steps, values = self.series(name)
        start = 0 if first is None else int(np.searchsorted(steps, first))
        end = len(steps) if last is None else int(np.searchsorted(steps, last, side="right"))
        inside = slice(start, end)
        return steps[inside], values[inside]

    def thinned(
        self, name: str, most: int, first: int | None = None, last: int | None = None
    ) -> Thinned:
        """The same in at most `most` points; a longer one in buckets with their extremes."""
        steps, values = self.part(name, first, last)
        if len(steps) <= most:
            return whole(steps, values)
        return thin(steps, values, bucket_edges(int(steps[0]), int(steps[-1]), most))

    def latest(self, name: str, steps: Ints) -> Floats:
        """The value of a series at each step, or its last one before; NaN before its first."""
        own, values = self.series(name)
        places = np.searchsorted(own, steps, side="right") - 1
        if not len(own):
            return np.full(len(steps), np.nan)
        return np.where(places >= 0, values[places], np.nan)

    def where(self, column: str, steps: Ints) -> Floats:
        """A column of `steps()`, such as env_steps, at each of the steps; NaN where unknown."""
        table = self.steps()
        places = np.clip(np.searchsorted(table["step"], steps), 0, max(len(table["step"]) - 1, 0))
        if not len(table["step"]):
            return np.full(len(steps), np.nan)
        found: Floats = np.where(table["step"][places] == steps, table[column][places], np.nan)
        return found

    @abstractmethod
    def steps(self) -> dict[str, Any]:
        """Where each step lies, as columns: step, wall_time, env_steps, rollout, epoch."""

    @abstractmethod
    def tables(self, name: str) -> list[Table]:
        """A table at every step it was recorded."""

    @abstractmethod
    def vector(self, name: str, step: int) -> Vector:
        """A vector at a step."""

    def cosine(self, step_a: int, step_b: int, block: str = "all") -> Cosine:
        """Between the gradients of two steps whose sketches are kept, with the error 1/√k."""
        pair = (self.vector(f"sketch/{block}", step).values for step in (step_a, step_b))
        a, b = (values.astype(np.float64) for values in pair)
        size = float(np.linalg.norm(a) * np.linalg.norm(b))
        value = float(a @ b) / size if size > 0 else float("nan")
        return Cosine(value=value, error=float(1 / np.sqrt(len(a))))

    def verify(self) -> list[Damage]:
        """Everything that is not what was written; of a log without checksums nobody knows."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held open; twice is fine."""

    @contextmanager
    def still(self) -> Iterator[None]:
        """Within it every call sees the same moment, also of a run that is being written."""
        yield

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"


class Run(Reader):
    """A run, read-only. Each call sees what was on disk when it was made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db: Any = database.open_for_reading(path)
        self._finalizer = weakref.finalize(self, self._db.close)
        self.damage: list[Damage] = []
        """What was met so far that is not what was written; it is left out."""
        asked = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'checks'"
        self.has_checksums = bool(self._rows("i", asked)[0][0])
        """Runs from before 2.0 have none."""

    @property
    def name(self) -> str:
        """What people call the run: its folder's name, or the file's when it was renamed."""
        if self.path.name == database.DATABASE_NAME:
            return self.path.resolve().parent.name
        return self.path.stem

    @property
    def facts(self) -> dict[str, Any]:
        """Config, versions, git, seed, hardware, schema_version."""
        found = {}
        for key, value in self._documents("run", "tt", "ORDER BY key"):
            content = self._read(cells.parsed, value)
            if cells.fact(key, content):
                found[key] = content
        return found

    @property
    def newest_step(self) -> int | None:
        """The last step on disk; None before the first."""
        return self._one("n", "SELECT max(step) FROM steps")

    @property
    def first_step(self) -> int | None:
        """The first step on disk; None before there is one."""
        return self._one("n", "SELECT min(step) FROM steps")

    def names(self) -> list[str]:
        """Every series of the run, in order."""
        return [name for (name,) in self._rows("t", "SELECT name FROM series ORDER BY name")]

    def series(self, name: str) -> tuple[Ints, Floats]:
        """The steps and values of a series; NaN where a NaN was recorded."""
        return self.part(name)

    def part(
        self, name: str, first: int | None = None, last: int | None = None
    ) -> tuple[Ints, Floats]:
        """The points of a series from step `first` to step `last`, both included."""
        return self._part(name, first, last)[1:]

    def thinned(
        self, name: str, most: int, first: int | None = None, last: int | None = None
    ) -> Thinned:
        """The same in at most `most` points or buckets; a million points take 0.2 s."""
        series, steps, values = self._part(name, first, last, limit=max(most, IN_PYTHON) + 1)
        if len(steps) <= most:
            return whole(steps, values)
        if len(steps) <= IN_PYTHON:
            return thin(steps, values, bucket_edges(int(steps[0]), int(steps[-1]), most))
        newest = self._last_step(series, last)
        return self._buckets(series, bucket_edges(int(steps[0]), newest, most).tolist(), newest)

    def latest(self, name: str, steps: Ints) -> Floats:
        """The value of a series at each step, or its last one before; NaN before its first."""
        series, _ = self._spans(name)
        asked = "SELECT value FROM points WHERE series_id = ? AND step <= ? ORDER BY step DESC"
        asked += " LIMIT 1"
        found = [self._rows("f", asked, series, step) for step in steps.tolist()]
        return _floats([rows[0][0] if rows else None for rows in found])

    def where(self, column: str, steps: Ints) -> Floats:
        """A column of `steps()`, such as env_steps, at each of the steps; NaN where unknown."""
        asked = f"SELECT {COLUMNS[COLUMNS.index(column)]} FROM steps WHERE step = ?"
        found = [self._rows("f", asked, step) for step in steps.tolist()]
        return _floats([rows[0][0] if rows else None for rows in found])

    def steps(self) -> dict[str, Any]:
        """Where each step lies: step, wall_time, env_steps, rollout, epoch; NaN where unknown."""
        asked = f"SELECT step, {', '.join(COLUMNS)} FROM steps ORDER BY step"

        def read() -> tuple[list[CheckedSpan], Ints, Floats]:
            spans = self._checks(checksums.STEPS)
            step, *columns = self._columns("iffff", asked)
            values = np.column_stack([_floats(column) for column in columns])
            return spans, np.array(step, dtype=np.int64), values

        steps, values = self._sound(checksums.STEPS, "steps", read)
        return {"step": steps} | {name: values[:, place] for place, name in enumerate(COLUMNS)}

    def summaries(self) -> list[Summary]:
        """Each series in a line, in order of name."""
        return [
            Summary(
                name=name,
                count=count,
                nan_count=nans,
                last_step=step,
                last=_float(last),
                mean=_float(mean),
                min=_float(low),
                max=_float(high),
            )
            for name, count, nans, step, last, mean, low, high in self._rows("tiiiffff", SUMMARIES)
        ]

    def events(self, kind: str | None = None) -> list[Event]:
        """What happened, in the order it was recorded."""
        rows = self._documents("events", "ifttt", "ORDER BY id")
        return [
            Event(step=step, kind=of, message=text, detail=self._read(cells.mapping, more))
            for step, _, of, text, more in rows
            if kind is None or of == kind
        ]

    def findings(self) -> list[Finding]:
        """What the live doctor found, first found first."""
        rows = self._documents("findings", "ttnt", "ORDER BY id")
        contents = (self._read(cells.parsed, text) for *_, text in rows)
        return [self._read(cells.finding_of, content) for content in contents]

    def table_names(self) -> list[str]:
        """Every table of the run, in order."""
        rows = self._rows("t", "SELECT DISTINCT name FROM tables ORDER BY name")
        return [name for (name,) in rows]

    def table(self, name: str, step: int | None = None) -> Table:
        """A table at a step; the latest by default."""
        wanted = "WHERE name = ? AND step = coalesce(?, step) ORDER BY step DESC"
        rows = self._documents("tables", "itt", f"{wanted} LIMIT 1", name, step)
        # Of a damaged one the latest that is whole.
        rows = rows or self._documents("tables", "itt", wanted, name, step)
        if not rows:
            raise self._unknown("table", name, step, self.table_names())
        return Table(step=rows[0][0], name=name, content=self._read(cells.parsed, rows[0][2]))

    def tables(self, name: str) -> list[Table]:
        """A table at every step it was recorded."""
        rows = self._documents("tables", "itt", "WHERE name = ? ORDER BY step", name)
        if not rows:
            raise self._unknown("table", name, None, self.table_names())
        return [
            Table(step=step, name=name, content=self._read(cells.parsed, text))
            for step, _, text in rows
        ]

    def vector_names(self) -> list[str]:
        """Every vector of the run, in order."""
        rows = self._rows("t", "SELECT DISTINCT name FROM vectors ORDER BY name")
        return [name for (name,) in rows]

    def vector_steps(self, name: str) -> Ints:
        """The steps at which a vector is kept."""
        rows = self._rows("i", "SELECT step FROM vectors WHERE name = ? ORDER BY step", name)
        if not rows:
            raise self._unknown("vector", name, None, self.vector_names())
        return np.array([step for (step,) in rows], dtype=np.int64)

    def vector(self, name: str, step: int) -> Vector:
        """A vector at a step."""
        rows = self._documents("vectors", "itttb", "WHERE name = ? AND step = ?", name, step)
        if not rows:
            raise self._unknown("vector", name, step, self.vector_names())
        values = self._read(cells.array_of, *rows[0][2:])
        return Vector(step=step, name=name, values=values)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Within it every call sees the same moment, also of a run that is being written."""
        self._execute("BEGIN")
        try:
            yield
        finally:
            self._execute("COMMIT")

    def close(self) -> None:
        """Let the file go; twice is fine."""
        self._finalizer()

    def verify(self) -> list[Damage]:
        """Everything that is not what was written: what SQLite says of the file's structure, and
        every cell against its checksum."""
        problems = self._execute("PRAGMA integrity_check(100)")
        structure = [str(row[0]) for row in problems if row[0] != "ok"]
        self.damage = [Damage(kind="structure", name="run.db", why=why) for why in structure]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GradiometerWarning)
            for name in self._tried("series", "names", self.names) or ():
                self._tried("points", name, partial(self.part, name))
            for kind, read in (("steps", self.steps), ("run", lambda: self.facts)):
                self._tried(kind, kind, read)
            for table in DOCUMENT_KINDS:
                self._tried(table, table, partial(self._documents, table, DOCUMENT_KINDS[table]))
        return self.damage

    def _tried(self, kind: str, name: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except UsageError as problem:
            cause = problem.__cause__ or problem
            self.damage.append(Damage(kind=kind, name=name, why=f"cannot be read: {cause!s:.200}"))
            return None

    def _spans(self, name: str) -> tuple[int, list[CheckedSpan]]:
        """The number of a series, and its checksums."""
        rows = self._rows("innnn", SPANS if self.has_checksums else NO_SPANS, name)
        if not rows:
            raise UnknownName("series", name, self.names())
        return rows[0][0], [CheckedSpan(*row[1:]) for row in rows if row[1] is not None]

    def _checks(self, series: int) -> list[CheckedSpan]:
        if not self.has_checksums:
            return []
        asked = "SELECT first_step, last_step, points, crc FROM checks WHERE series_id = ?"
        return [
            CheckedSpan(*row) for row in self._rows("iiii", f"{asked} ORDER BY first_step", series)
        ]

    def _part(
        self, name: str, first: int | None, last: int | None, limit: int = database.LAST_STEP
    ) -> tuple[int, Ints, Floats]:
        asked = "SELECT step, value FROM points WHERE series_id = ? AND step BETWEEN ? AND ?"
        asked += " ORDER BY step LIMIT ?"
        series, spans = self._spans(name)
        low = database.FIRST_STEP if first is None else first
        high = database.LAST_STEP if last is None else last

        def read(spans: list[CheckedSpan] | None = None) -> tuple[list[CheckedSpan], Ints, Floats]:
            spans = self._spans(name)[1] if spans is None else spans
            steps, values = self._columns("if", asked, series, low, high, limit)
            return spans, np.array(steps, dtype=np.int64), _floats(values)[:, None]

        whole = first is None and last is None and limit == database.LAST_STEP
        steps, values = self._sound(series, name, read, spans, whole=whole)
        return series, steps, values[:, 0]

    def _sound(
        self,
        series: int,
        name: str,
        read: Callable[..., tuple[list[CheckedSpan], Ints, Floats]],
        *known: list[CheckedSpan],
        whole: bool = True,
    ) -> tuple[Ints, Floats]:
        """Rows without those that are not what was written."""
        spans, steps, values = read(*known)
        if not self.has_checksums:
            return steps, values
        good, broken = checksums.broken_spans(series, name, spans, steps, values, whole=whole)
        if broken and not self._db.in_transaction:
            # The writer may have come between two statements.
            with self.still():
                spans, steps, values = read()
            good, broken = checksums.broken_spans(series, name, spans, steps, values, whole=whole)
        if not broken:
            return steps, values
        kind = "steps" if series == checksums.STEPS else "points"
        for span in broken:
            self._note(kind, name, span.first_step, span.last_step, span.size)
        return steps[good], values[good]

    def _documents(self, table: str, kinds: str, which: str = "", *parameters: Any) -> list[Any]:
        """Rows of a table without those that are not what was written."""
        names = checksums.DOCUMENTS[table]
        sums = ", crc" if self.has_checksums else ""
        asked = f"SELECT {', '.join(names)}{sums} FROM {table} {which}"
        rows = self._rows(kinds + ("n" if sums else ""), asked, *parameters)
        if not sums:
            return rows
        sound = []
        for *row, total in rows:
            if checksums.row_sum(*row) == total:
                sound.append(row)
            else:
                cells_of = dict(zip(names, row, strict=True))
                named = next(str(cells_of[key]) for key in NAMED if key in cells_of)
                step = cells_of.get("step", cells_of.get("since_step"))
                self._note(table, named, step, step)
        return sound

    def _note(
        self, kind: str, name: str, first: int | None, last: int | None, count: int = 1
    ) -> None:
        damage = Damage(kind=kind, name=name, first_step=first, last_step=last, count=count)
        if damage in self.damage:
            return
        self.damage.append(damage)
        if len(self.damage) == 1:
            warnings.warn(
                f"{self.path}: {damage}, so it is left out; `gradiometer check` names all that is"
                " damaged",
                GradiometerWarning,
                stacklevel=4,
            )

    def _last_step(self, series: int, last: int | None) -> int:
        asked = "SELECT max(step) FROM points WHERE series_id = ? AND step <= ?"
        step = self._one("i", asked, series, database.LAST_STEP if last is None else last)
        assert step is not None
        return step

    def _buckets(self, series: int, starts: list[int], newest: int) -> Thinned:
        """A query a bucket: SQLite sorts what it groups, and that takes three times as long."""
        values = "SELECT avg(value), min(value), max(value), count(*) - count(value) FROM points "
        within = "WHERE series_id = ? AND step BETWEEN ? AND ?"
        found = []
        for start, end in zip(starts, [*(later - 1 for later in starts[1:]), newest], strict=True):
            step = self._one("n", f"SELECT max(step) FROM points {within}", series, start, end)
            if step is None:
                continue
            mean, low, high, nans = self._rows("fffi", values + within, series, start, end)[0]
            if low in INFINITIES or high in INFINITIES:
                of = "SELECT step, value FROM points " + within
                steps, some_values = self._columns("if", f"{of} ORDER BY step", series, start, end)
                part = thin(np.array(steps), _floats(some_values), np.array([start]))
                found.append((step, part.mean[0], part.low[0], part.high[0], True))
            else:
                mean = mean if mean is None else min(max(mean, low), high)
                found.append((step, mean, low, high, nans > 0))
        steps, mean, low, high, broken = zip(*found, strict=True)
        return Thinned(
            steps=np.array(steps, dtype=np.int64),
            mean=_floats(mean),
            low=_floats(low),
            high=_floats(high),
            broken=np.array(broken, dtype=np.bool_),
            whole=False,
        )

    def _execute(self, statement: str, *parameters: Any) -> list[Any]:
        with database.translated(self.path):
            rows: list[Any] = self._db.execute(statement, parameters).fetchall()
        return rows

    def _columns(self, kinds: str, statement: str, *parameters: Any) -> list[Sequence[Any]]:
        """The columns of what is asked, of these types (`cells.typed`)."""
        return list(self._read(cells.typed, kinds, self._execute(statement, *parameters)))

    def _rows(self, kinds: str, statement: str, *parameters: Any) -> list[Any]:
        rows = self._execute(statement, *parameters)
        self._read(cells.typed, kinds, rows)
        return rows

    def _one(self, kinds: str, statement: str, *parameters: Any) -> int | None:
        found: int | None = self._rows(kinds, statement, *parameters)[0][0]
        return found

    def _read(self, reader: Callable[..., T], *found: Any) -> T:
        """Cells as what they should be; else the run is damaged."""
        try:
            return reader(*found)
        except cells.BadCell as problem:
            raise RunDamaged(
                f"{self.path} is not as a run is written ({problem}): it was damaged or changed;"
                " `gradiometer check` lists all of it"
            ) from problem

    def _unknown(self, kind: str, name: str, step: int | None, known: list[str]) -> UnknownName:
        if step is None or name not in known:
            return UnknownName(kind, name, known)
        steps = self._rows("i", f"SELECT step FROM {kind}s WHERE name = ? ORDER BY step", name)
        return unknown_step(kind, name, step, (number for (number,) in steps))


def unknown_step(kind: str, name: str, step: int, known: Iterable[int]) -> UnknownName:
    """That a table or vector is not there at a step, with the steps nearest to it."""
    near = sorted(known, key=lambda number: abs(number - step))[:3]
    hint = f"(nearest: {', '.join(map(str, near))})"
    return UnknownName(f"step of {kind} {name!r}", str(step), (), hint=hint)


def _locate(path: Path) -> Path:
    if path.is_dir():
        file = path / database.DATABASE_NAME
        if file.exists():
            check_readable(file)
            return file
        inside = _runs_in(path)
        if inside:
            raise NotARun(f"{path} is not a run but a folder of runs: open one of {some(inside)}")
        raise NotARun(f"{path} is not a run: no {database.DATABASE_NAME} in it")
    if not path.exists():
        raise RunNotFound(nothing_at(path))
    check_readable(path)
    return path


def nothing_at(path: Path) -> str:
    """Of a path where nothing is: names beside it that are close, or the folder that is missing."""
    if not path.parent.is_dir():
        return f"no run at {path}: there is no folder {path.parent}"
    beside = (each.name for each in islice(path.parent.iterdir(), MOST_NAMES))
    close = close_names(path.name, beside)
    found = " or ".join(repr(str(path.parent / name)) for name in close)
    if close:
        return f"no run at {path}; did you mean {found}?"
    inside = _runs_in(path.parent)
    there = f"; the runs in {path.parent} are {some(inside)}" if inside else ""
    return f"no run at {path}: no such file or folder{there}"


def _runs_in(folder: Path) -> list[str]:
    return sorted(file.parent.name for file in folder.glob(f"*/{database.DATABASE_NAME}"))


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array(values, dtype=np.float64)  # numpy reads None as NaN


def _float(value: float | None) -> float:
    return float("nan") if value is None else value
