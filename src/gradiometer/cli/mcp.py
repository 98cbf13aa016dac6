"""`gradiometer mcp`: runs for coding assistants."""

from __future__ import annotations

import sys
from pathlib import Path

from gradiometer.cli.commands import McpRequest
from gradiometer.mcp_server import make_server

__all__ = ["mcp"]


def mcp(request: McpRequest) -> None:
    """Serve until the assistant closes the pipe."""
    usual = Path("runs") if Path("runs").is_dir() else Path.cwd()
    server = make_server(Path(request.path) if request.path else usual)
    if sys.stdin.isatty():
        print(
            "A coding assistant starts this command; docs/guide/assistants.md explains how."
            " Press Ctrl-C to stop.",
            file=sys.stderr,
        )
    server.run("stdio")
