"""Logs as tables of text: the `progress.csv` of SB3, RLlib and baselines, Spinning Up's
`progress.txt`, exported histories, and what people write themselves.

Cells are split by commas, tabs, semicolons, bars or spaces. A file is read in blocks of rows, and
each column of a block becomes an array at once, so that a log of gigabytes never is Python objects.
An empty cell is a value that is missing, never a NaN; `nan` is a NaN that was logged.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from gradiometer.errors import NotARun, UsageError
from gradiometer.store.formats import Reads, called, log_format, remembered
from gradiometer.store.log_rows import check_log, why_no_log
from gradiometer.store.logs import Gathered, Log, number_of, short_id, warn
from gradiometer.store.opening import LONGEST_LINE, MOST_SERIES, open_bytes, open_text
from gradiometer.store.provenance import log_of, name_of
from gradiometer.store.reader import Floats, Ints
from gradiometer.store.step_column import ROWS, is_step_name, step_column, whole
from gradiometer.words import counted, some

__all__ = ["read_csv"]

SUFFIXES = (".csv", ".tsv")
SEPARATORS = (",", "\t", ";", "|")
ROWS_AT_ONCE = 4096
CELLS_AT_ONCE = 2_000_000
HEAD = 1000
"""Rows that are looked at to find out what counts the steps."""
MISSING = {"", "none", "null", "na", "n/a", "-", "--"}
TRUTH = {"true": 1.0, "false": 0.0}
UTF16 = (b"\xff\xfe", b"\xfe\xff")
RULE = re.compile(r"[\s|:+=\-]+")
"""The line under the names of a table of Markdown."""
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
OF_WANDB = re.compile(r"(.+) - (.+?)(__MIN|__MAX)?")
"""A column of a chart that W&B exports: the run and the metric."""


def reads_like_csv(start: bytes) -> bool:
    """Whether a file's first line is a line of names, one of which counts the steps, or rows of
    numbers under names of what a training logs."""
    lines = [line for line in _text(start).splitlines() if line.strip() and line[0] != "#"][:100]
    lines = [line for line in lines if not RULE.fullmatch(line)]
    if not lines or lines[0].lstrip()[:1] in ("{", "["):
        return False
    separator = _separator(lines[0], lines[1:2])
    try:
        names = _names(lines[0], separator)
        rows = [_names(line, separator) for line in lines[1:]]
    except csv.Error:
        return False
    if len(names) < 2 or any(len(name) > 200 for name in names) or _are_numbers(names):
        return False
    if separator != " " and any(map(is_step_name, names)):
        return True
    fitting = [row for row in rows if len(row) == len(names) and any(map(number_of, row))]
    if not fitting or 2 * len(fitting) < len(rows):
        return False
    columns = {name: [row[place] for row in fitting] for place, name in enumerate(names)}
    return any(map(is_step_name, names)) or not why_no_log(columns, len(fitting))


def _is_csv(path: Path, start: bytes) -> bool:
    return path.suffix in SUFFIXES or reads_like_csv(start)


def _progress(folder: Path, files: list[Path]) -> list[Path]:
    """SB3's, or where there is none Spinning Up's."""
    return list(called("progress.csv", "progress.txt")(folder, files))[:1]


def _that_are_logs(folder: Path, files: list[Path]) -> list[Path]:
    """Logs and not any table, such as the numbers behind a figure."""
    return [path for path in files if path.suffix in SUFFIXES and _has_rows(path)]


@remembered
def _has_rows(path: Path) -> bool:
    with open_bytes(path) as file:
        return reads_like_csv(file.read(1 << 16))


# Last of all to be asked, for any text may look like a table; a file called progress is a log.
@log_format(
    "progress",
    rank=40,
    title="a progress.csv or other CSV",
    find=_progress,
    reads=[
        Reads(
            tool="Stable-Baselines3",
            file="`progress.csv`, or its folder",
            steps="`time/total_timesteps`",
            taken="each column of numbers",
        ),
        Reads(
            tool="RLlib, Ray Tune",
            file="`progress.csv`, or its folder",
            steps="`timesteps_total`, `num_env_steps_sampled_lifetime`, `training_iteration`",
            taken="each column of numbers",
        ),
        Reads(
            tool="OpenAI baselines",
            file="`progress.csv`, or its folder",
            steps="`misc/total_timesteps`, `total/steps`, `steps`, `TimestepsSoFar`",
            taken="each column of numbers",
        ),
        Reads(
            tool="Spinning Up",
            file="`progress.txt`, or its folder",
            steps="`TotalEnvInteracts`, `Epoch`",
            taken="each column of numbers",
        ),
    ],
)
@log_format(
    "csv",
    rank=90,
    detect=_is_csv,
    find=_that_are_logs,
    reads=[
        Reads(
            tool="Acme, PufferLib, Lightning, own scripts",
            file="any table of text: commas, tabs, semicolons, bars, spaces",
            steps="a column with a usual name (`step`, `actor_steps`, `episode`, ...); else rows",
            taken="each column of numbers; `85%`, `1,200`, `3.2k` and units too",
        ),
        Reads(
            tool="W&B (chart exported as CSV)",
            file="CSV with columns `run - metric`",
            steps="`Step` or the chart's own x axis",
            taken="the longest run; `__MIN` and `__MAX` are left out",
        ),
    ],
)
def read_csv(path: Path) -> Log:
    """The log in a file with a line of names and a line for each row, split by commas, tabs,
    semicolons, bars or spaces.

    Of a name that is there twice, the second is called `name#2`. A line with more cells than names
    is skipped, because its cells may belong to other names; one with fewer lacks the last ones.
    Both, and lines without a step, are reported. Where no column counts the steps, the rows are
    counted. In a file that begins with numbers the columns have no names but the file's.
    """
    return CsvFile(path).read()


class CsvFile:
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
        self.separator = ","
        self.kind = "csv"

    def read(self) -> Log:
        """The log, with a warning for what was lost."""
        with open_bytes(self.path) as file:
            start = file.read(1 << 16)
        if not start.strip():
            raise UsageError(f"{self.path} is an empty file: nothing was logged yet")
        encoding = "utf-16" if start.startswith(UTF16) else "utf-8-sig"
        if encoding != "utf-16" and b"\0" in start:
            raise NotARun(f"{self.path} is not a run, nor a CSV log: it is a binary file")
        try:
            with open_text(self.path, encoding=encoding) as file:
                rest = self._header(file)
                self._read_rows(self._rows(chain(rest, self._lines(file))))
        except (csv.Error, UnicodeError) as problem:
            raise UsageError(f"{self.path} cannot be read as CSV ({problem})") from problem
        return self._log()

    def _header(self, file: Any) -> list[str]:
        """Read the names; the line after them, which was looked at to know how cells are split."""
        line = file.readline(LONGEST_LINE)
        while line.startswith("#") or line.isspace() or (line and RULE.fullmatch(line)):
            line = file.readline(LONGEST_LINE)
        self.separator = _separator(line, ["x y"])
        rest = list(islice(self._lines(file), 1))
        self.separator = _separator(line, rest)
        self._check_cells(line)
        found = _names(line, self.separator)
        if _are_numbers(found):
            found, rest = _names_of_nobody(self.path, len(found)), [line, *rest]
        self.nameless = {place for place, name in enumerate(found) if not name}
        self.names = _unique(found)
        self.gathered.left_out |= {self.names[place] for place in self.nameless}
        pairs = zip(self.names, found, strict=True)
        if twice := [name for name, before in pairs if before and name != before]:
            warn(f"{self.path}: names that are there twice are kept as {some(twice)}")
        return rest

    def _lines(self, file: Any) -> Iterator[str]:
        """The lines, without the last cell of a line that does not end: it may be half a number."""
        for line in iter(partial(file.readline, LONGEST_LINE), ""):
            if len(line) >= LONGEST_LINE:
                raise UsageError(
                    f"{self.path}: a line is longer than {LONGEST_LINE >> 20} MB; is this a text"
                    " file?"
                )
            self._check_cells(line)
            if not line.endswith(("\n", "\r")):
                warn(
                    f"{self.path}: the last line does not end, so its last cell may be cut off and"
                    " was left out"
                )
                line = line.rpartition(self.separator)[0]
            yield line

    def _check_cells(self, line: str) -> None:
        if len(line) > MOST_SERIES and line.count(self.separator) > MOST_SERIES:
            raise UsageError(
                f"{self.path}: a line has more than {MOST_SERIES:,} cells: is this the log of a"
                " training?"
            )

    def _rows(self, lines: Iterable[str]) -> Iterator[list[str]]:
        if self.separator == " ":
            return (line.split() for line in lines)
        if self.separator == "|":
            return (_names(line, "|") for line in lines if not RULE.fullmatch(line))
        return csv.reader(lines, delimiter=self.separator)

    def _read_rows(self, reader: Any) -> None:
        rows = iter(reader)
        at_once = max(min(ROWS_AT_ONCE, CELLS_AT_ONCE // max(len(self.names), 1)), 2)
        head = list(islice(rows, at_once))
        self._find_step([row for row in head if len(row) <= len(self.names)])
        while head:
            self._take(head)
            head = list(islice(rows, at_once))

    def _find_step(self, rows: list[list[str]]) -> None:
        """Also what else the first rows tell: whose runs they are, and whether they are a log."""
        head = [row + [""] * (len(self.names) - len(row)) for row in rows[:HEAD]]
        columns = {
            name: [row[place].strip() for row in head] for place, name in enumerate(self.names)
        }
        name = step_column(columns, len(head))
        self._of_one_run(columns)
        if name is None and not rows:
            return
        if name is None:
            check_log(self.path, columns, len(head))
            warn(
                f"{self.path}: no column counts the steps, so its rows are counted; known are step,"
                " episode, epoch, ..."
            )
            return
        self.step_place = self.names.index(name)

    def _of_one_run(self, columns: dict[str, list[str]]) -> None:
        """Of a chart that W&B exported, take the run with the most values, under plain names."""
        found = {
            place: match
            for place, name in enumerate(self.names)
            if (match := OF_WANDB.fullmatch(name))
        }
        if not found or len(found) < len(self.names) - 3:
            return
        filled: Counter[str] = Counter()
        for place, match in found.items():
            filled[match[1]] += sum(map(bool, columns[self.names[place]])) if not match[3] else 0
        self.kind = "wandb-csv"
        (longest, _), *others = filled.most_common()
        if others:
            warn(
                f"{self.path}: {counted(len(filled), 'run')} in it; read is {longest}, not"
                f" {some(run for run, _ in others)}"
            )
        for place, match in found.items():
            if match[1] != longest or match[3]:
                self.nameless.add(place)
                self.gathered.left_out.add(self.names[place])
            else:
                self.names[place] = match[2]

    def _take(self, rows: list[list[str]]) -> None:
        width = len(self.names)
        if {len(row) for row in rows} != {width} or any(row == self.names for row in rows):
            rows = list(self._fitting(rows))
        if not rows:
            return
        columns: list[Sequence[str]] = list(zip(*rows, strict=True))
        if self.step_place is None:
            steps, kept = self._rows_counted(len(rows))
        else:
            steps, kept = self._steps(columns[self.step_place])
        if not self.first and len(steps):
            self.first = [cell for cell in rows[kept[0] if kept is not None else 0] if cell]
        found = {}
        for place, (name, cells) in enumerate(zip(self.names, columns, strict=True)):
            if place != self.step_place and place not in self.nameless:
                some_cells = cells if kept is None else [cells[row] for row in kept]
                found[name] = self._column(name, some_cells)
        self.gathered.block(steps, found)

    def _fitting(self, rows: list[list[str]]) -> Iterator[list[str]]:
        width = len(self.names)
        for row in rows:
            if len(row) > width and any(cell.strip() for cell in row[width:]):
                self.skipped["more cells than names"] += 1
            elif [cell.strip() for cell in row] == self.names:
                self.skipped["the names again"] += 1
            elif self.step_place is None and not any(number_of(cell) is not None for cell in row):
                self.skipped["no number in it"] += any(cell.strip() for cell in row)
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
            steps = {row: whole(cell) for row, cell in enumerate(cells)}
            found = {row: step for row, step in steps.items() if step is not None}
            self.skipped[f"no whole number as {self._step_name}"] += len(cells) - len(found)
            return np.array(list(found.values()), dtype=np.int64), list(found)

    def _column(self, name: str, cells: Sequence[str]) -> tuple[Ints, Floats]:
        """The rows that have a number, and the numbers."""
        try:
            values = np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
        except ValueError:
            return self._some_numbers(name, cells)
        return np.arange(len(cells)), values

    def _some_numbers(self, name: str, cells: Sequence[str]) -> tuple[Ints, Floats]:
        """The numbers among the cells with their places, one by one where some are none."""
        places = [place for place, cell in enumerate(cells) if cell]
        filled = [cells[place] for place in places]
        try:
            values = list(map(float, filled))
        except ValueError:
            comma = self.separator != ","
            read = {place: _number(cells[place], decimal_comma=comma) for place in places}
            unread = (cells[place] for place, number in read.items() if number is None)
            if any(cell.strip().lower() not in MISSING for cell in unread):
                self.gathered.left_out.add(name)
            numbers = {place: number for place, number in read.items() if number is not None}
            places, values = list(numbers), list(numbers.values())
        return np.array(places, dtype=np.int64), np.array(values, dtype=np.float64)

    @property
    def _step_name(self) -> str:
        return "" if self.step_place is None else self.names[self.step_place]

    def _log(self) -> Log:
        for what, count in self.skipped.items():
            if count:
                warn(f"{self.path}: {counted(count, 'line')} skipped: {what}")
        if not self.gathered.steps:
            raise UsageError(
                f"{self.path} has names and no rows with a step: nothing was logged yet"
            )
        run_id = short_id(name_of(self.path), *self.first)
        log = log_of(
            self.path, self.gathered, self.kind, run_id, names=self.names, step=self._step_name
        )
        if self.step_place is None:
            log.facts["imported"]["x_axis"] = ROWS
        return log


def _text(start: bytes) -> str:
    if start.startswith(UTF16):
        return start[: len(start) & ~1].decode("utf-16", errors="replace")
    return start.decode("utf-8-sig", errors="replace")


def _separator(line: str, after: Sequence[str]) -> str:
    """What splits the names; spaces where nothing else does and the next line has as many."""
    found = max(SEPARATORS, key=line.count)
    if line.count(found):
        return found
    names = line.split()
    return " " if len(names) > 1 and after and len(after[0].split()) == len(names) else ","


def _names(line: str, separator: str) -> list[str]:
    if separator == " ":
        return line.split()
    if separator == "|":
        return [name.strip() for name in line.strip().strip("|").split("|")]
    return [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]


def _are_numbers(cells: Sequence[str]) -> bool:
    return bool(cells) and all(number_of(cell) is not None for cell in cells)


def _names_of_nobody(path: Path, count: int) -> list[str]:
    """Where a file has no names: its own for the only column, the first of several may count."""
    if count <= 2:
        return ["step", path.stem][-count:]
    return ["step", *(f"column {place}" for place in range(2, count + 1))]


def _unique(names: list[str]) -> list[str]:
    """Names without a gap: the empty one is `column 3`, one that was there before `name#2`."""
    seen: Counter[str] = Counter()
    found: list[str] = []
    taken = set(names)
    for place, name in enumerate(names, 1):
        name = name or f"column {place}"
        seen[name] += 1
        while seen[name] > 1 and f"{name}#{seen[name]}" in taken:
            seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return found


def _number(cell: str, *, decimal_comma: bool) -> float | None:
    if decimal_comma and DECIMAL_COMMA.fullmatch(cell.strip()):
        return float(cell.replace(",", "."))
    number = number_of(cell)
    return TRUTH.get(cell.strip().lower()) if number is None else number
