"""`gradiometer serve`: runs in a browser."""

from __future__ import annotations

import sys
from pathlib import Path

from gradiometer.dashboard import server
from gradiometer.errors import UsageError
from gradiometer.store.importers import logs_in, reader_of
from gradiometer.store.unreadable import no_log_in

__all__ = ["serve"]


def serve(path: str, *, host: str, port: int | None, token: str, open_browser: bool) -> None:
    """Serve a folder of runs, a run or a log, until Ctrl-C. What cannot be read is told at once, not on the page."""
    if token and len(token) < 8:
        raise UsageError(f"--token has {len(token)} characters: give at least 8")
    root = Path(path) if path else Path("runs") if Path("runs").is_dir() else Path.cwd()
    if root.is_file():
        reader_of(root)
    elif root.is_dir() and not logs_in(root, or_itself=False):
        empty = next(root.iterdir(), None) is None
        why = f"{root} is empty; runs show when they begin" if empty else no_log_in(root)
        print(f"nothing to show yet: {why}", file=sys.stderr)
    server.serve(root, host=host, port=port, token=token, open_browser=open_browser, say=_say)


def _say(line: str) -> None:
    print(line, flush=True)
