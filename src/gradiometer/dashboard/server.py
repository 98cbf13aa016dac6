"""Serve a folder of runs until Ctrl-C."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import importlib.util
import ipaddress
import os
import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from gradiometer.errors import MissingExtra, RunNotFound, UsageError
from gradiometer.store.postgres import Address
from gradiometer.store.reader import nothing_at

__all__ = ["DEFAULT_PORT", "address", "bind", "cache_folder", "check_extra", "is_loopback", "serve"]

DEFAULT_PORT = 8765
MORE_PORTS = 20
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # of malloc.h
LARGE_ARRAY = 256 << 10
REQUEST_SECONDS = 10.0
"""From the first byte of a request to its last."""
NEEDED = ("fastapi", "uvicorn", "sse_starlette", "plotly")


def serve(
    root: Path | Address,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str = "",
    write: bool = False,
    open_browser: bool = False,
    path: str = "/",
    say: Callable[[str], None] = print,
) -> None:
    """Serve until interrupted. `path` is what the printed address points at; with `write` the page
    may change notes on runs and move them to the bin."""
    check_extra()
    if isinstance(root, Path) and not root.exists():
        raise RunNotFound(nothing_at(root))
    if not is_loopback(host) and not token:
        raise UsageError(
            f"--host {host} can be reached from other machines, so it needs --token: choose a long"
            " one, for whoever has it can read every run and its config"
        )
    listening = bind(host, port)
    where = address(host, listening.getsockname()[1], path, token)
    say(f"{root} at {where}   (Ctrl-C stops it)")
    if open_browser:
        threading.Timer(0.7, webbrowser.open, (where,)).start()
    _run(root, host, token, listening, write=write)


def _give_memory_back() -> None:
    """Have glibc return large arrays when they are freed, and keep two heaps for all threads: by
    itself each thread keeps one, and pages that are reloaded let them grow. Elsewhere there is no
    such setting, and nothing is done.
    """
    with suppress(OSError, AttributeError):
        system = ctypes.CDLL(None)
        system.mallopt(M_MMAP_THRESHOLD, LARGE_ARRAY)
        system.mallopt(M_ARENA_MAX, 2)


def _run(
    root: Path | Address, host: str, token: str, listening: socket.socket, *, write: bool
) -> None:
    _give_memory_back()
    import uvicorn

    from gradiometer.dashboard.app import create_app
    from gradiometer.dashboard.guard import LOOPBACK

    hosts = LOOPBACK | {host} if is_loopback(host) else None
    app = create_app(root, hosts=hosts, token=token, write=write, cache=cache_folder())
    config = uvicorn.Config(
        app,
        http=protocol(),
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass  # that is how one leaves
    finally:
        listening.close()


def cache_folder() -> Path | None:
    """Where states of runs are kept between servers; None where nobody has a home."""
    told = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(told) if told else Path.home() / ".cache") / "gradiometer"
    except RuntimeError:
        return None


def protocol() -> type[asyncio.Protocol]:
    """uvicorn's, but a request that does not come to its end in `REQUEST_SECONDS` is closed: by
    itself uvicorn waits for ever, and who opens enough of them uses up its sockets."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class PunctualProtocol(H11Protocol):
        """Watches the time from the first byte of a request to its last."""

        _watch: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._is_asked():
                self._stop()
            elif self._watch is None:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _is_asked(self) -> bool:
            """Whether a request is whole, and being answered."""
            return self.cycle is not None and not self.cycle.response_complete

        def _wait(self) -> None:
            self._watch = self.loop.call_later(REQUEST_SECONDS, self._late)

        def _stop(self) -> None:
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None

        def _late(self) -> None:
            self._watch = None
            if not self._is_asked():
                self.transport.close()

    return PunctualProtocol


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
                raise UsageError(
                    f"cannot listen on {host}, port {number}: {problem.strerror or problem}"
                ) from problem
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
    query += ("&" if query and token else "") + (
        urlencode({"token": token}, quote_via=quote) if token else ""
    )
    return f"http://{shown}:{port}{before}" + (f"?{query}" if query else "")
