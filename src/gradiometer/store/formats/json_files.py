"""Logs of JSON objects: a line each (verl's file logger, LLaMA-Factory, ms-swift, tinker, RLlib,
Dreamer, exported W&B histories), or one document: the `log_history` of a `trainer_state.json`, a
list of rows, lists of values by name.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from gradiometer.errors import NotARun, UsageError
from gradiometer.store.facts import redact
from gradiometer.store.formats import Reads, called, log_format, remembered
from gradiometer.store.log_rows import Entry, LogRows, why_no_log
from gradiometer.store.logs import Log, flat, short_id, warn
from gradiometer.store.opening import LONGEST_LINE, open_bytes, parse_json, read_json_file
from gradiometer.store.provenance import name_of
from gradiometer.store.step_column import is_step_name, step_column, whole
from gradiometer.words import counted, some

__all__ = ["read_json", "read_jsonl"]

TRAINER_STATE = "trainer_state.json"
RESULT = "result.json"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
BEGINS_JSON = re.compile(
    rb'\s*(?:\{\s*["}]|\[\s*(?:[\[{\]"]|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\s*[,\]]))'
)
LARGEST_DOCUMENT = 300 << 20
"""Bytes, read at once; most documents of that size weigh too much once they are parsed."""
LARGEST_LOOKED_AT = 1 << 24
"""A larger document is not opened to find out whether a folder has a log."""
SAMPLES = {"prompt", "messages", "question", "instruction", "conversations", "completion", "text"}
"""Names of what is trained on; a file of it is no log."""
ROWS_OF = re.compile(
    r"(?:.*[_./ -])?(?:history|logs?|log_history|metrics|records|rows|entries|data|steps|results"
    r"|train|training|epochs|episodes|iterations|trajectory|curve)"
)
"""Names that say of rows what their own names say already."""
SEED = re.compile(r"(?:seed|run|trial|rep|repeat|repetition|replicate|experiment)?[_\- ]*\d+")
"""What a document calls one run of several."""
DEEPEST = 4
MOST_LOOKED_AT = 10_000
"""Names by which a file is judged to be a log."""


def _is_jsonl(path: Path, start: bytes) -> bool:
    """By its name, or by a first line that is a whole JSON object; in a `.json`, the second too."""
    if path.suffix in JSONL_SUFFIXES:
        return True
    line, _, rest = start.lstrip().partition(b"\n")
    if not line.startswith(b"{") or (path.suffix == ".json" and not rest.lstrip().startswith(b"{")):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_json(path: Path, start: bytes) -> bool:
    """By its name, or by how an object or a list of JSON begins; `[INFO]` and a time in brackets
    begin text."""
    return path.suffix == ".json" or BEGINS_JSON.match(start) is not None


def _trainer_states(folder: Path, files: list[Path]) -> list[Path]:
    """The folder's own, or that of its newest checkpoint."""
    own = folder / TRAINER_STATE
    if own in files:
        return [own]
    saved = {}
    for path in folder.glob(f"checkpoint-*/{TRAINER_STATE}"):
        if found := CHECKPOINT.fullmatch(path.parent.name):
            saved[int(found[1])] = path
    return [saved[max(saved)]] if saved else []


def _logged_lines(folder: Path, files: list[Path]) -> list[Path]:
    """Files of rows that look logged: what a model is trained on comes as JSONL too."""
    return [path for path in files if path.suffix in JSONL_SUFFIXES and _has_logged_lines(path)]


@remembered
def _has_logged_lines(path: Path) -> bool:
    with open_bytes(path) as file:
        start = file.read(1 << 18)
    rows = list(_whole_lines(start))
    # One long line, or none that is whole: what is wrong is said when it is read.
    return _reads_as_rows(rows) if rows else bool(start)


def _whole_lines(start: bytes) -> Iterator[dict[str, Any]]:
    for line in start.splitlines()[:100]:
        try:
            row = json.loads(line)
            if isinstance(row, dict):
                yield flat(row, "")
        except (ValueError, RecursionError, UsageError):
            continue


def _logged_documents(folder: Path, files: list[Path]) -> list[Path]:
    """Documents of rows; a folder has many others, so only what reads as a log counts."""
    known = (TRAINER_STATE, RESULT)
    some_files = (path for path in files if path.suffix == ".json" and path.name not in known)
    return [path for path in some_files if _has_rows(path)]


@remembered
def _has_rows(path: Path) -> bool:
    if path.stat().st_size > LARGEST_LOOKED_AT:
        return False
    try:
        content = read_json_file(path)
    except (ValueError, RecursionError):
        return False
    if isinstance(content, dict) and "log_history" in content:
        return True
    tables = _tables(content, path)
    return any(_reads_as_rows(table.rows) for table in tables if len(table.rows) > 1)


