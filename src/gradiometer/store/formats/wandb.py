"""Offline runs of W&B, read without W&B: the frames of a `.wandb` file, the few fields we need, and
its table files.

A file is a header of seven bytes and blocks of 32 KiB. A block holds frames of crc32 (4 bytes),
length (2) and kind (1: whole, 2: first, 3: middle, 4: last piece), then the data; a record in one
or more frames is a protobuf message. The numbers of its fields are W&B's contract with its own
server, so they do not change.
"""

from __future__ import annotations

import json
import re
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradiometer.errors import MissingExtra, NotARun, RunDamaged, RunNotFound, UsageError
from gradiometer.store.facts import redact
from gradiometer.store.formats import Reads, ending, log_format
from gradiometer.store.logs import Gathered, Log, cut_off, is_table, short_id, warn
from gradiometer.store.opening import is_inside, mapped, parse_json, read_json_file
from gradiometer.store.protobuf import Message, fields
from gradiometer.store.provenance import log_of
from gradiometer.words import some

__all__ = ["open_wandb", "read_records", "read_wandb_file", "wandb_files_in"]

MAGIC = b":W&B\xe1\xbe"
FILE_HEADER = 7
BLOCK = 32 * 1024
FRAME = struct.Struct("<IHB")
WHOLE, FIRST, LAST = 1, 2, 4
LARGEST_RECORD = 1 << 27
MISREAD = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What a record of another shape than W&B's leads to."""
RUN_FIELDS = {"run_id": 1, "entity": 2, "project": 3, "group": 6, "job_type": 7, "name": 8}
SERVER_PATH = re.compile(r"[^/\s]+/[^/\s]+/(?:runs/)?[^/\s]+")
"""`entity/project/run_id`, or the same with `runs/` in it, as in the address bar."""
OUR_STEP = "gradiometer/step"
"""Under which the sink wandb says the step of its rows (store/sinks/wandbsink.py)."""
BESIDE = ("_timestamp", "_runtime", "_wandb")
"""What W&B adds to every row."""
SERVER_SECONDS = 20


def wandb_files_in(folder: Path) -> list[Path]:
    """The `.wandb` files of a run folder, or of the run folders in a `wandb` folder, each once."""
    files = [*folder.glob("latest-run/*.wandb"), *folder.glob("*/*.wandb")]
    found = {file.resolve(): file for file in files}
    return sorted(folder.glob("*.wandb")) or sorted(found.values())


def open_wandb(path: str) -> Log:
    """A W&B run: a file or folder at the path, else `entity/project/run_id` on the server."""
    place = Path(path)
    if place.is_dir():
        return read_wandb_file(_only_file(place))
    if place.exists():
        return read_wandb_file(place)
    if not SERVER_PATH.fullmatch(path) or place.suffix == ".wandb":
        raise RunNotFound(
            f"no W&B run at {path}: give entity/project/run_id, a .wandb file or an offline run"
            " folder"
        )
    return read_wandb_server(path)


def _only_file(folder: Path) -> Path:
    found = wandb_files_in(folder)
    if not found:
        raise NotARun(f"{folder} holds no W&B run: no .wandb file in it")
    if len({file.resolve() for file in found}) > 1:
        shown = some((file.parent if file.parent != folder else file for file in found), 5)
        raise NotARun(f"{folder} holds {len(found)} W&B runs: give one of {shown}")
    return found[0]


def _is_wandb(path: Path, start: bytes) -> bool:
    return start.startswith(MAGIC) or path.suffix == ".wandb"


@log_format(
    "wandb",
    rank=10,
    title="a .wandb file",
    detect=_is_wandb,
    find=ending(".wandb"),
    reads=[
        Reads(
            tool="W&B (any trainer: OpenRLHF, slime, prime-rl, NeMo-RL, PufferLib, ...)",
            file="`run-ID.wandb`, its folder, or a `wandb` folder",
            steps="`_step`",
            taken="the history with its tables; the config as the settings",
        )
    ],
)
def read_wandb_file(path: Path) -> Log:
    """The log in a `.wandb` file, with the tables that lie under `files/` beside it."""
    run = OfflineRun(path)
    for record in read_records(path):
        try:
            run.take(record)
        except UsageError:
            raise
        except MISREAD as problem:
            raise _not_a_record(path) from problem
    return run.log()


