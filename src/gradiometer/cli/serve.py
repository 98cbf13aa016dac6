"""`gradiometer serve`: runs in a browser."""

from __future__ import annotations

from pathlib import Path

from gradiometer.dashboard import server
from gradiometer.errors import UsageError

__all__ = ["serve"]


def serve(path: str, *, host: str, port: int | None, token: str, open_browser: bool) -> None:
    """Serve a folder of runs, or one run, until Ctrl-C."""
    if token and len(token) < 8:
        raise UsageError(f"--token has {len(token)} characters: give at least 8")
    root = Path(path) if path else Path("runs") if Path("runs").is_dir() else Path.cwd()
    server.serve(root, host=host, port=port, token=token, open_browser=open_browser, say=_say)


def _say(line: str) -> None:
    print(line, flush=True)
