"""Open whatever holds a training's numbers: our run, or a log of another tool.

A file is known by what is in it and not by its name; the formats are in `store/formats/`, and
nothing else decides what a file is. A folder may hold several logs of one training: the format of
the lowest rank is read, the others are named. Of several logs of one format with the same names
each is a run, the longest first; a folder without a log of its own may have logs below it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gradiometer.errors import NotARun, UsageError
from gradiometer.store import reader
from gradiometer.store.archives import PACKED, packed_as, unpacked
from gradiometer.store.database import APPLICATION_ID, DATABASE_NAME, owner
from gradiometer.store.formats import formats
from gradiometer.store.formats.wandb import open_wandb
from gradiometer.store.logs import Log, short_id, warn
from gradiometer.store.opening import check_readable, is_inside, open_bytes
from gradiometer.store.postgres import PostgresRun, address_of, runs_at
from gradiometer.store.reader import Run
from gradiometer.words import some

__all__ = [
    "FolderLogs",
    "Log",
    "choose",
    "identify",
    "load",
    "logs_below",
    "logs_in",
    "no_log_in",
    "open_log",
    "open_wandb",
    "reader_of",
]

DEPTH = 3
UNSURE = 60
"""The rank from which on a format is told by its suffix and what is inside."""
MOST_FOLDERS = 10_000
WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors")
PICKLES = (".pkl", ".pickle", ".p", ".joblib")
HDF5 = b"\x89HDF"
WORKBOOK = b"[Content_Types].xml"
PICKLED = (b"data.pkl", b"policy.pth")
"""Names that torch and SB3 give to parts of a checkpoint, which is a zip."""
MOST_NAMES = 1_000
ALIKE = 0.5
"""Share of names that two runs of one kind have in common."""
MAYBE_LOGS = (".json", ".jsonl", ".csv", ".tsv")
PACKED_LOGS = (".csv", ".tsv", ".jsonl", ".json", ".log", ".txt", ".out", ".wandb", ".parquet")
NAME = re.compile(r"[A-Za-z_][\w/.\- ]*")


def load(path: str | os.PathLike[str]) -> Run | Log:
    """Open for reading a run (its folder, or the `run.db` in it), or a log of another tool, which
    reads the same way.

    Logs: CSV and other tables, monitors, TensorBoard event files, a `trainer_state.json`, JSON and
    JSONL, W&B and MLflow folders, Parquet, arrays of numpy, and more (the guide lists them); also
    compressed, or a folder with one of them. A run in PostgreSQL is `postgresql://HOST/DATABASE/RUN`.
    """
    if (address := address_of(path)) is not None:
        return PostgresRun(address)
    path = Path(path)
    if path.is_dir() and not (path / DATABASE_NAME).exists():
        return _load_folder(path)
    return reader_of(path)(path)


open_log = load  # among ourselves, where `load` is the reader's


def identify(run: Run | Log) -> str:
    """An id that stays when the run is moved: W&B's own, else made of name and start."""
    if isinstance(run, Log):
        return run.run_id
    facts = run.facts
    if "imported" in facts:
        return str(facts["imported"]["run_id"])
    return short_id(run.name, *(facts.get(fact) for fact in ("started", "cwd", "argv", "seed")))


def reader_of(path: Path) -> Callable[[Path], Run | Log]:
    """What reads a file, or a run's folder, by how it begins; an error for what nobody reads."""
    # A run.db is left to SQLite: closing a second descriptor of a file that this process writes
    # would drop SQLite's locks.
    check_readable(path)
    if not path.is_file() or path.name == DATABASE_NAME:
        return reader.load
    with open_bytes(path) as file:
        start = file.read(1 << 16)
    if owner(start) == APPLICATION_ID:
        return reader.load
    for known in formats():
        if known.detect(path, start):
            return known.read
    if packed_as(start) and not _is_checkpoint(path, start) and WORKBOOK not in start:
        return _load_packed
    raise NotARun(
        f"{path} is not a run, nor a log that can be read: it is {_looks(path, start)}; what can be"
        f" read is {_readable()}"
    )


def _load_packed(path: Path) -> Run | Log:
    """A log that was compressed, or an archive with one; it keeps the name of the packed file."""
    with open_bytes(path) as file:
        kind = packed_as(file.read(1 << 10))
    with unpacked(path, kind) as inside:
        try:
            log = load(inside)
        except UsageError as problem:
            told = str(problem).replace(str(inside), f"{path} ({kind})")
            raise type(problem)(told) from problem
        if isinstance(log, Run):
            log.close()
            raise NotARun(f"{path} holds a run: unpack it, a run is read where it lies")
    log.path = path
    log.facts["imported"] = {**log.facts.get("imported", {}), "packed": kind}
    return log