def _reads_as_rows(rows: Sequence[Mapping[str, Any]]) -> bool:
    head = rows[:100]
    names = dict.fromkeys(name for row in head for name in row)
    columns = {name: [row.get(name) for row in head] for name in islice(names, MOST_LOOKED_AT)}
    if SAMPLES & set(columns):
        return False
    return step_column(columns, len(head)) is not None or not why_no_log(columns, len(head))


@log_format(
    "rllib-result",
    rank=38,
    find=called(RESULT),
    reads=[
        Reads(
            tool="RLlib (old and new API), Ray Tune",
            file="`result.json`, or its folder",
            steps="`timesteps_total`, `num_env_steps_sampled_lifetime`, `training_iteration`",
            taken="nested values by their path; `config` as the settings",
        )
    ],
)
@log_format(
    "jsonl",
    rank=60,
    title="a .jsonl log",
    detect=_is_jsonl,
    find=_logged_lines,
    reads=[
        Reads(
            tool="verl (file logger), tinker, Dreamer, slime, NeMo-RL, own scripts",
            file="`metrics.jsonl`, any `.jsonl`",
            steps="`step`, `global_step` and other usual names; else rows",
            taken="each number; nested values by their path",
        ),
        Reads(
            tool="LLaMA-Factory",
            file="`trainer_log.jsonl`",
            steps="`current_steps`",
            taken="each number",
        ),
        Reads(
            tool="ms-swift",
            file="`logging.jsonl`",
            steps="`global_step/max_steps` (`12/600`)",
            taken="each number, with or without a unit",
        ),
        Reads(
            tool="ROLL",
            file="`metrics.jsonl`",
            steps="`system/step`",
            taken="each number",
        ),
        Reads(
            tool="W&B (exported history)",
            file="`wandb-history.jsonl`",
            steps="`_step`",
            taken="each number and table",
        ),
        Reads(
            tool="OpenAI baselines",
            file="`progress.json`",
            steps="`misc/total_timesteps`, `total/steps`, `steps`",
            taken="each number",
        ),
    ],
)
def read_jsonl(path: Path) -> Log:
    """The log in a file of lines `{"step": 3, "data": {...}}` or `{"step": 3, "loss": 0.1, ...}`.

    A line that is no JSON object is reported and skipped: the last one is what a crash leaves
    behind, others are what somebody printed between.
    """
    first: list[bytes] = []
    rows = LogRows(path, "line")
    rows.take(_lines(path, first.append))
    return rows.log("jsonl", short_id(path.stem, *first))


@log_format(
    "trainer_state",
    rank=30,
    title="a trainer_state.json",
    find=_trainer_states,
    reads=[
        Reads(
            tool="transformers, TRL, unsloth, ms-swift",
            file="`trainer_state.json`, or a folder of checkpoints (the newest)",
            steps="`step`",
            taken="the rows of `log_history`",
        )
    ],
)
@log_format(
    "json",
    rank=70,
    title="JSON with rows or lists of values",
    detect=_is_json,
    find=_logged_documents,
    reads=[
        Reads(
            tool="own scripts",
            file='JSON: `[{...}, ...]`, `{"history": [...]}`, `{"reward": [...]}`',
            steps="a list or key with a usual name; else rows",
            taken="rows, and lists of numbers by name",
        ),
        Reads(
            tool="TensorBoard (downloaded)",
            file="JSON: `[[wall time, step, value], ...]`",
            steps="the second number",
            taken="the value, named by the file",
        ),
    ],
)
def read_json(path: Path) -> Log:
    """The log in a JSON document: a `trainer_state.json`, a list of rows, or lists of values."""
    content = _document(path)
    if isinstance(content, dict) and isinstance(content.get("log_history"), list):
        return _trainer_state(path, content)
    tables = list(_tables(content, path))
    tables = [table for table in tables if table.rows]
    if not tables:
        raise NotARun(
            f"{path} is not a run, nor a log: its JSON is {_shape(content)}, not rows with a step"
            " and no log_history"
        )
    return _log_of_tables(path, _of_one_run(path, tables))


def _document(path: Path) -> Any:
    twice: set[str] = set()
    with open_bytes(path) as file:
        size = os.fstat(file.fileno()).st_size
        # What is asked for is set aside at once, whatever comes.
        text = file.read(size) if size <= LARGEST_DOCUMENT else b""
    if size > LARGEST_DOCUMENT:
        raise UsageError(
            f"{path} is a JSON document of more than {LARGEST_DOCUMENT >> 20} MB: log one object a"
            " line"
        )
    if not text.strip():
        raise NotARun(f"{path} is not a run, nor a log: it is an empty file")
    try:
        content = parse_json(text, str(path), _pairs(twice))
    except UsageError:
        raise
    except ValueError as problem:
        return _one_after_another(text) or _cut_off(path, text, problem)
    except RecursionError as problem:
        raise UsageError(f"{path}: nested too deeply to be read") from problem
    _say_twice(path, twice)
    return content


