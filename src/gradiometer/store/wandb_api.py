"""Runs on a W&B server, by `entity/project/run_id`."""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradiometer.errors import GradiometerWarning, MissingExtra, UsageError
from gradiometer.store.facts import redact
from gradiometer.store.logs import Log, is_table
from gradiometer.store.origins import origin

__all__ = ["is_server_path", "read_wandb_server"]

SERVER_PATH = re.compile(r"[^/\s]+/[^/\s]+/(?:runs/)?[^/\s]+")
SECONDS = 20


def is_server_path(text: str) -> bool:
    """Whether a text reads like `entity/project/run_id` (or the same with `runs/` in it, as in the address bar)."""
    return SERVER_PATH.fullmatch(text) is not None


def read_wandb_server(name: str) -> Log:
    """The whole history of a run on the server, with its tables; asks W&B's own package, which knows the login."""
    try:
        import wandb
    except ImportError as problem:
        raise MissingExtra("wandb", "trackers", "reading a run from the W&B server") from problem
    try:
        run = wandb.Api(timeout=SECONDS).run(name.replace("/runs/", "/"))
        rows = list(_rows(run))
    except Exception as problem:  # W&B raises its own, requests' and GraphQL's; all mean that the server did not answer
        why = str(problem).strip().partition("\n")[0] or type(problem).__name__
        raise UsageError(
            f"the W&B server gave no run {name}: {why}; "
            "check the name, the network and `wandb login`, or give an offline file with --wandb-path FILE"
        ) from problem
    entity, project, run_id = run.path
    imported = {"format": "wandb", "entity": entity, "project": project, "run_id": run_id, "name": run.name}
    facts = {"imported": {}, "config": redact(dict(run.config))}
    log = Log(name, name=run.name or run_id, run_id=run_id, rows=rows, facts=facts)
    log.facts["imported"] |= origin("wandb", log.names(), step="_step") | imported
    return log


def _rows(run: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        for row in run.scan_history():
            values = {name: _opened(value, name, run, Path(folder)) for name, value in row.items() if name != "_step"}
            yield int(row["_step"]), values


def _opened(value: Any, name: str, run: Any, folder: Path) -> Any:
    if not isinstance(value, Mapping) or value.get("_type") != "table-file":
        return value
    with run.file(value["path"]).download(root=str(folder), replace=True) as file:
        content = json.load(file)
    if is_table(content):
        return content
    warnings.warn(f"the table {name} is not of rows and columns and was left out", GradiometerWarning, stacklevel=2)
    return None
