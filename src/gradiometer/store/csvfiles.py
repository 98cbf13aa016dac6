"""Logs as tables of text: SB3's `progress.csv`, exported histories, and what people write themselves.

A file is read in blocks of rows, and each column of a block becomes an array at once, so that a log of gigabytes never is
Python objects. An empty cell is a value that is missing, never a NaN; `nan` is a NaN that was logged.
"""

from __future__ import annotations

import csv
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gradiometer.errors import GradiometerWarning, NotARun, UsageError
from gradiometer.metrics import resolve
from gradiometer.store.logs import INT64, SPOKEN, Gathered, Log, short_id
from gradiometer.store.origins import STEP_KEYS, config_beside, expected_steps, name_of, origin, step_key
from gradiometer.store.readable import Floats, Ints

__all__ = ["read_csv", "reads_like_csv"]

SEPARATORS = (",", "\t", ";")
ROWS_AT_ONCE = 4096
LONGEST_LINE = 1 << 26
SHOWN = 10
MISSING = {"", "none", "null", "na", "n/a", "-", "--"}
TRUTH = {"true": 1.0, "false": 0.0}
UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_csv(path: str | os.PathLike[str]) -> Log:
    """The log in a file with a line of names and a line for each row, split by commas, tabs or semicolons.

    Of a name that is there twice, the second is called `name#2`. A line with more cells than names is skipped, because its
    cells may belong to other names; one with fewer lacks the last ones. Both, and lines without a step, are reported.
    Where no name is that of a step, but one is known to the catalogue, the rows are counted.
    """
    return Sheet(Path(path)).read()


def reads_like_csv(start: bytes) -> bool:
    """Whether a file's first line is a line of names, one of which counts the steps."""
    line = next((line for line in _text(start).splitlines() if line.strip() and not line.startswith("#")), "")
    separator = _separator(line)
    try:
        return separator in line and step_key(Counter(_names(line, separator)), 1) is not None
    except csv.Error:
        return False


