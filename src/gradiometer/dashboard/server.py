"""Serve a folder of runs until Ctrl-C."""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import ipaddress
import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, urlencode

from gradiometer.errors import MissingExtra, RunNotFound, UsageError
from gradiometer.store.reader import nothing_at

__all__ = ["DEFAULT_PORT", "address", "bind", "check_extra", "is_loopback", "serve"]

DEFAULT_PORT = 8765
MORE_PORTS = 20
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # of malloc.h
LARGE_ARRAY = 256 << 10
NEEDED = ("fastapi", "uvicorn", "sse_starlette", "plotly")


def serve(
    root: Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str = "",
    open_browser: bool = False,
    path: str = "/",
    say: Callable[[str], None] = print,
) -> None:
    """Serve until interrupted. `path` is what the printed address points at."""
    check_extra()
    if not root.exists():
        raise RunNotFound(nothing_at(root))
    if not is_loopback(host) and not token:
        raise UsageError(
            f"--host {host} can be reached from other machines, so it needs --token: choose a long one, "
            "for whoever has it can read every run and its config"
        )
    listening = bind(host, port)
    where = address(host, listening.getsockname()[1], path, token)
    say(f"{root} at {where}   (Ctrl-C stops it)")
    if open_browser:
        threading.Timer(0.7, webbrowser.open, (where,)).start()
    _run(root, host, token, listening)


def _give_memory_back() -> None:
    """Have glibc return large arrays when they are freed, and keep two heaps for all threads: by itself each thread keeps one,
    and pages that are reloaded let them grow. Elsewhere there is no such setting, and nothing is done."""
    with suppress(OSError, AttributeError):
        system = ctypes.CDLL(None)
        system.mallopt(M_MMAP_THRESHOLD, LARGE_ARRAY)
        system.mallopt(M_ARENA_MAX, 2)


def _run(root: Path, host: str, token: str, listening: socket.socket) -> None:
    _give_memory_back()
    import uvicorn

    from gradiometer.dashboard.app import create_app
    from gradiometer.dashboard.guard import LOOPBACK

    app = create_app(root, hosts=LOOPBACK | {host} if is_loopback(host) else None, token=token)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, server_header=False
    )
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass  # that is how one leaves
    finally:
        listening.close()


def check_extra() -> None:
    """An error with the pip line when a package of the dashboard is missing."""
    for package in NEEDED:
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package.replace("_", "-"), "dashboard", "the dashboard")


def bind(host: str, port: int | None) -> socket.socket:
    """A listening socket: the port that was asked for, or the first free one from 8765 on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = [port] if port is not None else list(range(DEFAULT_PORT, DEFAULT_PORT + MORE_PORTS))
    for number in wanted:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, number))
        except OSError as problem:
            listening.close()
            if problem.errno != errno.EADDRINUSE:
                raise UsageError(f"cannot listen on {host}, port {number}: {problem.strerror or problem}") from problem
            continue
        listening.listen(128)
        return listening
    raise UsageError(
        f"port {port} is taken: choose another with -p, or leave -p out"
        if port is not None
        else f"ports {wanted[0]} to {wanted[-1]} are all taken: choose one with -p"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address(host: str, port: int, path: str = "/", token: str = "") -> str:
    """What to open in a browser."""
    shown = f"[{host}]" if ":" in host else host
    before, _, query = path.partition("?")
    query += ("&" if query and token else "") + (urlencode({"token": token}, quote_via=quote) if token else "")
    return f"http://{shown}:{port}{before}" + (f"?{query}" if query else "")