def _load_folder(folder: Path) -> Run | Log:
    chosen = choose(folder)
    if chosen is not None:
        return _load_chosen(folder, chosen)
    below = logs_below(folder)
    if len(below) == 1 and not (below[0] / DATABASE_NAME).exists():
        return load(below[0])
    if below:
        shown = some(path.relative_to(folder) for path in below)
        raise NotARun(f"{folder} is not a run but a folder of runs: open one of {shown}")
    raise NotARun(no_log_in(folder))


def _load_chosen(folder: Path, chosen: FolderLogs) -> Run | Log:
    """The first log that holds something; a run that crashed early leaves empty ones behind."""
    problem: UsageError | None = None
    empty: Run | Log | None = None
    for files in chosen.attempts:
        try:
            log = reader_of(files[0])(*files)
        except UsageError as found:
            problem = problem or found
            continue
        if log.newest_step is None:
            empty = empty or log
            continue
        read = some(path.relative_to(folder) for path in files)
        others = [path.relative_to(folder) for path in chosen.every if path not in files]
        if others:
            warn(f"{folder}: read {read}; ignored: {some(others)}")
        return log
    below = logs_below(folder)
    if len(below) == 1:  # what W&B caught of the console lies below its own file
        return load(below[0])
    if empty is not None:
        return empty
    assert problem is not None
    raise problem


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLogs:
    """The logs of a folder: the files that are read, and what lies there besides."""

    files: tuple[Path, ...]
    """Of one format: parts of one log if `joined`, else a run each, the longest first."""
    joined: bool
    sure: bool
    """The file's name or form says that it is a log; any JSON, table or text may be one."""
    besides: tuple[tuple[Path, ...], ...]
    """Logs with other names, and of other formats: of the same training, or of none."""

    @property
    def several(self) -> bool:
        """Each file is a run."""
        return len(self.files) > 1 and not self.joined

    @property
    def attempts(self) -> list[tuple[Path, ...]]:
        """What may be the log that is meant by the folder, the likeliest first."""
        return [*([self.files] if self.joined else ((file,) for file in self.files)), *self.besides]

    @property
    def every(self) -> list[Path]:
        """Every file that is a log."""
        return list(dict.fromkeys(path for files in self.attempts for path in files))


def choose(folder: Path) -> FolderLogs | None:
    """The logs of a folder itself; None when there is none, or nobody may look."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
        run = [folder / DATABASE_NAME] if folder / DATABASE_NAME in files else []
        found = [(run, False, 0)] if run else []
        found += [(list(kind.find(folder, files)), kind.joined, kind.rank) for kind in formats()]
        found = [each for each in found if each[0]] or [(_packed(files), False, UNSURE)]
        (chosen, joined, rank), *rest = found
        alike = chosen if joined else _alike(chosen)
    except (OSError, NotARun):  # a link out of the served folder, among others
        return None
    besides: list[tuple[Path, ...]] = [(path,) for path in chosen if path not in alike]
    for paths, together, _ in rest:
        besides += [tuple(paths)] if together else [(path,) for path in paths]
    besides = [files for files in besides if not set(files) <= set(alike)]
    if not alike:
        return None
    return FolderLogs(files=tuple(alike), joined=joined, sure=rank < UNSURE, besides=tuple(besides))


def _packed(files: list[Path]) -> list[Path]:
    """Compressed logs, by their names; archives may hold anything."""
    return [
        path for path in files if path.suffix in PACKED and Path(path.stem).suffix in PACKED_LOGS
    ]


def _alike(paths: list[Path]) -> list[Path]:
    """The longest, and those that begin with mostly the same names, as other seeds do."""
    if len(paths) < 2:
        return paths
    paths = sorted(paths, key=lambda path: (-path.stat().st_size, path))
    # what is a link out of a served folder is listed, and opening it says so
    names = {path: _first_names(path) for path in paths if is_inside(path)}
    of_longest = next(iter(names.values()), set())
    return [path for path in paths if path not in names or _share(names[path], of_longest) >= ALIKE]


def _first_names(path: Path) -> set[str]:
    """The words a file's first line has before a number: names of columns or of keys."""
    with open_bytes(path) as file:
        line = file.read(1 << 16).lstrip().partition(b"\n")[0]
    return set(NAME.findall(line.decode(errors="replace")))