class Sheet:
    """One file while it is read: where its columns go, and what could not be kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.gathered = Gathered()
        self.skipped: Counter[str] = Counter()
        self.names: list[str] = []
        self.nameless: set[int] = set()
        self.step_place: int | None = None
        """None where rows are counted."""
        self.counted = 0
        self.first: list[str] = []

    def read(self) -> Log:
        """The log, with a warning for what was lost."""
        with self.path.open("rb") as file:
            start = file.read(1 << 16)
        if not start.strip():
            raise UsageError(f"{self.path} is an empty file: nothing was logged yet")
        encoding = "utf-16" if start.startswith(UTF16) else "utf-8-sig"
        if encoding != "utf-16" and b"\0" in start:
            raise NotARun(f"{self.path} is not a run, nor a CSV log: it is a binary file")
        try:
            with self.path.open(encoding=encoding, errors="replace", newline="") as file:
                self._read_rows(csv.reader(self._lines(file, separator := self._header(file)), delimiter=separator))
        except (csv.Error, UnicodeError) as problem:
            raise UsageError(f"{self.path} cannot be read as CSV ({problem})") from problem
        return self._log()

    def _header(self, file: Any) -> str:
        """Read the names; the separator they are split by."""
        line = file.readline(LONGEST_LINE)
        while line.startswith("#") or (line and not line.strip()):  # SB3's monitor writes a comment first
            line = file.readline(LONGEST_LINE)
        separator = _separator(line)
        found = _names(line, separator)
        self.nameless = {place for place, name in enumerate(found) if not name}
        self.names = _unique(found)
        self.gathered.left_out |= {self.names[place] for place in self.nameless}
        twice = [name for name, before in zip(self.names, found, strict=True) if before and name != before]
        if twice:
            _warn(f"{self.path}: names that are there twice are kept as {_some(twice)}")
        return separator

    def _lines(self, file: Any, separator: str) -> Iterator[str]:
        """The lines; of a last one that does not end, the last cell may be half a number and is left out."""
        for line in iter(partial(file.readline, LONGEST_LINE), ""):
            if len(line) >= LONGEST_LINE:
                raise UsageError(f"{self.path}: a line is longer than {LONGEST_LINE >> 20} MB; is this a text file?")
            if not line.endswith(("\n", "\r")):
                _warn(f"{self.path}: the last line does not end, so its last cell may be cut off and was left out")
                line = line.rpartition(separator)[0]
            yield line

    def _read_rows(self, reader: Any) -> None:
        rows = iter(reader)
        head = list(islice(rows, ROWS_AT_ONCE))
        self._find_step([row for row in head if len(row) <= len(self.names)])
        while head:
            self._take(head)
            head = list(islice(rows, ROWS_AT_ONCE))

    def _find_step(self, rows: list[list[str]]) -> None:
        filled = Counter(dict.fromkeys(self.names, 0))
        filled.update(name for row in rows for name, cell in zip(self.names, row, strict=False) if cell.strip())
        counted = filled if rows else Counter(self.names)
        name = step_key(counted, len(rows))
        if name is None and self._is_a_log_without_steps():
            _warn(
                f"{self.path}: no column counts the steps, so its rows are counted; known are step, episode, epoch, ..."
            )
            return
        if name is None:
            raise UsageError(
                f"{self.path} has no column that counts the steps: one of {expected_steps()} is needed; "
                f"found: {_some(self.names)}"
            )
        self.step_place = self.names.index(name)

    def _is_a_log_without_steps(self) -> bool:
        return not any(name.lower() in STEP_KEYS for name in self.names) and any(map(resolve, self.names))

    def _take(self, rows: list[list[str]]) -> None:
        width = len(self.names)
        if {len(row) for row in rows} != {width} or any(row == self.names for row in rows):
            rows = list(self._fitting(rows))
        if not rows:
            return
        columns: list[Sequence[str]] = list(zip(*rows, strict=True))
        steps, kept = (
            self._rows_counted(len(rows)) if self.step_place is None else self._steps(columns[self.step_place])
        )
        if not self.first and len(steps):
            self.first = [cell for cell in rows[kept[0] if kept is not None else 0] if cell]
        self.gathered.steps.frombytes(steps.tobytes())
        for place, (name, cells) in enumerate(zip(self.names, columns, strict=True)):
            if place != self.step_place and place not in self.nameless:
                self._column(name, steps, cells if kept is None else [cells[row] for row in kept])

    def _fitting(self, rows: list[list[str]]) -> Iterator[list[str]]:
        width = len(self.names)
        for row in rows:
            if len(row) > width and any(cell.strip() for cell in row[width:]):
                self.skipped["more cells than names"] += 1
            elif [cell.strip() for cell in row] == self.names:
                self.skipped["the names again"] += 1
            elif any(cell.strip() for cell in row):
                yield row[:width] + [""] * (width - len(row))

    def _rows_counted(self, count: int) -> tuple[Ints, None]:
        first, self.counted = self.counted, self.counted + count
        return np.arange(first, self.counted, dtype=np.int64), None

    def _steps(self, cells: Sequence[str]) -> tuple[Ints, list[int] | None]:
        """The steps of a block of rows, and which rows have one; None when all have."""
        try:
            return np.array(list(map(int, cells)), dtype=np.int64), None
        except (ValueError, OverflowError):
            found = [(row, step) for row, cell in enumerate(cells) if (step := _step(cell)) is not None]
            self.skipped[f"no whole number as {self._step_name}"] += len(cells) - len(found)
            return np.array([step for _, step in found], dtype=np.int64), [row for row, _ in found]

    def _column(self, name: str, steps: Ints, cells: Sequence[str]) -> None:
        try:
            self.gathered.columns.extend(
                name, steps, np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
            )
        except ValueError:
            places, values = self._some_numbers(name, cells)
            if len(places):
                self.gathered.columns.extend(name, steps[places], values)

    def _some_numbers(self, name: str, cells: Sequence[str]) -> tuple[Ints, Floats]:
        """The numbers among the cells with their places: first as if all that are filled were numbers, else one by one."""
        places = [place for place, cell in enumerate(cells) if cell]
        filled = [cells[place] for place in places]
        try:
            values = list(map(float, filled))
        except ValueError:
            read = [_number(cell) for cell in filled]
            if any(n is None and cell.strip().lower() not in MISSING for n, cell in zip(read, filled, strict=True)):
                self.gathered.left_out.add(name)
            places = [place for place, number in zip(places, read, strict=True) if number is not None]
            values = [number for number in read if number is not None]
        return np.array(places, dtype=np.int64), np.array(values, dtype=np.float64)

    @property
    def _step_name(self) -> str:
        return "" if self.step_place is None else self.names[self.step_place]

    def _log(self) -> Log:
        for what, count in self.skipped.items():
            if count:
                _warn(f"{self.path}: {count} line{'s' * (count != 1)} skipped: {what}")
        if not self.gathered.steps:
            raise UsageError(f"{self.path} has names and no rows with a step: nothing was logged yet")
        run_id = short_id(name_of(self.path), *self.first)
        log = Log(self.path, name=name_of(self.path), run_id=run_id, rows=self.gathered, facts={"imported": {}})
        log.facts["imported"] |= origin("csv", self.names, step=self._step_name)
        if self.step_place is None:
            log.facts["imported"]["x_axis"] = "rows"
        if config := config_beside(self.path):
            log.facts["config"] = config
        return log


def _text(start: bytes) -> str:
    if start.startswith(UTF16):
        return start[: len(start) & ~1].decode("utf-16", errors="replace")
    return start.decode("utf-8-sig", errors="replace")


def _separator(line: str) -> str:
    return max(SEPARATORS, key=line.count)


def _names(line: str, separator: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]


def _unique(names: list[str]) -> list[str]:
    """Names without a gap: the empty one is `column 3`, one that was there before `name#2`."""
    seen: Counter[str] = Counter()
    found: list[str] = []
    for place, name in enumerate(names, 1):
        name = name or f"column {place}"
        seen[name] += 1
        while seen[name] > 1 and f"{name}#{seen[name]}" in names:
            seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return found


def _step(cell: str) -> int | None:
    try:
        step = int(cell)
    except ValueError:
        try:
            number = float(cell)
        except ValueError:
            return None
        if not np.isfinite(number) or number != int(number):
            return None
        step = int(number)
    return step if step in INT64 else None


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        word = cell.strip().lower()
        return SPOKEN.get(word, TRUTH.get(word))


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _warn(message: str) -> None:
    warnings.warn(message, GradiometerWarning, stacklevel=2)
