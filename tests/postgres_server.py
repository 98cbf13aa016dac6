"""PostgreSQL for tests: one server for the whole test run, on a socket in a temporary folder.

Debian's `postgres` refuses to run as root, so root starts it as `nobody`. Where there is no server
to start, tests that need one are skipped, and say so.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

SECONDS = 120
QUICK = "-c fsync=off -c max_connections=120 -c listen_addresses='' -c shared_buffers=16MB"
PASSWORD = "s3cret"


def binaries() -> Path | None:
    """The programs of the newest server that is installed."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda file: int(file.parts[4])
    )
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def start() -> str:
    """The URL of a server for the user `tester`; `stop` ends it."""
    programs, who = binaries(), _unprivileged()
    place = Path(tempfile.mkdtemp(prefix="gm-pg-", dir="/tmp"))  # a socket's path must be short
    if who:
        os.chown(place, who["user"], who["group"])
    secret = place / "secret"
    secret.write_text(f"{PASSWORD}\n")
    _call(
        *(f"{programs}/initdb", "-D", f"{place}/data", "-U", "tester", f"--pwfile={secret}"),
        *("-A", "scram-sha-256", "--no-sync", "--locale=C", "-E", "UTF8"),
    )
    _call(
        *(f"{programs}/pg_ctl", "-D", f"{place}/data", "-l", f"{place}/log", "-w", "start"),
        *("-o", f"{QUICK} -k {place}"),
    )
    return f"postgresql://tester:{PASSWORD}@{quote(str(place), safe='')}/postgres"


def stop(url: str) -> None:
    """End a server that `start` began."""
    place = Path(url.rpartition("@")[2].partition("/")[0].replace("%2F", "/"))
    _call(f"{binaries()}/pg_ctl", "-D", f"{place}/data", "-m", "immediate", "stop")
    shutil.rmtree(place, ignore_errors=True)


def shared(folder: Path) -> str:
    """The server of all workers; who asks first starts it."""
    with (folder / "postgres.lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        known = folder / "postgres.url"
        if not known.exists():
            known.write_text(start())
        return known.read_text()


def stop_shared(folder: Path) -> None:
    """End it, if anybody asked for it."""
    known = folder / "postgres.url"
    if known.exists():
        stop(known.read_text())
        known.unlink()


@contextmanager
def running() -> Iterator[str]:
    """A server for as long as the block."""
    url = start()
    try:
        yield url
    finally:
        stop(url)


def _unprivileged() -> dict[str, Any]:
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _call(*command: str) -> None:
    # Not into a pipe: the server would inherit it and keep it open.
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run(
            command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            timeout=SECONDS,
            **_unprivileged(),
        )
        said.seek(0)
        assert done.returncode == 0, said.read()
