"""Rows of named values become a log: what counts their steps is found in the first thousand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from gradiometer.errors import NotARun
from gradiometer.metrics import resolve
from gradiometer.store.facts import redact
from gradiometer.store.logs import Gathered, Log, flat, number_of, warn
from gradiometer.store.provenance import config_beside, log_of
from gradiometer.store.step_column import ROWS, expected_steps, is_step_name, step_column, whole
from gradiometer.words import counted, some

__all__ = ["Entry", "LogRows", "check_log", "is_measured", "why_no_log"]

HEAD = 1000
"""Rows that are looked at to find out what counts the steps."""
MOST_CELLS = 2_000_000
"""Looked at before the first row is taken."""
SETTINGS = ("config", "args", "hparams", "hyperparameters", "params")
"""Settings that some tools write into every row."""
LEARNING = re.compile(
    r"(?:^|[^a-z])(?:reward|rewards|rew|return|returns|ret|score|scores|loss|losses|acc|accuracy"
    r"|kl|approx_?kl|entropy|success|win|pass|grad|gradient|lr|advantage|margin|q_?values?|td)"
    r"(?:$|[^a-z])"
)
"""A word that says that a learner is measured, in names the catalogue does not know."""
OF_RUNS = re.compile(
    r"(?:^|[^a-z])(?:run|name|model|method|algo|algorithm|experiment|agent)s?(?:$|[^a-z])"
)


class Entry(NamedTuple):
    """A logged object and where it stands: `line 3`, `entry 3`."""

    where: str
    values: Mapping[str, Any]


class LogRows:
    """One file while it is read."""

    def __init__(self, path: Path, unit: str) -> None:
        self.path = path
        self.unit = unit
        """What a row is called in a warning: line, entry."""
        self.gathered = Gathered()
        self.step = ""
        """What counts the steps; empty where rows are counted."""
        self.config: dict[str, Any] = {}
        self._rows = 0
        self._skipped = 0
        self._first_skipped = ""
        self._known: dict[str, tuple[int, Any]] = {}
        """Of each name the first step and value."""

    def take(self, entries: Iterable[Entry], *, name: str = "") -> None:
        """Sort rows in, with a name in front of theirs. Where there are rows already, their counts
        and what says the same again under the same name are left out."""
        rows = self._flat(entries)
        head = list(islice(rows, HEAD))
        columns, looked = _columns([row.values for row in head])
        step = step_column(columns, looked)
        if step is None:
            check_log(self.path, columns, looked)
            self._say_counted(columns)
        self.step = self.step or step or ""
        self._skipped, self._first_skipped, self._rows = 0, "", 0
        known, self._known = self._known, {}
        again = {key for key in columns if known and is_step_name(key)}
        for row in chain(head, rows):
            self._sort_in(row, step, name, known, again)
        self._known = {**self._known, **known}
        if self._skipped:
            warn(
                f"{self.path}: {counted(self._skipped, self.unit)} without a step ({step}) skipped,"
                f" the first is {self._first_skipped}"
            )

    def log(self, kind: str, run_id: str, *, library: str = "", name: str = "") -> Log:
        """The log of all rows."""
        config = redact({**config_beside(self.path), **self.config}) or None
        log = log_of(
            self.path,
            self.gathered,
            kind,
            run_id,
            step=self.step,
            library=library,
            config=config,
            name=name,
        )
        if not self.step:
            log.facts["imported"]["x_axis"] = ROWS
        return log

    def _flat(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        for where, values in entries:
            inner = self._without_settings(values)
            yield Entry(where, flat(inner, f"{self.path}, {where}"))

    def _without_settings(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        for key in SETTINGS:
            if isinstance(values.get(key), dict) and len(values) > 1:
                self.config.update(values[key])
                values = {name: value for name, value in values.items() if name != key}
        data = values.get("data")
        if isinstance(data, dict) and all(key == "data" or is_step_name(key) for key in values):
            return {**data, **{key: value for key, value in values.items() if key != "data"}}
        return values

    def _sort_in(
        self,
        row: Entry,
        step: str | None,
        name: str,
        known: Mapping[str, tuple[int, Any]],
        again: set[str],
    ) -> None:
        at = self._rows if step is None else whole(row.values.get(step))
        self._rows += 1
        if at is None:
            self._skipped += 1
            self._first_skipped = self._first_skipped or row.where
            return
        values = {}
        for key, value in row.values.items():
            if key not in self._known:
                self._known[key] = (at, value)
                if known.get(key) == (at, value):
                    again.add(key)
            if key != step and key not in again:
                values[f"{name}/{key}" if name else key] = value
        self.gathered.leaves(at, values)

    def _say_counted(self, columns: Mapping[str, Sequence[Any]]) -> None:
        rather = [name for name in columns if is_step_name(name)]
        because = f" ({some(rather)} does not count them)" if rather else ""
        warn(
            f"{self.path}: no column counts the steps{because}, so its rows are counted; known are"
            " step, episode, epoch, ..."
        )


def check_log(path: Path, columns: Mapping[str, Sequence[Any]], rows: int) -> None:
    """Raise unless rows without a step look like those of a log."""
    if why := why_no_log(columns, rows):
        raise NotARun(
            f"{path} is not a run, nor a log: {why}; a log has one of {expected_steps()}, or names"
            f" such as reward and loss; found: {some(columns)}"
        )


def why_no_log(columns: Mapping[str, Sequence[Any]], rows: int) -> str:
    """Why rows without a step are no log; empty when they look like one."""
    if not columns or not rows:
        return "it has no rows"
    for name, cells in columns.items():
        texts = {cell for cell in cells if isinstance(cell, str) and number_of(cell) is None}
        if 10 * len(texts) >= 9 * rows and OF_RUNS.search(_words(name)):
            return f"it is a table of runs or models, a row for each {name}, and not of steps"
    if not any(_is_curve(name, cells) for name, cells in columns.items()):
        return "it has no column that counts the steps, and no name of what a training logs"
    return "it is one set of values and not a curve" if rows < 2 else ""


def is_measured(name: str) -> bool:
    """Whether a name says that a learner is measured."""
    return LEARNING.search(_words(name)) is not None or resolve(name) is not None


def _is_curve(name: str, cells: Sequence[Any]) -> bool:
    if not is_measured(name):
        return False
    return any(number_of(cell) is not None for cell in cells)


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _columns(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, list[Any]], int]:
    """The cells of the first rows by name, and of how many rows: fewer where there are many
    names."""
    columns: dict[str, list[Any]] = {}
    names = len({name for row in rows for name in row})
    rows = rows[: max(MOST_CELLS // max(names, 1), 2)]
    for place, row in enumerate(rows):
        for name, value in row.items():
            if name not in columns:
                columns[name] = [None] * len(rows)
            columns[name][place] = value
    return columns, len(rows)