class OfflineRun:
    """What the records of a file say so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: dict[str, str] = {}
        self.config: dict[str, Any] = {}
        self.rows: list[tuple[int, dict[str, Any]]] = []

    def take(self, record: Message) -> None:
        """Take one record in."""
        for body in record.get(17, ()):  # run
            run = _message(body, self.path)
            known = {name: number for name, number in RUN_FIELDS.items() if number in run}
            self.about |= {name: _text(run, number) for name, number in known.items()}
            for update in run.get(4, ()):
                _merge(self.config, _message(update, self.path), self.path)
        for body in record.get(5, ()):  # config
            _merge(self.config, _message(body, self.path), self.path)
        for body in record.get(2, ()):
            self.rows.append(_history(_message(body, self.path), self.path))

    def log(self) -> Log:
        """The log of all records."""
        config = redact({key: self.config[key] for key in self.config if key != "_wandb"})
        run_id = self.about.get("run_id") or short_id(self.path.name)
        name = self.about.get("name") or self.path.stem
        gathered = Gathered()
        for step, values in at_our_steps(self.rows):
            gathered.row(step, values, f"{self.path}, step {step!r:.30}")
        log = log_of(self.path, gathered, "wandb", run_id, name=name, step="_step", config=config)
        log.facts["imported"] |= self.about
        return log


def at_our_steps(rows: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    """Rows with what the meter sent at its own steps, which it says beside them: W&B's counter
    counts rows. What also comes without such a step is the user's and keeps W&B's."""
    theirs = {name for _, values in rows if OUR_STEP not in values for name in values}
    ours_there = any(OUR_STEP in values for _, values in rows)
    placed: list[tuple[int, dict[str, Any]]] = []
    for counter, values in rows:
        step = values.pop(OUR_STEP, None)
        if (
            not isinstance(step, int | float)
            or isinstance(step, bool)
            or not float(step).is_integer()
        ):
            placed.append((counter, values))
            continue
        ours = {name: value for name, value in values.items() if name not in theirs}
        rest = {name: value for name, value in values.items() if name in theirs}
        placed += [(int(step), ours)] if ours else []
        placed += [(counter, rest)] if any(name not in BESIDE for name in rest) else []
    # a finding is sent when it is made, at the step since which it holds: no step back in time
    return sorted(placed, key=lambda row: row[0]) if ours_there else placed


def read_records(path: Path) -> Iterator[Message]:
    """The records of a `.wandb` file as field number → values, without a cut-off end."""
    with mapped(path) as blob:
        if blob[: len(MAGIC)] != MAGIC:
            raise NotARun(f"{path} is not a W&B file: it does not begin with {MAGIC[:4].decode()}")
        pieces: list[bytes] = []
        for kind, data in _frames(blob, path):
            if kind in (WHOLE, FIRST):
                pieces = []
            pieces.append(data)
            if len(pieces) * BLOCK > LARGEST_RECORD:
                raise UsageError(
                    f"{path} holds a record of more than {LARGEST_RECORD >> 20} MB, which no"
                    " history has"
                )
            if kind in (WHOLE, LAST):
                yield _message(b"".join(pieces), path)
                pieces = []
    if pieces:
        cut_off(path)


def _frames(blob: Any, path: Path) -> Iterator[tuple[int, bytes]]:
    place = FILE_HEADER
    while place < len(blob):
        left = BLOCK - place % BLOCK
        if left < FRAME.size:  # too small for a frame: padding
            place += left
            continue
        if place + FRAME.size > len(blob):
            return cut_off(path)
        checksum, length, kind = FRAME.unpack_from(blob, place)
        end = place + FRAME.size + length
        data = blob[place + FRAME.size : end]
        sound = checksum == zlib.crc32(data, zlib.crc32(bytes([kind]))) and WHOLE <= kind <= LAST
        if not sound:
            if end >= len(blob) or _is_blank(blob, place):  # half a frame, or zeros of the disk
                return cut_off(path)
            raise RunDamaged(
                f"{path} is damaged at byte {place}: a checksum is wrong; copy the file again"
            )
        yield kind, data
        place = end
    return None


def _is_blank(blob: Any, place: int) -> bool:
    return not any(any(blob[at : at + BLOCK]) for at in range(place, len(blob), BLOCK))


def _message(body: bytes, path: Path) -> Message:
    try:
        return fields(body)
    except ValueError as problem:
        raise _not_a_record(path) from problem


def _not_a_record(path: Path) -> RunDamaged:
    return RunDamaged(f"{path} holds a record that is not a W&B record; copy the file again")


def _text(message: Message, number: int) -> str:
    return str(message[number][-1].decode())


def _items(bodies: list[Any], path: Path) -> dict[str, Any]:
    """Items of key (1) or nested key (2) and JSON value (16), as one nested dict."""
    values: dict[str, Any] = {}
    for body in bodies:
        item = _message(body, path)
        keys = [key.decode() for key in item.get(2, ())] or [_text(item, 1)]
        inner = values
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = parse_json(item[16][-1], str(path))
    return values


def _merge(config: dict[str, Any], update: Message, path: Path) -> None:
    config |= _items(update.get(1, []), path)
    for name in _items(update.get(2, []), path):
        config.pop(name, None)


def _history(history: Message, path: Path) -> tuple[int, dict[str, Any]]:
    values = _items(history.get(1, []), path)
    step = values.pop("_step", None)
    if step is None:
        (number,) = _message(history.get(2, [b""])[-1], path).get(1, [0])
        step = number
    return int(step), {name: _opened(value, name, path) for name, value in values.items()}


def _opened(value: Any, name: str, path: Path) -> Any:
    """A table's content in place of the note that says in which file it lies."""
    if not isinstance(value, Mapping) or value.get("_type") != "table-file":
        return value
    files = path.parent / "files"
    file = files / str(value.get("path", ""))
    inside = files.resolve() in file.resolve().parents and is_inside(file)
    if inside and file.is_file():
        # Not JSON, not text, too large: as good as gone.
        with suppress(ValueError, RecursionError, OSError):
            content = read_json_file(file)
            if is_table(content):
                return content
    warn(f"{path}: the table {name} is not at {file} and was left out; copy the whole run folder")
    return None


