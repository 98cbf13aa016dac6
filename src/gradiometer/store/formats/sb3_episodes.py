"""What the wrappers of Stable-Baselines3 and OpenAI baselines write beside a training: a line for
each episode (`monitor.csv`), and the episodes of each evaluation (`evaluations.npz`).

A monitor counts no steps, but it has the length of every episode, so the steps are their sum. Each
environment of a vectorised training has a monitor of its own: their episodes are put in order of
time.
"""

from __future__ import annotations

import csv
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gradiometer.errors import NotARun, UsageError
from gradiometer.store.formats import Reads, log_format
from gradiometer.store.log_rows import Entry, LogRows
from gradiometer.store.logs import ENV_STEPS, Gathered, Log, number_of, short_id, warn
from gradiometer.store.opening import open_bytes, open_text
from gradiometer.store.provenance import log_of, name_of
from gradiometer.words import counted, some

__all__ = ["read_arrays", "read_monitors"]

MONITOR = "monitor.csv"
NUMBERED = re.compile(r"(?:\d+\.)+monitor\.csv")
"""One of several environments: `0.monitor.csv`, baselines' `0.1.monitor.csv`."""
NAMES = {
    "r": "reward",
    "l": "episode_length",
    "is_success": "success_rate",
    "success": "success_rate",
}
EVALUATIONS = "evaluations.npz"
EVALUATED = {
    "results": ("eval/mean_reward", "eval/std_reward"),
    "ep_lengths": ("eval/mean_ep_length", "eval/std_ep_length"),
    "successes": ("eval/success_rate", ""),
}
"""The names SB3 gives to the mean and the spread of the same episodes in its own log."""
ARRAY_SUFFIXES = (".npz", ".npy")
LARGEST_ARRAYS = 1 << 30
UNREADABLE = (
    *(OSError, ValueError, EOFError, KeyError, TypeError, RuntimeError, MemoryError),
    *(OverflowError, SyntaxError, zipfile.BadZipFile, zlib.error),
)
"""What numpy and zipfile raise at broken files; NotImplementedError is a RuntimeError."""


class Episode(NamedTuple):
    """A line of a monitor."""

    when: float
    length: int
    values: dict[str, float]


def _is_monitor(path: Path, start: bytes) -> bool:
    """By its names; the oldest baselines wrote the same as lines of JSON."""
    lines = start.splitlines()[:2]
    if lines and lines[0].startswith(b"{"):
        return all(key in lines[-1] for key in (b'"r":', b'"l":', b'"t":'))
    names = lines[-1] if lines and lines[0].startswith(b"#") else b"".join(lines[:1])
    return names.replace(b" ", b"").split(b",")[:3] == [b"r", b"l", b"t"]


def _is_arrays(path: Path, start: bytes) -> bool:
    if start.startswith(b"\x93NUMPY"):
        return True
    length = int.from_bytes(start[26:28], "little")
    return start.startswith(b"PK\x03\x04") and start[30 : 30 + length].endswith(b".npy")


def _monitors(folder: Path, files: list[Path]) -> list[Path]:
    """Those of the environments of one training, or the longest; with the evaluations beside."""
    there = [path for path in files if path.name.endswith(MONITOR) and _begins_as_one(path)]
    of_one = [path for path in there if NUMBERED.fullmatch(path.name)]
    chosen = of_one or sorted(there, key=lambda path: -path.stat().st_size)[:1]
    return [*chosen, *(path for path in files if path.name == EVALUATIONS)]


def _begins_as_one(path: Path) -> bool:
    with open_bytes(path) as file:
        return _is_monitor(path, file.read(1 << 12))


