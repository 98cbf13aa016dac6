"""PostgreSQL for tests: one server for the whole run, on a socket in a temporary folder.

Debian's `postgres` refuses to run as root, so root starts it as `nobody`. Where there is no server
to start, tests that need one are skipped, and say so.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SLOW_TO_START = 120


def binaries() -> Path | None:
    """The newest installed server's programs."""
    found = sorted(
        glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=lambda f: int(f.split("/")[4])
    )
    on_path = shutil.which("initdb")
    return Path(found[-1]).parent if found else Path(on_path).parent if on_path else None


@contextmanager
def running() -> Iterator[str]:
    """A server; its URL, for the user `tester` with the password `s3cret`."""
    programs = binaries()
    assert programs is not None
    who: dict[str, int] = {}
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        who = {"user": nobody.pw_uid, "group": nobody.pw_gid}
    place = Path(tempfile.mkdtemp(prefix="gm-pg-", dir="/tmp"))  # a socket's path is short
    if who:
        os.chown(place, who["user"], who["group"])
    data, secret = place / "data", place / "secret"
    secret.write_text("s3cret\n")
    secret.chmod(0o644)

    def call(*command: str) -> None:
        done = subprocess.run(
            command, cwd=place, capture_output=True, text=True, timeout=SLOW_TO_START, **who
        )
        assert done.returncode == 0, done.stdout + done.stderr

    quick = "-c fsync=off -c max_connections=120 -c listen_addresses='' -c shared_buffers=32MB"
    try:
        call(
            *(f"{programs}/initdb", "-D", f"{data}", "-U", "tester", f"--pwfile={secret}"),
            *("-A", "scram-sha-256", "--no-sync", "--locale=C", "-E", "UTF8"),
        )
        call(
            *(f"{programs}/pg_ctl", "-D", f"{data}", "-l", f"{place}/log", "-w", "start"),
            *("-o", f"{quick} -k {place}"),
        )
        try:
            yield f"postgresql://tester:s3cret@{str(place).replace('/', '%2F')}/postgres"
        finally:
            call(f"{programs}/pg_ctl", "-D", f"{data}", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(place, ignore_errors=True)
