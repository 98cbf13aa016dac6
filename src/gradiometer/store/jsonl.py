"""Logs of JSON objects: a line each (verl's file logger, exported W&B histories, what people write themselves), a list of
them in one document, or the `log_history` of a `trainer_state.json` as transformers and TRL save it."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from gradiometer.errors import GradiometerWarning, NotARun, UsageError
from gradiometer.store.facts import redact
from gradiometer.store.logs import INT64, Gathered, Log, short_id
from gradiometer.store.origins import config_beside, expected_steps, name_of, origin, step_key

__all__ = ["TRAINER_STATE", "read_json", "read_jsonl"]

TRAINER_STATE = "trainer_state.json"
HEAD = 1000
"""Rows that are looked at to find out what counts the steps."""
LONGEST_LINE = 1 << 28
LARGEST_DOCUMENT = 1 << 29
SHOWN = 10


class Entry(NamedTuple):
    """A logged object and where it stands: `line 3`, `entry 3`."""

    where: str
    values: dict[str, Any]


def read_jsonl(path: str | os.PathLike[str]) -> Log:
    """The log in a file of lines `{"step": 3, "data": {...}}` or `{"step": 3, "loss": 0.1, ...}`.

    A broken last line is what a crash leaves behind: it is reported and skipped. Any other is an error.
    """
    path = Path(path)
    first: list[bytes] = []
    log = _read(path, _lines(path, first.append), "jsonl", "line", lambda: short_id(path.stem, *first))
    return log


def read_json(path: str | os.PathLike[str]) -> Log:
    """The log in a JSON document: a `trainer_state.json`, or a list of rows. One row after another is JSONL."""
    path = Path(path)
    if path.stat().st_size > LARGEST_DOCUMENT:
        raise UsageError(f"{path} is a JSON document of more than {LARGEST_DOCUMENT >> 20} MB: log one object a line")
    twice: set[str] = set()
    try:
        content = _decode(path.read_bytes(), twice)
    except ValueError as problem:
        if "Extra data" in str(problem):
            return read_jsonl(path)
        raise UsageError(f"{path}: not JSON ({problem}); was it cut off?") from problem
    except RecursionError as problem:
        raise UsageError(f"{path}: nested too deeply to be read") from problem
    _say_twice(path, twice)
    if isinstance(content, dict) and isinstance(content.get("log_history"), list):
        return _trainer_state(path, content)
    rows = [content] if isinstance(content, dict) else content
    if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
        return _read(path, _entries(path, rows), "json", "entry", lambda: short_id(path.stem, rows[0]))
    found = f"a list of {len(content)}" if isinstance(content, list) else type(content).__name__
    raise NotARun(f"{path} is not a run, nor a log: its JSON is {found}, not rows with a step and no log_history")


def _trainer_state(path: Path, content: dict[str, Any]) -> Log:
    history = content.pop("log_history")
    if not history:
        raise UsageError(f"{path} has an empty log_history: nothing was logged yet; see logging_steps")
    log = _read(path, _entries(path, history), "trainer_state", "entry", lambda: short_id(name_of(path), history[0]))
    plain = {key: value for key, value in content.items() if isinstance(value, str | int | float | bool)}
    log.facts["config"] = {**redact(plain), **log.facts.get("config", {})}
    return log


def _read(path: Path, entries: Iterator[Entry], kind: str, unit: str, run_id: Callable[[], str]) -> Log:
    head = list(islice(entries, HEAD))
    filled = Counter(name for entry in head for name, value in entry.values.items() if value is not None)
    key = step_key(filled, len(head))
    if key is None:
        raise UsageError(f"{path} has no {unit} with a step: each needs one of {expected_steps()}")
    gathered, stepless = Gathered(), []
    for entry in chain(head, entries):
        if entry.values.get(key) is None:
            stepless.append(entry.where)
            continue
        step = _step(entry.values[key], key, f"{path}, {entry.where}")
        gathered.row(step, _inner(entry.values, key), f"{path}, {entry.where}")
    if stepless:
        units = "lines" if unit == "line" else "entries"
        _warn(f"{path}: {len(stepless)} {units} have no step ({key}) and were skipped, the first is {stepless[0]}")
    log = Log(path, name=name_of(path), run_id=run_id(), rows=gathered, facts={"imported": {"format": kind}})
    whose = "transformers" if kind == "trainer_state" else ""
    log.facts["imported"] |= origin(kind, log.names(), step=key, library=whose)
    if config := config_beside(path):
        log.facts["config"] = config
    return log


def _lines(path: Path, first: Callable[[bytes], object]) -> Iterator[Entry]:
    twice: set[str] = set()
    for number, line, is_first, is_last in _with_neighbours(path):
        if is_first:
            first(line.rstrip(b"\r\n"))
        try:
            values = _decode(line, twice)
        except (json.JSONDecodeError, UnicodeDecodeError) as problem:
            if not is_last or is_first:
                raise UsageError(f"{path}, line {number}: not JSON ({problem})") from problem
            _warn(f"{path}, line {number}: the last line is cut off and was skipped")
            break
        except (ValueError, RecursionError) as problem:  # thousands of digits, or of levels
            raise UsageError(f"{path}, line {number}: cannot be read ({problem})") from problem
        if not isinstance(values, dict):
            raise UsageError(f"{path}, line {number}: a line must be a JSON object, not {type(values).__name__}")
        yield Entry(f"line {number}", values)
    _say_twice(path, twice)


def _with_neighbours(path: Path) -> Iterator[tuple[int, bytes, bool, bool]]:
    """Each line that is not blank with its number, and whether it is the first or the last of them; one is held at a time."""
    held: tuple[int, bytes, bool] | None = None
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), 1):
            if len(line) >= LONGEST_LINE:
                raise UsageError(f"{path}, line {number}: longer than {LONGEST_LINE >> 20} MB; is this a text file?")
            if not line.strip():
                continue
            if held is not None:
                yield *held, False
            held = (number, line, held is None)
    if held is not None:
        yield *held, True


def _entries(path: Path, rows: Iterable[Any]) -> Iterator[Entry]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UsageError(f"{path}, entry {number}: an entry must be a JSON object, not {type(row).__name__}")
        yield Entry(f"entry {number}", row)


def _decode(text: bytes, twice: set[str]) -> Any:
    def held(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            twice.update(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        return values

    return json.loads(text, object_pairs_hook=held)


def _inner(values: dict[str, Any], key: str) -> dict[str, Any]:
    others = {name: value for name, value in values.items() if name != key}
    data = others.get("data")
    return data if isinstance(data, dict) and len(others) == 1 else others


def _step(step: Any, name: str, where: str) -> int:
    if isinstance(step, bool) or not isinstance(step, int | float) or not _is_whole(step):
        raise UsageError(f"{where}: {name} must be a whole number, not {step!r:.60}")
    if int(step) not in INT64:
        raise UsageError(f"{where}: {name} has {len(str(abs(int(step))))} digits and does not fit into 64 bits")
    return int(step)


def _is_whole(step: float) -> bool:
    return isinstance(step, int) or (math.isfinite(step) and step == int(step))


def _say_twice(path: Path, twice: set[str]) -> None:
    if twice:
        _warn(f"{path}: said twice in one object, the last counts: {', '.join(sorted(twice)[:SHOWN])}")


def _warn(message: str) -> None:
    warnings.warn(message, GradiometerWarning, stacklevel=2)