@log_format(
    "monitor",
    rank=53,
    title="a monitor.csv",
    detect=_is_monitor,
    find=_monitors,
    joined=True,
    reads=[
        Reads(
            tool="Stable-Baselines3, RL Zoo, OpenAI baselines",
            file="`monitor.csv`, `0.monitor.csv`, ...; all of a folder together",
            steps="the lengths of the episodes, added up",
            taken="`r` as `reward`, `l` as `episode_length`, other columns by their names",
        )
    ],
)
def read_monitors(path: Path, *also: Path) -> Log:
    """The episodes of the monitors of one training, in order of time, and its evaluations."""
    if path.name == EVALUATIONS and not also:
        return read_arrays(path)
    files = (path, *also)
    gathered = Gathered()
    left_out: set[str] = set()
    parts: list[list[Episode]] = []
    for file in files:
        if file.name != EVALUATIONS:
            for number, part in enumerate(_parts(file, left_out)):
                parts += [[] for _ in range(number + 1 - len(parts))]
                parts[number] += part
    if not any(parts):
        raise UsageError(f"{path} has no finished episode: nothing was logged yet")
    for part in parts:
        _sort_in(gathered, sorted(part, key=lambda episode: episode.when))
    for file in files:
        if file.name == EVALUATIONS:
            _evaluations(gathered, file)
    gathered.left_out |= left_out
    run_id = short_id(name_of(path), parts[0][0])
    log = log_of(path, gathered, "monitor", run_id, step="l", library="SB3")
    log.facts["imported"] |= {"step": "l, added up", "x_axis": ENV_STEPS, "library": "SB3"}
    return log


def _parts(path: Path, left_out: set[str]) -> Iterator[list[Episode]]:
    """The episodes of a monitor; from every line of settings on it is another training's."""
    names: list[str] = []
    part: list[Episode] = []
    began, broken = 0.0, 0
    with open_text(path) as file:
        for cells in csv.reader(_unquoted(file, names)):
            text = ",".join(cells)
            if text.startswith("#"):
                if part:
                    yield part
                began, part = _began(text), []
            elif cells[:3] == ["r", "l", "t"]:
                names = cells
            elif cells and (episode := _episode(names, cells, began, left_out)):
                part.append(episode)
            else:
                broken += bool(cells)
    if broken:
        warn(f"{path}: {counted(broken, 'line')} skipped: no episode (r, l, t)")
    yield part


def _unquoted(file: Any, names: list[str]) -> Iterator[str]:
    """The lines as cells: the settings are JSON, and of the oldest monitors everything is."""
    for line in file:
        if line.startswith("{"):
            row = _object(line)
            if "r" in row:
                names[:] = names or list(row)
                yield ",".join(str(row.get(name, "")) for name in names)
            else:
                yield "#" + line.replace('"', "")
        else:
            yield line.replace('"', "") if line.startswith("#") else line.replace(" ", "")


