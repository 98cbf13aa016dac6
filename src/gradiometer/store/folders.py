"""Which log of a folder is meant, and which folders below it hold one.

A folder may hold several logs of one training. The first of these kinds that is there is read, the others are named:

1. `run.db`, a run of ours            5. `progress.csv` (SB3), or `progress.txt` (Spinning Up)
2. a `.wandb` file                    6. event files of TensorBoard, all of the folder as one
3. `dynamics.db`                      7. the only `.jsonl` file
4. `trainer_state.json`, of the       8. the only `.csv` file that counts steps
   newest checkpoint if it lies there
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gradiometer.errors import NotARun
from gradiometer.store.csvfiles import reads_like_csv
from gradiometer.store.database import DATABASE_NAME
from gradiometer.store.dynamics_db import DYNAMICS_NAME
from gradiometer.store.jsonl import TRAINER_STATE
from gradiometer.store.tfevents import is_event_file

__all__ = ["READABLE", "Choice", "choose", "logs_below", "logs_in"]

READABLE = (
    "a run, a .wandb file, a dynamics.db, a trainer_state.json, a progress.csv or other CSV, "
    "TensorBoard event files, a .jsonl log"
)
DEPTH = 3
MOST_FOLDERS = 10_000
SHOWN = 10
JSONL_SUFFIXES = (".jsonl", ".ndjson")
CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is read of a folder, and what lies there besides."""

    files: tuple[Path, ...]
    others: tuple[Path, ...]


def choose(folder: Path) -> Choice | None:
    """The log of a folder itself; None when there is none. Two of a kind that cannot be told apart are an error."""
    there = _there(folder)
    if not there:
        return None
    chosen = there[0]
    if len(chosen) > 1 and not is_event_file(chosen[0]):
        shown = ", ".join(map(str, chosen[:SHOWN])) + (
            f" and {len(chosen) - SHOWN} more" if len(chosen) > SHOWN else ""
        )
        raise NotARun(f"{folder} is not a run but holds {len(chosen)} logs of one kind: give one of {shown}")
    others = dict.fromkeys(path for found in there[1:] for path in found if path not in chosen)
    return Choice(files=tuple(chosen), others=tuple(others))


def logs_in(path: Path, *, or_itself: bool = True) -> list[Path]:
    """What to open one by one when somebody names a path: itself; of a folder with several logs of one kind each of them;
    of a folder without a log of its own the logs below it, and where there are none the folder, whose opening says why."""
    if not path.is_dir():
        return [path]
    there = _there(path)
    if there and len(there[0]) > 1 and not is_event_file(there[0][0]):
        return there[0]
    return [path] if there else logs_below(path) or ([path] if or_itself else [])


def logs_below(folder: Path, most: int = MOST_FOLDERS) -> list[Path]:
    """The folders below one that hold a run or a log, at most three levels down and `most` a level; files where one holds
    several of a kind."""
    found: list[Path] = []
    level = [folder]
    for _ in range(DEPTH):
        level = sorted(path for above in level for path in _folders(above))[:most]
        without = []
        for path in level:
            there = _there(path)
            several = bool(there) and len(there[0]) > 1 and not is_event_file(there[0][0])
            found += there[0] if several else [path] if there else []
            without += [] if there else [path]
        level = without
    return sorted(found)


def _there(folder: Path) -> list[list[Path]]:
    """The logs of a folder by kind, best kind first; none where nobody may look."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
        return [found for kind in KINDS if (found := list(kind(folder, files)))]
    except OSError:
        return []


def _folders(folder: Path) -> list[Path]:
    try:
        inside = [path for path in islice(folder.iterdir(), MOST_FOLDERS) if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []
    return [path for path in inside if not path.name.startswith(".")]


def _called(*names: str) -> Callable[[Path, list[Path]], Iterator[Path]]:
    return lambda folder, files: (path for name in names for path in files if path.name == name)


def _wandb(folder: Path, files: list[Path]) -> Iterator[Path]:
    return (path for path in files if path.suffix == ".wandb")


def _trainer_state(folder: Path, files: list[Path]) -> Iterator[Path]:
    own = folder / TRAINER_STATE
    if own in files:
        yield own
        return
    saved = [path for path in folder.glob(f"checkpoint-*/{TRAINER_STATE}") if CHECKPOINT.fullmatch(path.parent.name)]
    yield from sorted(saved, key=lambda path: int(path.parent.name.rpartition("-")[2]))[-1:]


def _progress(folder: Path, files: list[Path]) -> Iterator[Path]:
    return islice(_called("progress.csv", "progress.txt")(folder, files), 1)


def _events(folder: Path, files: list[Path]) -> Iterator[Path]:
    return (path for path in files if is_event_file(path))


def _jsonl(folder: Path, files: list[Path]) -> Iterator[Path]:
    return (path for path in files if path.suffix in JSONL_SUFFIXES)


def _csv(folder: Path, files: list[Path]) -> Iterator[Path]:
    return (path for path in files if path.suffix == ".csv" and _counts_steps(path))


def _counts_steps(path: Path) -> bool:
    """Whether it is a log and not any table: SB3's monitor and the numbers behind a figure count no steps."""
    with path.open("rb") as file:
        return reads_like_csv(file.read(1 << 16))


KINDS = (_called(DATABASE_NAME), _wandb, _called(DYNAMICS_NAME), _trainer_state, _progress, _events, _jsonl, _csv)
