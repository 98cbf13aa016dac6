"""Open whatever holds a training's numbers: our run, or a log of another tool, by what is in it and not by its name.

Read are JSONL and JSON rows, `trainer_state.json`, CSV, TensorBoard event files, W&B runs on disk or a server, and a
`dynamics.db`. What wins where a folder holds several is said in `store/folders.py`.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path

from gradiometer.errors import GradiometerWarning, NotARun, RunNotFound
from gradiometer.store import reader
from gradiometer.store.csvfiles import read_csv, reads_like_csv
from gradiometer.store.database import APPLICATION_ID, DATABASE_NAME, owner
from gradiometer.store.dynamics_db import DYNAMICS_NAME, read_dynamics_db
from gradiometer.store.folders import JSONL_SUFFIXES, choose, logs_below, logs_in
from gradiometer.store.jsonl import read_json, read_jsonl
from gradiometer.store.logs import Log, short_id
from gradiometer.store.reader import Run
from gradiometer.store.tfevents import begins_like_events, is_event_file, read_tfevents
from gradiometer.store.unreadable import no_log, no_log_in
from gradiometer.store.wandb_api import is_server_path, read_wandb_server
from gradiometer.store.wandb_files import MAGIC, read_wandb_file, wandb_files_in

__all__ = ["Log", "identify", "load", "logs_in", "open_log", "open_wandb", "reader_of"]

CSV_SUFFIXES = (".csv", ".tsv")
SHOWN = 10


def load(path: str | os.PathLike[str]) -> Run | Log:
    """Open for reading a run (its folder, or the `run.db` in it), or a log of another tool, which reads the same way.

    Logs: SB3's `progress.csv` and other CSV, TensorBoard event files, a `trainer_state.json` of transformers or TRL, JSONL
    (verl's file logger, exported histories), an offline W&B file, a `dynamics.db` of experts; or a folder with one of them.
    """
    path = Path(path)
    if path.is_dir() and not (path / DATABASE_NAME).exists():
        return _load_folder(path)
    return reader_of(path)(path)


open_log = load  # among ourselves, where `load` is the reader's


def open_wandb(path: str) -> Log:
    """A W&B run: an offline file or folder when there is one at the path, else `entity/project/run_id` on the server."""
    place = Path(path)
    if place.is_dir():
        return read_wandb_file(_only_file(place))
    if place.exists():
        return read_wandb_file(place)
    if not is_server_path(path) or place.suffix == ".wandb":
        raise RunNotFound(f"no W&B run at {path}: give entity/project/run_id, a .wandb file or an offline run folder")
    return read_wandb_server(path)


def identify(run: Run | Log) -> str:
    """A short id that stays when the run is moved: W&B's own, else eight digits made of its name and how it was started."""
    if isinstance(run, Log):
        return run.run_id
    facts = run.facts
    if "imported" in facts:
        return str(facts["imported"]["run_id"])
    return short_id(run.name, *(facts.get(fact) for fact in ("started", "cwd", "argv", "seed")))


def _load_folder(folder: Path) -> Run | Log:
    choice = choose(folder)
    if choice is not None:
        if choice.others:
            shown = ", ".join(str(path.relative_to(folder)) for path in choice.others[:SHOWN])
            read = ", ".join(str(path.relative_to(folder)) for path in choice.files[:SHOWN])
            _warn(f"{folder}: read is {read}; also there, not read: {shown}")
        if is_event_file(choice.files[0]):
            return read_tfevents(choice.files[0], also=choice.files[1:])
        return reader_of(choice.files[0])(choice.files[0])
    if wandb_files_in(folder):
        return read_wandb_file(_only_file(folder))
    below = logs_below(folder)
    if len(below) == 1 and not (below[0] / DATABASE_NAME).exists():
        return load(below[0])
    if below:
        names = [str(path.relative_to(folder)) for path in below]
        shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        raise NotARun(f"{folder} is not a run but a folder of runs: open one of {shown}")
    raise NotARun(no_log_in(folder))


def reader_of(path: Path) -> Callable[[Path], Run | Log]:
    """What reads a file, or a run's folder, by how it begins; an error for what nobody reads."""
    # A run.db is left to SQLite: closing a second descriptor of a file that this process writes would drop SQLite's locks.
    if not path.is_file() or path.name == DATABASE_NAME:
        return reader.load
    with path.open("rb") as file:
        start = file.read(1 << 16)
    if start.startswith(MAGIC) or path.suffix == ".wandb":
        return read_wandb_file
    whose = owner(start)
    if whose is not None or path.name == DYNAMICS_NAME:
        return reader.load if whose == APPLICATION_ID else read_dynamics_db
    if is_event_file(path) or begins_like_events(start):
        return read_tfevents
    if path.suffix in JSONL_SUFFIXES or (path.suffix != ".json" and _begins_with_an_object(start)):
        return read_jsonl
    if path.suffix == ".json" or start.lstrip()[:1] in (b"{", b"["):
        return read_json
    if path.suffix in CSV_SUFFIXES or reads_like_csv(start):
        return read_csv
    raise NotARun(no_log(path, start))


def _only_file(folder: Path) -> Path:
    found = wandb_files_in(folder)
    if not found:
        raise NotARun(f"{folder} holds no W&B run: no .wandb file in it")
    if len({file.resolve() for file in found}) > 1:
        shown = ", ".join(str(file.parent if file.parent != folder else file) for file in found[:5])
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise NotARun(f"{folder} holds {len(found)} W&B runs: give one of {shown}{more}")
    return found[0]


def _begins_with_an_object(start: bytes) -> bool:
    """Whether a file's first line is a whole JSON object, whatever the file is called."""
    line = start.lstrip().partition(b"\n")[0]
    if not line.startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _warn(message: str) -> None:
    warnings.warn(message, GradiometerWarning, stacklevel=2)