def _one_after_another(text: bytes) -> list[Any]:
    """Objects without a list around them, each over as many lines as it likes."""
    spelled, rows, place = text.decode("utf-8", errors="replace"), [], 0
    decoder = json.JSONDecoder()
    with suppress(ValueError, RecursionError):
        while found := re.compile(r"[\s,]*(?=\{)").match(spelled, place):
            row, place = decoder.raw_decode(spelled, found.end())
            rows.append(row)
    return rows


def _cut_off(path: Path, text: bytes, problem: ValueError) -> Any:
    """The whole entries of a document that ends in the middle of its rows."""
    spelled = text.decode("utf-8", errors="replace")
    begin = re.search(r'"log_history"\s*:\s*\[|^\s*\[', spelled)
    rows: list[Any] = []
    if begin is not None:
        decoder, place = json.JSONDecoder(), begin.end()
        with suppress(ValueError, RecursionError):
            while found := re.compile(r"[\s,]*(?=[{\[])").match(spelled, place):
                row, place = decoder.raw_decode(spelled, found.end())
                rows.append(row)
    if not rows:
        raise UsageError(f"{path}: not JSON ({problem}); was it cut off?") from problem
    warn(f"{path} is cut off at its end: {counted(len(rows), 'row')} read")
    return {"log_history": rows} if "log_history" in begin[0] else rows  # type: ignore[index]


class _Table:
    """Rows of a document, and where they stand in it."""

    def __init__(self, place: tuple[str, ...], rows: Sequence[Mapping[str, Any]]) -> None:
        self.place = place
        self.rows = rows

    @property
    def name(self) -> str:
        """What to put in front of the names of its rows: what they do not say themselves."""
        kept = [part for part in self.place if not ROWS_OF.fullmatch(part.lower())]
        own = {name for row in self.rows[:3] for name in row}
        return "/".join(part for part in kept if part not in own)


def _tables(content: Any, path: Path, place: tuple[str, ...] = ()) -> Iterator[_Table]:
    """Everything in a document that is rows: a list of objects, lists side by side, objects by
    step."""
    if isinstance(content, list):
        yield _Table(place, list(_rows_of_list(content, path, place)))
    elif isinstance(content, dict) and len(place) < DEEPEST:
        if _by_step(content):
            yield _Table(place, list(_rows_by_step(content, place, path)))
            return
        lists = {name: value for name, value in content.items() if _is_numbers(value)}
        yield from (_Table(place, rows) for rows in _side_by_side(lists))
        for name, value in content.items():
            if name not in lists and isinstance(value, list | dict):
                yield from _tables(value, path, (*place, str(name)))
        if not place and any(is_step_name(name) for name in content):
            yield _Table((), [content])


def _is_numbers(value: Any) -> bool:
    if not isinstance(value, list) or len(value) < 2:
        return False
    numbers = sum(isinstance(each, bool | int | float) or each is None for each in value)
    return numbers == len(value) or (numbers > 1 and 10 * numbers >= 9 * len(value))


def _rows_of_list(
    content: list[Any], path: Path, place: tuple[str, ...]
) -> Iterator[Mapping[str, Any]]:
    name = place[-1] if place else path.stem
    if _is_numbers(content):
        yield from ({name: value} for value in content)
        return
    for row in content:
        if isinstance(row, dict):
            yield row
        elif isinstance(row, list) and _is_numbers(row) and len(row) in (2, 3):
            yield {"step": row[-2], name: row[-1]}  # with the time in front: TensorBoard's


def _by_step(content: Mapping[str, Any]) -> bool:
    values = content.values()
    return (
        len(content) > 1
        and all(whole(key) is not None for key in content)
        and (
            all(isinstance(value, dict) for value in values)
            or all(isinstance(value, int | float) for value in values)
        )
    )


def _rows_by_step(
    content: Mapping[str, Any], place: tuple[str, ...], path: Path
) -> Iterator[Mapping[str, Any]]:
    name = place[-1] if place else path.stem
    for step, value in sorted(content.items(), key=lambda pair: whole(pair[0]) or 0):
        yield {"step": whole(step), **(value if isinstance(value, dict) else {name: value})}


def _side_by_side(lists: Mapping[str, list[Any]]) -> Iterator[list[dict[str, Any]]]:
    """Lists of one length are columns of one table."""
    lengths = sorted({len(values) for values in lists.values()}, reverse=True)
    for length in lengths:
        columns = {name: values for name, values in lists.items() if len(values) == length}
        if not all(is_step_name(name) for name in columns):
            yield [
                dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ]


