"""Open whatever holds a training's numbers: our run, a JSONL log, a W&B run on disk or on a server."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gradiometer.errors import NotARun, RunNotFound
from gradiometer.store.database import DATABASE_NAME
from gradiometer.store.jsonl import read_jsonl
from gradiometer.store.logs import Log, short_id
from gradiometer.store.reader import Run, load
from gradiometer.store.wandb_api import is_server_path, read_wandb_server
from gradiometer.store.wandb_files import MAGIC, read_wandb_file, wandb_files_in

__all__ = ["Log", "identify", "open_log", "open_wandb"]

JSONL_SUFFIXES = (".jsonl", ".ndjson")


def open_log(path: str | os.PathLike[str]) -> Run | Log:
    """A run or a log for reading, by what is at the path; what is none of them gets the reader's error."""
    path = Path(path)
    if path.is_dir() and not (path / DATABASE_NAME).exists() and wandb_files_in(path):
        return read_wandb_file(_only_file(path))
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(1 << 16)
        if start.startswith(MAGIC) or path.suffix == ".wandb":
            return read_wandb_file(path)
        if path.suffix in JSONL_SUFFIXES or _begins_with_an_object(start):
            return read_jsonl(path)
    return load(path)


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
