"""What the soak counts: a ledger of all that was handed over, against what arrived in the run and
in its sinks.

A point is told by its step, its series and its value. For each step the ledger keeps how many
points there were and a sum modulo 2**64 over them of an odd number made of the name times the bits
of the value, so the order does not matter.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Comparison",
    "Ledger",
    "Tally",
    "count_events",
    "count_jsonl",
    "count_run",
    "opened",
    "seconds_by_life",
    "slope_per_hour",
]

ENTRY = struct.Struct("<qdqQQ")
"""Step, seconds since the epoch, number of points, sum over 64 bits, sum over 32 bits."""
FIELDS = np.dtype(
    [("step", "<i8"), ("time", "<f8"), ("points", "<i8"), ("sum64", "<u8"), ("sum32", "<u8")]
)
SPOKEN = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
COORDINATES = {"step", "wall_time", "env_steps", "rollout", "epoch"}

Floats = NDArray[np.float64]
Sums = NDArray[np.uint64]


@cache
def _odd(name: str) -> int:
    return zlib.crc32(name.encode()) << 1 | 1


def _bits(values: Any, *, short: bool) -> Sums:
    numbers = np.asarray(values, dtype=np.float64)
    if short:
        with np.errstate(over="ignore"):
            numbers = numbers.astype(np.float32).astype(np.float64)
    # One NaN is as good as another, and SQLite knows no minus zero.
    numbers = np.where(np.isnan(numbers), np.nan, numbers) + 0.0
    return numbers.view(np.uint64)


def _sum(names: Iterable[str], values: Any, *, short: bool = False) -> int:
    weights = np.fromiter(map(_odd, names), dtype=np.uint64)
    return int(np.sum(weights * _bits(values, short=short), dtype=np.uint64))


class Ledger:
    """An append-only file of entries. Each is handed to the system at once, so that it outlives a
    killed process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Write down the points of a row, before anybody else gets them."""
        numbers = [float(value) for value in values.values()]
        sums = _sum(values, numbers), _sum(values, numbers, short=True)
        os.write(self._file, ENTRY.pack(step, time, len(numbers), *sums))

    @staticmethod
    def read(path: Path) -> NDArray[np.void]:
        """All whole entries; none where there is no file."""
        content = path.read_bytes() if path.exists() else b""
        return np.frombuffer(content[: len(content) // ENTRY.size * ENTRY.size], dtype=FIELDS)


@dataclass(slots=True, kw_only=True)
class Tally:
    """For each step from 0 on: how many points, their sum, and when the last of them was handed
    over (in a ledger)."""

    points: NDArray[np.int64]
    sums: Sums
    times: Floats

    @classmethod
    def empty(cls, length: int) -> Self:
        """No points at all in that many steps."""
        return cls(
            points=np.zeros(length, np.int64),
            sums=np.zeros(length, np.uint64),
            times=np.full(length, np.nan),
        )

    @classmethod
    def of_entries(
        cls, lives: Sequence[tuple[int, NDArray[np.void]]], *, short: bool = False
    ) -> Self:
        """What should be there after lives that each began at `resume`, which took back what lay
        beyond it."""
        length = 1 + max(
            (int(entries["step"].max()) for _, entries in lives if len(entries)), default=-1
        )
        tally = cls.empty(length)
        for resume, entries in lives:
            tally.take_back(resume)
            np.add.at(tally.points, entries["step"], entries["points"])
            np.add.at(tally.sums, entries["step"], entries["sum32" if short else "sum64"])
            tally.times[entries["step"]] = entries["time"]
        return tally

    def take_back(self, resume: int) -> None:
        """Forget what lies beyond a step."""
        self.points[resume + 1 :], self.sums[resume + 1 :], self.times[resume + 1 :] = 0, 0, np.nan

    @property
    def newest(self) -> int:
        """The last step with a point; -1 where there is none."""
        return int(np.flatnonzero(self.points).max(initial=-1))

    def beyond(self, step: int) -> Tally:
        """The same, without the points up to a step."""
        later = np.arange(len(self.points)) > step
        return Tally(points=self.points * later, sums=self.sums * later, times=self.times)

    def add(self, step: int, names: Sequence[str], values: Any, *, short: bool = False) -> None:
        """Count points of a step that were found."""
        if step >= len(self.points):
            self._grow(step + 1)
        self.points[step] += len(names)
        self.sums[step : step + 1] += np.uint64(
            _sum(names, values, short=short)
        )  # a slice wraps around without a warning

    def _grow(self, length: int) -> None:
        more = Tally.empty(max(length, 2 * len(self.points)) - len(self.points))
        self.points = np.concatenate([self.points, more.points])
        self.sums = np.concatenate([self.sums, more.sums])
        self.times = np.concatenate([self.times, more.times])


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was found beside what should be there."""

    expected: int
    missing: int
    surplus: int
    wrong_steps: NDArray[np.int64]
    """Steps whose points are not all there, or not the same."""

    @classmethod
    def of(cls, expected: Tally, found: Tally) -> Self:
        """Step by step."""
        length = max(len(expected.points), len(found.points))
        for tally in (expected, found):
            if len(tally.points) < length:
                tally._grow(length)
        difference = expected.points[:length] - found.points[:length]
        wrong = (difference != 0) | (expected.sums[:length] != found.sums[:length])
        return cls(
            expected=int(expected.points.sum()),
            missing=int(difference.clip(0).sum()),
            surplus=int((-difference).clip(0).sum()),
            wrong_steps=np.flatnonzero(wrong),
        )

    def seconds_lost(self, expected: Tally) -> float:
        """From the last step before the first wrong one to the last that was handed over; the end
        of a killed life."""
        if not len(self.wrong_steps):
            return 0.0
        known = expected.times[np.isfinite(expected.times)]
        before = expected.times[: self.wrong_steps[0]]
        kept = before[np.isfinite(before)]
        return (
            float(known.max() - (kept.max() if len(kept) else known.min())) if len(known) else 0.0
        )


