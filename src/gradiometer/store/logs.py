"""A log that somebody else wrote, in memory, with the reading interface of our own `Run`."""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import re
import tempfile
import warnings
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gradiometer.errors import GradiometerWarning, UnknownName, UsageError
from gradiometer.records import Event, Finding, Row, Summary, Table, Vector
from gradiometer.store.opening import MOST_SERIES
from gradiometer.store.reader import Floats, Ints, Reader, unknown_step
from gradiometer.store.strictjson import whole_text

__all__ = [
    "CLOCKS",
    "ENV_STEPS",
    "INT64",
    "MOST_PARTS",
    "SPOKEN",
    "Columns",
    "Gathered",
    "Log",
    "LogPart",
    "cut_off",
    "flat",
    "is_table",
    "number_of",
    "runs_of",
    "short_id",
    "warn",
]

INT64 = range(-(2**63), 2**63)
"""What a step can be."""

LARGEST = int(np.finfo(np.float64).max)
SPOKEN = {
    sign + word: number
    for sign in ("", "+", "-")
    for word, number in (("nan", math.nan), ("inf", math.inf))
}
SPOKEN |= {"infinity": math.inf, "+infinity": math.inf, "-infinity": -math.inf}
SPOKEN["-inf"] = -math.inf
"""How logs spell the numbers that JSON does not know, in small letters."""
NUMBER = re.compile(
    r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*"
    r"(%|k|K|M|B|s|ms|sec|min|h|KB|MB|GB|TB|KiB|MiB|GiB|TiB|it/s|s/it|tokens?/s|samples?/s|x)"
)
GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
FACTORS = {"%": 0.01, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}
"""What a unit behind a number multiplies it by; the others are only dropped."""
ENV_STEPS = "environment steps"
AT_ONCE = 1 << 20
"""Points held in memory, of 16 bytes each: 16 MB."""
STEPS_AT_ONCE = 1 << 12
SHOWN_RETURNS = 10
MOST_CELLS = 4_000_000
"""Of all tables of a log: about 300 MB; later ones are left out by name."""
LONGEST_NUMBER = 400
MOST_PARTS = 64
"""A log whose steps fall back more often is not resumed but tangled: nothing is cut."""
CLOCKS = {
    *("wall_time", "walltime", "time", "timestamp", "_timestamp", "_runtime", "runtime"),
    *("elapsed_time", "relative_time", "epoch", "env_steps", "rollout"),
}
"""What rows of every kind have: a late row of another kind is no restart for its sake."""
LATE_ROWS = 3
"""Fewer rows than this that fall back are late and no resume."""
FRESH = 0.02
"""A log that falls back to this share of what it had reached begins again."""
LONG = 0.5
"""Of several runs in a log the last is read that has this share of the longest's rows."""

Buffer = tuple["array[int]", "array[float]"]
Points = tuple[Ints, Floats]