def _of_one_run(path: Path, tables: list[_Table]) -> list[_Table]:
    """Of tables with the same names in several places, as for each seed, those of the longest."""
    tables = [table for table in tables if len(table.rows) > 1] or tables
    by_place: dict[str, list[_Table]] = {}
    for table in tables:
        by_place.setdefault(table.place[0] if table.place else "", []).append(table)
    seeds = {place: of for place, of in by_place.items() if SEED.fullmatch(place.lower())}
    shapes = {
        place: tuple(sorted((table.place[1:], *table.rows[0]) for table in of))
        for place, of in seeds.items()
    }
    common = Counter(shapes.values())
    runs = [place for place in seeds if common[shapes[place]] > 1]
    if not runs:
        return tables
    longest = max(runs, key=lambda place: sum(len(table.rows) for table in seeds[place]))
    others = [place for place in runs if place != longest]
    warn(f"{path}: {counted(len(runs), 'run')} in it; read is {longest}, not {some(others)}")
    left = set(others)
    for table in seeds[longest]:
        table.place = table.place[1:]
    return [table for place, of in by_place.items() if place not in left for table in of]


def _log_of_tables(path: Path, tables: list[_Table]) -> Log:
    """The log of the table with the most values, and of what the others have besides."""
    rows = LogRows(path, "row")
    first, *others = sorted(tables, key=lambda table: -len(table.rows) * len(table.rows[0]))
    rows.take(_entries(first.rows), name=first.name if others else "")
    for table in others:
        try:
            rows.take(_entries(table.rows), name=table.name)
        except NotARun:  # a list of something else beside the log
            rows.gathered.left_out.add("/".join(table.place))
    return rows.log("json", short_id(path.stem, first.rows[0]))


def _shape(content: Any) -> str:
    if isinstance(content, list):
        return f"a list of {len(content)}"
    if not isinstance(content, dict):
        return type(content).__name__
    if "gauges" in content:
        return "ML-Agents' timers with last values (the curves are in its TensorBoard files)"
    return f"one object ({some(content, 6)})" if content else "an empty object"


def _trainer_state(path: Path, content: dict[str, Any]) -> Log:
    history = [row for row in content.pop("log_history") if isinstance(row, dict)]
    if not history:
        raise UsageError(
            f"{path} has an empty log_history: nothing was logged yet; see logging_steps"
        )
    name, rows = name_of(path), LogRows(path, "row")
    rows.take(_entries(history))
    log = rows.log("trainer_state", short_id(name, history[0]), library="transformers")
    kept = (str, int, float, bool)
    plain = {key: value for key, value in content.items() if isinstance(value, kept)}
    log.facts["config"] = {**redact(plain), **log.facts.get("config", {})}
    return log


def _lines(path: Path, first: Callable[[bytes], object]) -> Iterator[Entry]:
    twice: set[str] = set()
    skipped: list[int] = []
    num_skipped = read = last = 0
    why = "it is empty"
    for number, line in _numbered(path):
        last = number
        try:
            values = parse_json(line, f"{path}, line {number}", _pairs(twice))
        except UsageError:
            raise
        except (ValueError, RecursionError) as problem:  # UnicodeDecodeError is a ValueError
            why, values = f"line {number} is not JSON ({problem!s:.200})", None
        if isinstance(values, dict):
            if not read:
                first(line.rstrip(b"\r\n"))
            read += 1
            yield Entry(f"line {number}", values)
            continue
        if values is not None:
            why = f"line {number} must be a JSON object and is {type(values).__name__}"
        num_skipped += 1
        skipped = [*skipped[:2], number]
    if not read:
        raise NotARun(f"{path} is not a run, nor a log of JSON lines: {why}")
    if skipped == [last]:
        warn(f"{path}, line {last}: the last line is cut off and was skipped")
    elif skipped:
        warn(
            f"{path}: {counted(num_skipped, 'line')} skipped that are no JSON object, the first is"
            f" line {skipped[0]}"
        )
    _say_twice(path, twice)


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each line that is not blank, with its number."""
    with open_bytes(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), 1):
            if len(line) >= LONGEST_LINE:
                raise UsageError(
                    f"{path}, line {number}: longer than {LONGEST_LINE >> 20} MB; is this a text"
                    " file?"
                )
            if line.strip():
                yield number, line


def _entries(rows: Iterable[Mapping[str, Any]]) -> Iterator[Entry]:
    return (Entry(f"entry {number}", row) for number, row in enumerate(rows, 1))


def _pairs(twice: set[str]) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """Makes dicts, and keeps what was said twice."""

    def held(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            twice.update(name for name, count in counts.items() if count > 1)
        return values

    return held


def _say_twice(path: Path, twice: set[str]) -> None:
    if twice:
        warn(f"{path}: said twice in one object, the last counts: {', '.join(sorted(twice)[:10])}")
