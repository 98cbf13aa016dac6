"""Open whatever holds a training's numbers: our run, a JSONL log, experts in a dynamics.db, a W&B run on disk or a server."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gradiometer.errors import NotARun, RunNotFound
from gradiometer.store import reader
from gradiometer.store.database import APPLICATION_ID, DATABASE_NAME, owner
from gradiometer.store.dynamics_db import DYNAMICS_NAME, read_dynamics_db
from gradiometer.store.jsonl import read_jsonl
from gradiometer.store.logs import Log, short_id
from gradiometer.store.reader import Run
from gradiometer.store.wandb_api import is_server_path, read_wandb_server
from gradiometer.store.wandb_files import MAGIC, read_wandb_file, wandb_files_in

__all__ = ["Log", "identify", "load", "open_log", "open_wandb"]

JSONL_SUFFIXES = (".jsonl", ".ndjson")


def load(path: str | os.PathLike[str]) -> Run | Log:
    """Open for reading a run (its folder, or the `run.db` in it), or a log of another tool, which reads the same way.

    Logs: JSONL (verl's file logger, exported histories), an offline W&B file or folder, a `dynamics.db` of experts.
    """
    path = Path(path)
    if path.is_dir() and not (path / DATABASE_NAME).exists():
        if wandb_files_in(path):
            return read_wandb_file(_only_file(path))
        if (path / DYNAMICS_NAME).exists():
            return read_dynamics_db(path / DYNAMICS_NAME)
    # A run.db is left to SQLite: closing a second descriptor of a file that this process writes would drop SQLite's locks.
    if path.is_file() and path.name != DATABASE_NAME:
        with path.open("rb") as file:
            start = file.read(1 << 16)
        if start.startswith(MAGIC) or path.suffix == ".wandb":
            return read_wandb_file(path)
        if path.suffix in JSONL_SUFFIXES or _begins_with_an_object(start):
            return read_jsonl(path)
        whose = owner(start)
        if whose != APPLICATION_ID and (whose is not None or path.name == DYNAMICS_NAME):
            return read_dynamics_db(path)
    return reader.load(path)


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