class Columns:
    """Fill it with `add` and `extend`, then `finish` it once; only then can it be read."""

    def __init__(self, *, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._waiting: dict[str, Buffer] = {}
        self._num_waiting = 0
        self._spilled: dict[str, list[tuple[int, int]]] = {}
        self._file: BinaryIO | None = None
        self._points: dict[str, Points] = {}
        self._map: mmap.mmap | None = None
        self.replaced = 0
        """Points that gave way to a later one: of the same step and another value, or behind the
        step a resume began at."""

    def add(self, name: str, step: int, value: float) -> None:
        """One point."""
        buffer = self._waiting.get(name)
        if buffer is None:
            buffer = self._new(name)
        buffer[0].append(step)
        buffer[1].append(value)
        self._num_waiting += 1
        if self._num_waiting >= self._at_once:
            self._spill()

    def extend(self, name: str, steps: Ints, values: Floats) -> None:
        """Many points of a series."""
        buffer = self._waiting.get(name) or self._new(name)
        buffer[0].frombytes(np.ascontiguousarray(steps, dtype=np.int64).tobytes())
        buffer[1].frombytes(np.ascontiguousarray(values, dtype=np.float64).tobytes())
        self._num_waiting += len(steps)
        if self._num_waiting >= self._at_once:
            self._spill()

    def _new(self, name: str) -> Buffer:
        if len(self._waiting) + len(self._spilled) >= MOST_SERIES and name not in self._spilled:
            raise UsageError(
                f"more than {MOST_SERIES:,} names, the last is {name!r:.60}: is this the log of a"
                " training?"
            )
        made: Buffer = (array("q"), array("d"))
        self._waiting[name] = made
        return made

    def rest(self) -> None:
        """Nothing more is added: a part that is large does not wait in memory for the others."""
        if self._num_waiting * MOST_PARTS >= self._at_once:
            self._spill()

    def finish(self, earlier: Sequence[tuple[Columns, int | None]] = ()) -> None:
        """Put every series in order; after the earlier parts, each up to the step it is cut at."""
        parts = [*earlier, (self, None)]
        names = sorted({name for part, _ in parts for name in (*part._waiting, *part._spilled)})
        spilled = any(part._file is not None for part, _ in parts)
        sink = tempfile.TemporaryFile() if spilled else None  # noqa: SIM115 (the maps keep it)
        sizes = {}
        for name in names:
            arrived = self._of_parts(name, parts)
            steps, values = in_order(*arrived)
            if len(steps) < len(arrived[0]):
                kept = values[np.searchsorted(steps, arrived[0])]
                same = (arrived[1] == kept) | (np.isnan(arrived[1]) & np.isnan(kept))
                self.replaced += int(np.count_nonzero(~same))
            if not len(steps):
                continue
            if sink is None:
                self._points[name] = (steps, values)
            else:
                sizes[name] = (sink.tell(), len(steps))
                sink.write(np.ascontiguousarray(steps).data)
                sink.write(np.ascontiguousarray(values).data)
        if sink is not None:
            sink.flush()
            self._map, self._points = _mapped(sink, sizes)
            sink.close()
        for part, _ in parts:
            part.drop()

    def drop(self) -> None:
        """Let go of what was added."""
        if self._file is not None:
            self._file.close()
        self._waiting, self._spilled, self._file = {}, {}, None

    def names(self) -> list[str]:
        """Every series, in order."""
        return list(self._points)

    def __contains__(self, name: str) -> bool:
        return name in self._points

    def series(self, name: str) -> Points:
        """The steps and values of a series, in order of the steps; arrays of the caller's own."""
        steps, values = self._points[name]
        copies = np.array(steps), np.array(values)
        self.let_go()
        return copies

    def held(self, name: str) -> Points:
        """The same as they are held, which may be on disk: not to be changed."""
        return self._points[name]

    def let_go(self) -> None:
        """Of series on disk, what was looked at need not stay in memory."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def rows(self, steps: Ints) -> Iterator[tuple[int, dict[str, float]]]:
        """The values at each of these steps, in order; a few thousand steps at once."""
        for start in range(0, len(steps), STEPS_AT_ONCE):
            some = steps[start : start + STEPS_AT_ONCE]
            values: dict[int, dict[str, float]] = {step: {} for step in some.tolist()}
            for name, (of, numbers) in self._points.items():
                first = int(np.searchsorted(of, some[0]))
                end = int(np.searchsorted(of, some[-1], side="right"))
                within = slice(first, end)
                for step, value in zip(of[within].tolist(), numbers[within].tolist(), strict=True):
                    values[step][name] = value
            yield from values.items()

    def _of_parts(self, name: str, parts: Iterable[tuple[Columns, int | None]]) -> Points:
        pieces: list[Points] = []
        for part, cut in parts:
            steps, values = part._arrived(name)
            if cut is not None:
                before = steps < cut
                self.replaced += int(len(steps) - np.count_nonzero(before))
                steps, values = steps[before], values[before]
            pieces.append((steps, values))
        return _joined(pieces)

    def _arrived(self, name: str) -> Points:
        places = self._spilled.get(name, ())
        waiting = self._waiting.pop(name, None)
        if not places and waiting is not None:
            return np.frombuffer(waiting[0], np.int64), np.frombuffer(waiting[1], np.float64)
        size = sum(size for _, size in places) + (len(waiting[0]) if waiting else 0)
        steps, values = np.empty(size, dtype=np.int64), np.empty(size)
        first = 0
        for place, count in places:
            self._read_into(place, steps[first : first + count], values[first : first + count])
            first += count
        if waiting is not None:
            steps[first:], values[first:] = waiting
        return steps, values

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the series are in order)
        for name, (steps, values) in self._waiting.items():
            self._spilled.setdefault(name, []).append((self._file.tell(), len(steps)))
            self._file.write(steps.tobytes())
            self._file.write(values.tobytes())
        self._waiting, self._num_waiting = {}, 0

    def _read_into(self, place: int, steps: Ints, values: Floats) -> None:
        assert self._file is not None
        self._file.seek(place)
        self._file.readinto(steps.data)  # type: ignore[attr-defined]
        self._file.readinto(values.data)  # type: ignore[attr-defined]
        self._file.seek(0, 2)


@dataclass(slots=True)
class LogPart:
    """Rows of a log whose steps do not fall back."""

    columns: Columns = field(default_factory=Columns)
    clock: Columns = field(default_factory=Columns)
    steps: array[int] = field(default_factory=lambda: array("q"))


class Gathered:
    """What a reader found so far: numbers, tables, the steps of all rows, and names of the rest.

    Where a series falls back to an earlier step the log was resumed or begun again: another part.
    """

    def __init__(self) -> None:
        self.parts = [LogPart()]
        self.tables: dict[str, dict[int, Any]] = {}
        self.left_out: set[str] = set()
        self.returns: list[tuple[int, int]] = []
        """Where steps fall back, as (from, to)."""
        self._newest: dict[str, int] = {}
        self._highest: int | None = None
        self._num_cells = 0

    @property
    def columns(self) -> Columns:
        """The numbers of the newest part."""
        return self.parts[-1].columns

    @property
    def clock(self) -> Columns:
        """When its steps were."""
        return self.parts[-1].clock

    @property
    def steps(self) -> array[int]:
        """The steps of its rows."""
        return self.parts[-1].steps

    def row(self, step: int, values: Mapping[str, Any], where: str) -> None:
        """Sort one row in; `where` begins the error on what cannot be kept."""
        if step not in INT64:
            raise UsageError(
                f"{where}: a step of {len(str(abs(step)))} digits does not fit into 64 bits"
            )
        self.leaves(step, flat(values, where))

    def leaves(self, step: int, values: Mapping[str, Any]) -> None:
        """Sort in one row whose values are not nested."""
        numbers = {}
        for name, value in values.items():
            number = number_of(value)
            if number is not None:
                numbers[name] = number
            elif is_table(value):
                self._table(name, step, value)
            else:
                self.left_out.add(name)
        self.numbers(step, numbers)

    def _table(self, name: str, step: int, value: Mapping[str, Any]) -> None:
        content = {"columns": value["columns"], "data": value["data"]}
        self._num_cells += _num_cells(content["data"])
        if self._num_cells > MOST_CELLS:
            self.left_out.add(name)
        else:
            self.tables.setdefault(name, {})[step] = content

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Sort one row of numbers in."""
        newest, highest = self._newest, self._highest
        if highest is not None and step < highest:
            back = max(
                (newest.get(name, step) for name in values if name not in CLOCKS), default=step
            )
            if back > step:
                self.falls_back(back, step)
        self._highest = step if self._highest is None else max(step, self._highest)
        columns = self.columns
        self.steps.append(step)
        for name, value in values.items():
            self._newest[name] = step
            columns.add(name, step, value)

    def block(self, steps: Ints, columns: Mapping[str, Points]) -> None:
        """Sort many rows in: their steps, and of each column the rows that have a value, as places
        in the block, with the values."""
        if not len(steps):
            return
        falls = np.flatnonzero(steps[1:] < steps[:-1]) + 1
        begin = [0, *falls.tolist()]
        for start, end in zip(begin, [*begin[1:], len(steps)], strict=True):
            first = int(steps[start])
            if self._highest is not None and first < self._highest:
                self.falls_back(self._highest, first)
            self._highest = int(steps[end - 1])
            self.steps.frombytes(steps[start:end].tobytes())
            for name, (places, values) in columns.items():
                here = slice(*np.searchsorted(places, (start, end)))
                if here.stop > here.start:
                    self.columns.extend(name, steps[places[here]], values[here])

    def falls_back(self, reached: int, step: int) -> None:
        """Begin another part, unless there are so many that they are none."""
        if len(self.returns) < MOST_PARTS:
            self.returns.append((reached, step))
        if len(self.parts) < MOST_PARTS:
            self.columns.rest()
            self.parts.append(LogPart())
            self._newest, self._highest = {}, None


def runs_of(parts: Sequence[Ints]) -> list[list[tuple[int, int | None]]]:
    """The runs of a log, given the steps of each part: of every run its parts, by number, with the
    step before which they count.

    A part that begins where the log began is another run. One that begins later goes on from an
    earlier step, so it takes the place of all that came after that step. A row or two is neither,
    but late: at the same step the later counts.
    """
    runs: list[list[tuple[int, int | None]]] = []
    start = reached = length = 0
    for number, steps in enumerate(parts):
        first, last = int(steps[0]), int(steps.max())
        short = min(len(steps), length) < LATE_ROWS
        if not runs or (not short and first - start <= FRESH * (reached - start)):
            runs.append([(number, None)])
            start, reached, length = first, last, len(steps)
            continue
        late = short or np.count_nonzero(steps <= reached) < LATE_ROWS
        cut = None if late else first
        runs[-1] = [(part, _lower(at, cut)) for part, at in runs[-1]] + [(number, None)]
        start, reached, length = min(start, first), max(reached, last), length + len(steps)
    return runs


def _lower(one: int | None, other: int | None) -> int | None:
    known = [cut for cut in (one, other) if cut is not None]
    return min(known, default=None)


class Log(Reader):
    """What another tool logged, read like a run: it has a run's names, but neither events, findings
    nor vectors.

    Rows of values by step, sorted into series and tables; rows of the same step are one row, the
    last word counts.

    A nested value is named by its path, `a/b`. A dict with `columns` and `data` is a table.
    `left_out` names what was logged and is neither a number nor a table. `facts["imported"]` says
    how the log was read: `format`, `library` (whose names they are), `step` (the column that counts
    the steps), `x_axis` (what it counts), `replaced` (values that a later one replaced),
    `returns` (where steps fall back, as after a resume), and where several runs follow one another
    `runs` (how many) and `run` (which of them this is).
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
        told = self._finish(gathered)
        self._tables = gathered.tables
        self.left_out: tuple[str, ...] = tuple(sorted(gathered.left_out))
        if "imported" in self.facts:
            self.facts["imported"] = {**self.facts["imported"], **told}

    def _finish(self, gathered: Gathered) -> dict[str, Any]:
        """Put together what belongs to one run; what there is to say about it."""
        parts = [part for part in gathered.parts if part.steps] or gathered.parts[:1]
        chosen, runs, number = _chosen(parts, tangled=len(gathered.parts) >= MOST_PARTS)
        *earlier, (newest, _) = [(parts[place], cut) for place, cut in chosen]
        self._columns, self._clock = newest.columns, newest.clock
        self._columns.finish([(part.columns, cut) for part, cut in earlier])
        self._clock.finish([(part.clock, cut) for part, cut in earlier])
        steps = [_before(part.steps, cut) for part, cut in [*earlier, (newest, None)]]
        self._steps: Ints = _distinct(steps)
        for part in parts:
            part.columns.drop()
        returns = [list(pair) for pair in gathered.returns[:SHOWN_RETURNS]]
        told = {"replaced": self._columns.replaced, "returns": returns}
        if runs > 1:
            told |= {"runs": runs, "run": number}
        cut = any(cut is not None for _, cut in earlier)
        _say_returns(self.path, gathered.returns, told, len(self._steps), cut=cut)
        return {key: value for key, value in told.items() if value}

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
        """The steps and values of a series; NaN where a NaN was logged."""
        if name not in self._columns:
            raise UnknownName("series", name, self._columns.names())
        return self._columns.series(name)

    def table_names(self) -> list[str]:
        """Every table of the log, in order."""
        return sorted(self._tables)

    def table(self, name: str, step: int | None = None) -> Table:
        """A table at a step; the latest by default."""
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
        found = sorted(self._tables[name].items())
        return [Table(step=step, name=name, content=content) for step, content in found]

    def rows(self) -> Iterator[Row]:
        """Step by step what was logged, in order; when it was is known where the log says so."""
        where = self.steps()
        for place, (step, values) in enumerate(self._columns.rows(self._steps)):
            env_steps = step if self._counts_env_steps else None
            when = float(where["wall_time"][place])
            yield Row(step=step, wall_time=when, values=values, env_steps=env_steps)

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

    def followed_by(self, more: Log) -> Log | None:
        """This log with what another has beyond its last step; None when that has nothing new or
        does not lie beyond. Both must count the same steps."""
        newest = self.newest_step
        new = more._steps[more._steps > newest] if newest is not None else more._steps
        if not len(new) or more.table_names() or not set(self.names()) >= _early(more, newest):
            return None
        gathered = Gathered()
        gathered.steps.frombytes(np.concatenate([self._steps, new]).tobytes())
        gathered.left_out.update(self.left_out, more.left_out)
        pairs = ((self._columns, more._columns, gathered.columns),)
        for old, later, both in (*pairs, (self._clock, more._clock, gathered.clock)):
            for name in dict.fromkeys([*old.names(), *later.names()]):
                if name in old:
                    both.extend(name, *old.series(name))
                if name in later:
                    steps, values = later.series(name)
                    beyond = steps > newest if newest is not None else np.full(len(steps), True)
                    both.extend(name, steps[beyond], values[beyond])
        log = Log(self.path, name=self.name, run_id=self.run_id, rows=gathered, facts=self.facts)
        log.facts["imported"] = dict(self.facts["imported"])
        return log

    def close(self) -> None:
        """Nothing to let go; here because a `Run` has it."""

    def _gather(self, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> Gathered:
        gathered = Gathered()
        for step, values in rows:
            place = f"{self.path}, step {step}" if step in INT64 else str(self.path)
            gathered.row(step, values, place)
        return gathered


def _early(log: Log, newest: int | None) -> set[str]:
    """Names that a log has at steps up to `newest`."""
    if newest is None:
        return set()
    return {name for name in log.names() if len(at := log.series(name)[0]) and at[0] <= newest}


def warn(message: str) -> None:
    """Tell the user what was lost or guessed while a log was read."""
    warnings.warn(message, GradiometerWarning, stacklevel=2)


def cut_off(path: Path) -> None:
    """Warn that the last record of a binary log is not whole."""
    warn(
        f"{path} is cut off at its end, so the last record was left out: the run crashed or is"
        " still going"
    )


def is_table(value: Any) -> bool:
    """Whether a logged value is a table: a dict that has its columns and its rows."""
    if not isinstance(value, Mapping):
        return False
    return isinstance(value.get("columns"), list) and isinstance(value.get("data"), list)


def _num_cells(rows: list[Any]) -> int:
    """About how many; a text counts by its length."""
    cells = (cell for row in rows for cell in (row if isinstance(row, list) else [row]))
    return len(rows) + sum(1 + (len(cell) >> 5 if isinstance(cell, str) else 0) for cell in cells)


def flat(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Each logged value by its path, `a/b`; `where` begins the error on what cannot be kept."""
    try:
        found = {whole_text(name): value for name, value in _leaves(values)}
    except RecursionError as problem:
        raise UsageError(f"{where}: values are nested too deeply to be read") from problem
    for name, value in found.items():
        if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
            raise UsageError(
                f"{where}: {name} has {len(str(abs(value)))} digits, too large for a float"
            )
    return found


def short_id(*parts: Any) -> str:
    """Eight hexadecimal digits that stand for the parts, the same on every machine."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:8]


def _summary(name: str, steps: Ints, values: Floats) -> Summary:
    known = values[~np.isnan(values)]
    with np.errstate(invalid="ignore", over="ignore"):  # the mean of both infinities is NaN
        mean, low, high = (
            float(f(known)) if len(known) else float("nan") for f in (np.mean, np.min, np.max)
        )
    size = len(values)
    counts = {"count": size, "nan_count": size - len(known), "last_step": int(steps[-1])}
    return Summary(name=name, **counts, last=float(values[-1]), mean=mean, min=low, max=high)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each value with its path; null is none, a dict with a `_type` is a picture or a histogram."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if value is None:
            continue
        if type(value) is float:  # most are, and asking for a Mapping takes long
            yield name, value
        elif isinstance(value, Mapping) and "_type" not in value and not is_table(value):
            yield from _leaves(value, f"{name}/")
        else:
            yield name, value


def number_of(value: Any) -> float | None:
    """A number as logs spell it: 0.5, "0.5", "nan", "1,200", "85%" (0.85), "3.2k", "12.5 GiB"; None
    when it is none."""
    if type(value) is float:
        return value
    if isinstance(value, bool | int | float):
        return float(value)
    if isinstance(value, str):
        return _spelled_number(value.strip())
    return None


def _spelled_number(text: str) -> float | None:
    if not text or len(text) > LONGEST_NUMBER or text[-1] == "_":
        return None
    try:
        return float(text)
    except ValueError:
        pass
    if found := NUMBER.fullmatch(text):
        return float(found[1]) * FACTORS.get(found[2], 1.0)
    if GROUPED.fullmatch(text):
        return float(text.replace(",", ""))
    return SPOKEN.get(text.lower())


def in_order(steps: Ints, values: Floats) -> Points:
    """By step, each once: where a log says a step twice, what came later counts."""
    if len(steps) < 2 or bool((steps[1:] > steps[:-1]).all()):
        return steps, values
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    newest = np.append(steps[1:] != steps[:-1], True)
    return steps[newest], values[newest]


def _distinct(parts: Sequence[Ints]) -> Ints:
    """The steps of all parts, in order, each once; in most logs they are that as they came."""
    steps = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if bool((steps[1:] > steps[:-1]).all()):
        return np.array(steps)
    steps = np.sort(steps)
    distinct: Ints = steps[np.append(True, steps[1:] != steps[:-1])]
    return distinct


def _joined(pieces: Sequence[Points]) -> Points:
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return np.empty(0, dtype=np.int64), np.empty(0)
    of, numbers = zip(*pieces, strict=True)
    return np.concatenate(of), np.concatenate(numbers)


def _before(steps: array[int], cut: int | None) -> Ints:
    found = np.frombuffer(steps, dtype=np.int64)
    return found if cut is None else found[found < cut]


def _chosen(
    parts: Sequence[LogPart], *, tangled: bool
) -> tuple[list[tuple[int, int | None]], int, int]:
    """The parts that are read, how many runs there are, and which of them this is."""
    if tangled or len(parts) == 1:
        return [(place, None) for place in range(len(parts))], 1, 1
    runs = runs_of([np.frombuffer(part.steps, dtype=np.int64) for part in parts])
    rows = [sum(len(parts[place].steps) for place, _ in run) for run in runs]
    long = [place for place, count in enumerate(rows) if count >= LONG * max(rows)]
    return runs[long[-1]], len(runs), long[-1] + 1


def _say_returns(
    path: Path,
    returns: Sequence[tuple[int, int]],
    told: Mapping[str, Any],
    steps: int,
    *,
    cut: bool,
) -> None:
    """Warn of what was cut."""
    if not returns:
        return
    reached, back = returns[0]
    if "runs" in told:
        warn(
            f"{path}: {told['runs']} runs one after another (steps begin again at {back} after"
            f" {reached}); read is number {told['run']}, with {steps} steps"
        )
    else:
        times = "" if len(returns) == 1 else f" {len(returns)} times, first"
        what = (
            "as after a resume: the data after that was replaced"
            if cut
            else "where a step is there twice, the later counts"
        )
        warn(f"{path}: steps fall back{times} from {reached} to {back}, {what}")


def _mapped(
    file: Any, places: dict[str, tuple[int, int]]
) -> tuple[mmap.mmap | None, dict[str, Points]]:
    """The series in a file by byte and length; the map keeps the file, which has no name."""
    if not any(size for _, size in places.values()):
        return None, {}
    held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    whole: Ints = np.frombuffer(held, dtype=np.int64)
    points = {}
    for name, (byte, size) in places.items():
        first = byte // 8
        values = whole[first + size : first + 2 * size].view(np.float64)
        points[name] = (whole[first : first + size], values)
    return held, points
