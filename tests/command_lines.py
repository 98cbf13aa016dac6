"""Commands of ours as text: do they parse as they stand?"""

from __future__ import annotations

import shlex
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer.core import TyperGroup


@cache
def _group() -> TyperGroup:
    import typer.core  # here: every session imports this file

    from gradiometer.cli.main import verbs

    group = verbs()
    assert isinstance(group, typer.core.TyperGroup)
    return group


def parse(command: str) -> None:
    """Parse `gradiometer VERB ...` and the settings of a lab, and run nothing; raise if it does not
    parse."""
    import typer

    from gradiometer_labs import find
    from gradiometer_labs.config import configure

    program, *words = shlex.split(command, comments=True)
    assert program == "gradiometer", command
    group = _group()
    if words[0].startswith("-"):
        group.make_context("gradiometer", list(words), resilient_parsing=True)
        return
    verb = group.get_command(typer.Context(group), words[0])
    assert verb is not None, command
    context = verb.make_context(words[0], words[1:])
    if words[0] == "train":
        given = context.params
        configure(find(given["lab"]).config(), given["overrides"], config_name=given["config_name"])