def opened(run: Path) -> sqlite3.Connection:
    """The file of a run, not by our reader."""
    return sqlite3.connect(f"{(run / 'run.db').resolve().as_uri()}?mode=ro", uri=True, timeout=30)


def count_run(run: Path, after: int = -1) -> Tally:
    """The points in `run.db` beyond a step."""
    with closing(opened(run)) as db:
        db.execute("BEGIN")
        (newest,) = db.execute("SELECT coalesce(max(step), -1) FROM steps").fetchone()
        tally = Tally.empty(newest + 1)
        for number, name in db.execute("SELECT id, name FROM series").fetchall():
            rows = db.execute(
                "SELECT step, value FROM points WHERE series_id = ? AND step > ?", (number, after)
            )
            found = np.array(
                [(step, np.nan if value is None else value) for step, value in rows],
                dtype=np.float64,
            )
            if len(found):
                steps = found[:, 0].astype(np.int64)
                np.add.at(tally.points, steps, 1)
                np.add.at(
                    tally.sums, steps, np.uint64(_odd(name)) * _bits(found[:, 1], short=False)
                )
    return tally


def count_jsonl(path: Path) -> Tally:
    """The points in the lines of the sink `jsonl`; what has a `_type` is no point."""
    tally = Tally.empty(1024)
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            content = json.loads(line)
            points = {
                name: SPOKEN.get(value, value) if isinstance(value, str) else value
                for name, value in content.items()
                if name not in COORDINATES and not isinstance(value, dict | list)
            }
            tally.add(content["step"], list(points), list(points.values()))
    return tally


def count_events(folder: Path) -> Tally:
    """The points in the event files, read by TensorBoard's own loader; a new session takes back
    what lies beyond it."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    from tensorboard.compat.proto.event_pb2 import SessionLog

    tally = Tally.empty(1024)
    for file in sorted(folder.iterdir()):
        for event in LegacyEventFileLoader(str(file)).Load():
            if event.HasField("session_log") and event.session_log.status == SessionLog.START:
                tally.take_back(event.step - 1)
            points = [value for value in event.summary.value if value.HasField("simple_value")]
            if points:
                names, values = (
                    [value.tag for value in points],
                    [value.simple_value for value in points],
                )
                tally.add(event.step, names, values, short=True)
    return tally


def slope_per_hour(times: Sequence[float], sizes: Sequence[float]) -> float:
    """Theil and Sen's: the median of the slopes between any two of the last two thirds, an hour;
    NaN for less than ten."""
    x, y = (np.asarray(given, dtype=np.float64)[len(times) // 3 :] for given in (times, sizes))
    if len(x) < 10:
        return math.nan
    stride = max(1, len(x) // 600)
    x, y = x[::stride], y[::stride]
    first, second = np.triu_indices(len(x), 1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])) * 3600)


def seconds_by_life(
    entries: Sequence[tuple[int, Any]], wrong: NDArray[np.int64], step_seconds: float
) -> dict[int, float]:
    """How long a stretch of each life is wrong, of the steps that no later life took back."""
    seconds: dict[int, float] = {}
    ends = [resume for resume, _ in entries[1:]] + [np.iinfo(np.int64).max]
    for life, (_, rows) in enumerate(entries):
        end = min(ends[life:])
        times = rows["time"][np.isin(rows["step"], wrong) & (rows["step"] <= end)]
        if len(times):
            seconds[life] = float(times.max() - times.min()) + step_seconds
    return seconds