def _share(some_names: set[str], others: set[str]) -> float:
    every = some_names | others
    return len(some_names & others) / len(every) if every else 1.0


def logs_in(path: str | os.PathLike[str], *, or_itself: bool = True) -> list[Path]:
    """What to open one by one when somebody names a path: itself; of a folder with several logs of
    one kind each of them, the longest first; of a folder without a log of its own the logs below
    it, and where there are none the folder, whose opening says why. A stray JSON or CSV beside the
    folders of runs does not hide them; without `or_itself` it stands beside them. Of a database
    the runs in it.
    """
    if (address := address_of(path)) is not None:
        runs = [] if address.run else runs_at(address)
        return [address.of(run.name).path for run in runs] or [address.path]
    path = Path(path)
    if not path.is_dir():
        return [path]
    there = choose(path)
    below = logs_below(path) if there is None or not there.sure else []
    if there is not None and not any(_is_sure(log) for log in below):
        # Who shows a folder shows both; who asked about the folder means its own log.
        return _openable(path) if or_itself else [*_openable(path), *below]
    return below or ([path] if or_itself else [])


def _is_sure(log: Path) -> bool:
    there = choose(log if log.is_dir() else log.parent)
    return there is not None and there.sure


def logs_below(folder: Path, most: int = MOST_FOLDERS) -> list[Path]:
    """Folders with a log up to three levels below, `most` a level; files where one has several."""
    found: list[Path] = []
    level = [folder]
    for _ in range(DEPTH):
        inside = sorted(path for above in level for path in _folders(above))[:most]
        level = []
        for path in inside:
            openable = _openable(path)
            found += openable
            level += [] if openable else [path]
    return sorted(found)


def _openable(folder: Path) -> list[Path]:
    if os.path.isfile(
        f"{folder}/{DATABASE_NAME}"
    ):  # nothing else in it is read, so nothing is looked into
        return [folder]
    there = choose(folder)
    if there is None:
        return []
    return list(there.files) if there.several else [folder]


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as inside:
            some_entries = islice(inside, MOST_FOLDERS)
            return [
                folder / entry.name
                for entry in some_entries
                if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."
            ]
    except OSError:
        return []


def _readable() -> str:
    """What can be read, in words."""
    return ", ".join(["a run", *(known.title for known in formats() if known.title)])


def no_log_in(folder: Path) -> str:
    """Why a folder cannot be opened, by what lies in it."""
    names = sorted(path.name for path in islice(folder.iterdir(), MOST_NAMES))
    weights = [name for name in names if name.endswith(WEIGHTS)]
    if weights:
        there = f"; {weights[0]} holds weights, which do not say how they were trained"
    elif names:
        there = f"; in it: {some(names, 5)}{_largest_is(folder, names)}"
    else:
        there = ", it is empty"
    return (
        f"{folder} is not a run: no run.db in it, nor a log{there};"
        f" what can be read is {_readable()}"
    )


def _largest_is(folder: Path, names: list[str]) -> str:
    """What the largest file of a folder is that might have been the log."""
    files = [folder / name for name in names if Path(name).suffix in MAYBE_LOGS]
    files = [path for path in files if path.is_file()]
    if not files:
        return ""
    largest = max(files, key=lambda path: path.stat().st_size)
    try:
        load(largest)
    except UsageError as problem:
        why = re.search(r"(?:nor a log|that can be read): (.*?)(?:;|$)", str(problem))
        return f"; {largest.name}: {why[1]}" if why else ""
    return ""


def _is_checkpoint(path: Path, start: bytes) -> bool:
    return path.suffix in WEIGHTS or (
        start.startswith(b"PK") and any(name in start for name in PICKLED)
    )


def _looks(path: Path, start: bytes) -> str:
    if not start:
        return "an empty file"
    if _is_checkpoint(path, start):
        return (
            "a checkpoint, and weights do not say how they were trained: give the log of that"
            " training"
        )
    if path.suffix in PICKLES or start.startswith((b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        return "a pickle, which is not opened because that can run code: save it as JSON or CSV"
    if WORKBOOK in start:
        return "an Excel workbook: save it as CSV"
    if start.startswith(HDF5):
        return "an HDF5 file: save it as CSV"
    if path.suffix == ".py":
        return (
            f"a script: `gradiometer run {path}` trains and measures, `gradiometer audit {path}`"
            " stops at the first step"
        )
    if b"\0" in start:
        return "a binary file"
    return (
        "text without a line of names that counts steps (what a script prints `gradiometer run`"
        " picks up)"
    )
