"""Logs of one JSON object a line: verl's file logger, exported W&B histories, and whatever people write themselves."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradiometer.errors import GradiometerWarning, UsageError
from gradiometer.store.logs import INT64, Log, flat, short_id

__all__ = ["read_jsonl"]

STEP_KEYS = ("_step", "step", "global_step")


def read_jsonl(path: str | os.PathLike[str]) -> Log:
    """The log in a file of lines `{"step": 3, "data": {...}}` or `{"step": 3, "loss": 0.1, ...}`.

    A broken last line is what a crash leaves behind: it is reported and skipped. Any other is an error.
    """
    path = Path(path)
    lines = path.read_bytes().splitlines()
    rows = list(_rows(path, lines))
    if not rows:
        raise UsageError(f"{path} has no line with a step: each needs one of {', '.join(STEP_KEYS)}")
    first = next(line for line in lines if line.strip())
    return Log(
        path, name=path.stem, run_id=short_id(path.stem, first), rows=rows, facts={"imported": {"format": "jsonl"}}
    )


def _rows(path: Path, lines: list[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    stepless = []
    for number, line in numbered:
        try:
            entry = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as problem:
            if number != numbered[-1][0] or number == numbered[0][0]:
                raise UsageError(f"{path}, line {number}: not JSON ({problem})") from problem
            _warn(f"{path}, line {number}: the last line is cut off and was skipped")
            break
        except (ValueError, RecursionError) as problem:  # thousands of digits, or of levels
            raise UsageError(f"{path}, line {number}: cannot be read ({problem})") from problem
        if not isinstance(entry, dict):
            raise UsageError(f"{path}, line {number}: a line must be a JSON object, not {type(entry).__name__}")
        found = _step_and_values(entry, f"{path}, line {number}")
        if found is None:
            stepless.append(number)
        else:
            yield found
    if stepless and len(stepless) < len(numbered):
        _warn(f"{path}: {len(stepless)} lines have no step and were skipped, the first is line {stepless[0]}")


def _step_and_values(entry: dict[str, Any], where: str) -> tuple[int, dict[str, Any]] | None:
    name = next((key for key in STEP_KEYS if entry.get(key) is not None), None)
    if name is None:
        return None
    step = entry[name]
    if isinstance(step, bool) or not isinstance(step, int | float) or not _is_whole(step):
        raise UsageError(f"{where}: {name} must be a whole number, not {step!r}")
    if int(step) not in INT64:
        raise UsageError(f"{where}: {name} has {len(str(abs(int(step))))} digits and does not fit into 64 bits")
    values = {key: value for key, value in entry.items() if key != name}
    if set(values) == {"data"} and isinstance(values["data"], dict):
        values = values["data"]
    return int(step), flat(values, where)


def _is_whole(step: float) -> bool:
    return isinstance(step, int) or (math.isfinite(step) and step == int(step))


def _warn(message: str) -> None:
    warnings.warn(message, GradiometerWarning, stacklevel=2)
