"""`gradiometer serve`: runs in a browser."""

from __future__ import annotations

import sys
from pathlib import Path

from gradiometer.cli.commands import ServeRequest
from gradiometer.dashboard import server
from gradiometer.errors import UsageError
from gradiometer.store.database import DATABASE_NAME
from gradiometer.store.importers import logs_in, no_log_in, open_log
from gradiometer.store.postgres import Address, address_of, runs_at

__all__ = ["serve"]


def serve(request: ServeRequest) -> None:
    """Serve runs until Ctrl-C. What cannot be read is told at once, not on the page."""
    if request.token and len(request.token) < 8:
        raise UsageError(f"--token has {len(request.token)} characters: give at least 8")
    usual = Path("runs") if Path("runs").is_dir() else Path.cwd()
    address = address_of(request.path)
    root = address or (Path(request.path) if request.path else usual)
    if isinstance(root, Address):
        _check_database(root, write=request.write)
    elif root.is_file():
        with open_log(root):  # a packed one is only known once it is unpacked
            pass
    elif root.is_dir() and not logs_in(root, or_itself=False):
        empty = next(root.iterdir(), None) is None
        why = f"{root} is empty; runs show when they begin" if empty else no_log_in(root)
        print(f"nothing to show yet: {why}", file=sys.stderr)
    server.serve(
        root,
        host=request.host,
        port=request.port,
        token=request.token,
        write=request.write,
        open_browser=request.open_browser,
        path="/overview" if _is_one(root) else "/",
        say=_say,
    )


def _check_database(address: Address, *, write: bool) -> None:
    if write:
        raise UsageError("--write changes the files of a folder; a database is only read here")
    if address.run:
        with open_log(address.path):
            pass
    elif not runs_at(address):
        print(f"nothing to show yet: {address} has no runs", file=sys.stderr)


def _is_one(root: Path | Address) -> bool:
    """Whether there is but one run to see: its own page comes first then."""
    if isinstance(root, Address):
        return bool(root.run)
    return root.is_file() or (root / DATABASE_NAME).is_file()


def _say(line: str) -> None:
    print(line, flush=True)