def read_wandb_server(name: str) -> Log:
    """The whole history of a run on the server with its tables, by W&B's package and its login."""
    try:
        import wandb
    except ImportError as problem:
        raise MissingExtra("wandb", "trackers", "reading a run from the W&B server") from problem
    gathered = Gathered()
    try:
        run = wandb.Api(timeout=SERVER_SECONDS).run(name.replace("/runs/", "/"))
        rows = list(_server_rows(run))
    except Exception as problem:  # W&B's own, requests' or GraphQL's: the server did not answer
        why = str(problem).strip().partition("\n")[0] or type(problem).__name__
        raise UsageError(
            f"the W&B server gave no run {name}: {why}; check the name, the network and `wandb"
            " login`, or give an offline file with --wandb-path FILE"
        ) from problem
    for step, values in at_our_steps(rows):
        gathered.row(step, values, f"{name}, step {step}")
    entity, project, run_id = run.path
    config = redact(dict(run.config))
    known = {"name": run.name or run_id, "step": "_step", "config": config}
    log = log_of(Path(name), gathered, "wandb", run_id, **known)
    about = {"entity": entity, "project": project, "run_id": run_id, "name": run.name}
    log.facts["imported"] |= about
    return log


def _server_rows(run: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        for row in run.scan_history():
            logged, place = dict(row), Path(folder)
            step = int(logged.pop("_step"))
            values = {name: _downloaded(x, name, run, place) for name, x in logged.items()}
            yield step, values


def _downloaded(value: Any, name: str, run: Any, folder: Path) -> Any:
    if not isinstance(value, Mapping) or value.get("_type") != "table-file":
        return value
    with run.file(value["path"]).download(root=str(folder), replace=True) as file:
        content = json.load(file)
    if is_table(content):
        return content
    warn(f"the table {name} is not of rows and columns and was left out")
    return None
