"""The labs on the command line: a distribution of their own, `gradiometer-labs`, may be absent."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import typer

from gradiometer.cli.app import app
from gradiometer.errors import MissingExtra

__all__ = ["installed", "need_labs", "register"]

PACKAGE = "gradiometer_labs"
COMMANDS = ("labs", "train", "clinic")


def installed() -> bool:
    """Whether the labs can be imported; nothing of them is loaded to find out."""
    return find_spec(PACKAGE) is not None


def need_labs(purpose: str) -> None:
    """Raise the error with the pip line where the labs are not installed."""
    if not installed():
        raise MissingExtra("gradiometer-labs", "labs", purpose)


def register() -> None:
    """Add the commands of the labs; where they are not installed, each says how to get them."""
    if installed():
        import_module(f"{PACKAGE}.cli.commands")
        return
    anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    for name in COMMANDS:
        app.command(name, hidden=True, context_settings=anything)(_absent)


def _absent(ctx: typer.Context) -> None:
    """A command of the labs, which are not installed."""
    need_labs(f"`gradiometer {ctx.info_name}`")