def _object(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {"r": "cut off"}
    return row if isinstance(row, dict) else {}


def _began(text: str) -> float:
    found = re.search(r"t_start:\s*([\d.eE+]+)", text)
    return float(found[1]) if found and number_of(found[1]) is not None else 0.0


def _episode(
    names: Sequence[str], cells: Sequence[str], began: float, left_out: set[str]
) -> Episode | None:
    numbers = [number_of(cell) for cell in cells]
    if (
        len(cells) < 3
        or None in numbers[:3]
        or not np.isfinite(np.array(numbers[1:3], float)).all()
    ):
        return None
    values = {}
    for name, cell, number in zip(names, cells, numbers, strict=False):
        truth = {"True": 1.0, "False": 0.0}.get(cell, number)
        if truth is not None and name != "t":
            values[NAMES.get(name, name)] = truth
        elif cell and name != "t":
            left_out.add(name)
    _, length, time = numbers[:3]
    return Episode(began + float(time or 0.0), max(int(length or 0), 0), values)


def _sort_in(gathered: Gathered, episodes: Sequence[Episode]) -> None:
    step = 0
    for episode in episodes:
        step += episode.length
        gathered.numbers(step, episode.values)
        if episode.when > 1e8:  # since 1970, and not since the start
            gathered.clock.add("wall_time", step, episode.when)


@log_format(
    "numpy",
    rank=56,
    title="an evaluations.npz",
    detect=_is_arrays,
    reads=[
        Reads(
            tool="Stable-Baselines3, RL Zoo",
            file="`evaluations.npz` (numpy, nothing is unpickled)",
            steps="`timesteps`",
            taken="mean and spread of `results`, `ep_lengths`, `successes` as `eval/...`",
        ),
        Reads(
            tool="own scripts",
            file="any `.npz` or `.npy` of numbers",
            steps="an array with a usual name; else rows",
            taken="arrays of one number a row; of several, their mean",
        ),
    ],
)
def read_arrays(path: Path) -> Log:
    """The log in a file of numpy arrays, side by side by their first axis."""
    arrays, left_out = _arrays(path)
    if "timesteps" in arrays and "results" in arrays:
        gathered = Gathered()
        _evaluations(gathered, path)
        run_id = short_id(name_of(path), *arrays["results"].ravel()[:1].tolist())
        log = log_of(path, gathered, "numpy", run_id, step="timesteps", library="SB3")
        return log
    rows = LogRows(path, "row")
    for table in _side_by_side(arrays):
        try:
            rows.take(table)
        except NotARun:
            if len(table) == max(map(len, arrays.values())):
                raise
    if not rows.gathered.steps:
        shapes = some(f"{name} {array.shape}" for name, array in arrays.items()) or "no numbers"
        raise NotARun(
            f"{path} is not a run, nor a log: it holds arrays ({shapes}), none with a number a step"
        )
    rows.gathered.left_out |= left_out
    return rows.log("numpy", short_id(name_of(path), len(rows.gathered.steps)))


def _arrays(path: Path) -> tuple[dict[str, Any], set[str]]:
    """The arrays of numbers by name, and the names of the others; nothing is unpickled."""
    arrays: dict[str, Any] = {}
    left_out: set[str] = set()
    try:
        with open_bytes(path) as file:
            if zipfile.is_zipfile(file):
                archive = zipfile.ZipFile(file)
                if sum(each.file_size for each in archive.infolist()) > LARGEST_ARRAYS:
                    raise UsageError(f"{path} holds more than {LARGEST_ARRAYS >> 30} GB of arrays")
        with open_bytes(path) as file:
            loaded = np.load(file, allow_pickle=False)
            names = loaded.files if hasattr(loaded, "files") else [path.stem]
            for name in names:
                try:
                    array = loaded[name] if hasattr(loaded, "files") else loaded
                except ValueError:  # objects, such as lists of different lengths
                    left_out.add(name)
                    continue
                numeric = array.dtype.kind in "fiub" and array.ndim in (1, 2) and array.size
                arrays |= {name: array} if numeric else {}
                left_out |= set() if numeric else {name}
    except UNREADABLE as problem:
        raise NotARun(
            f"{path} is no file of arrays that can be read ({problem!s:.200})"
        ) from problem
    return arrays, left_out


def _side_by_side(arrays: dict[str, Any]) -> Iterator[list[Entry]]:
    for length in sorted({len(array) for array in arrays.values()}, reverse=True):
        means = {
            name: (array if array.ndim == 1 else array.mean(axis=1)).tolist()
            for name, array in arrays.items()
            if len(array) == length and length > 1
        }
        if means:
            cells = zip(*means.values(), strict=True)
            yield [
                Entry(f"row {number}", dict(zip(means, row, strict=True)))
                for number, row in enumerate(cells, 1)
            ]


def _evaluations(gathered: Gathered, path: Path) -> None:
    arrays, left_out = _arrays(path)
    gathered.left_out |= left_out
    steps = arrays.get("timesteps")
    if steps is None or steps.ndim != 1:
        warn(f"{path}: no timesteps in it, so its evaluations are left out")
        return
    for name, (mean, spread) in EVALUATED.items():
        values = arrays.get(name)
        if values is None or len(values) != len(steps):
            continue
        values = values.reshape(len(steps), -1).astype(np.float64)
        for place, step in enumerate(steps.tolist()):
            found = {mean: float(values[place].mean())}
            if spread:
                found[spread] = float(values[place].std())
            gathered.numbers(int(step), found)
