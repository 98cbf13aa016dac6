"""The command `gradiometer`: the verbs, and what becomes of errors.

Exit codes: 0 fine, 1 findings at or above --fail-on, 2 wrong usage or bad input, 3 a fault of ours,
130 interrupted. Each verb's file is imported when the verb runs, so `--help` stays quick and
reading never imports torch.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, NoReturn

import typer

from gradiometer.cli import commands, labs  # noqa: F401 (it registers the verbs)
from gradiometer.cli.app import app, plain_call, sign
from gradiometer.errors import UsageError, WorkersLost
from gradiometer.version import __version__

__all__ = ["app", "main", "verbs"]

labs.register()


def main() -> NoReturn:
    """Run the command line and leave with the right exit code."""
    sys.exit(run())


def run(arguments: list[str] | None = None) -> int:
    """The exit code; a user's mistake is one line on stderr, never a traceback."""
    try:
        if (call := _plain_call(arguments)) is not None:
            return call() or 0
        verbs(listed=_lists_verbs(arguments))(args=arguments, prog_name="gradiometer")
    except KeyboardInterrupt:  # as typer does it
        return 130
    except BrokenPipeError:  # whoever reads has seen enough: `... | head`
        _close_output()
        return 1
    except SystemExit as leaving:  # typer's own way out: help, usage errors, 130 when interrupted
        return leaving.code if isinstance(leaving.code, int) else 0
    except UsageError as problem:
        return _say(f"error: {problem}", 2)
    except WorkersLost as problem:
        return _say(f"error: {problem}", 2)
    except OSError as problem:  # no permission, no space: the machine's trouble, not ours
        return _say(f"error: {problem}", 2)
    except Exception:
        traceback.print_exc()
        return _say(
            "This is a fault of Gradiometer. Please report it with what `gradiometer env` prints.",
            3,
        )
    return 0


def _plain_call(arguments: list[str] | None) -> Callable[[], int | None] | None:
    """Words alone; the shell's questions for completions come as an empty command line."""
    return plain_call(sys.argv[1:] if arguments is None else arguments) if os.name != "nt" else None


def _close_output() -> None:
    """What is left in the buffer goes nowhere, or Python complains of it when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _lists_verbs(arguments: list[str] | None) -> bool:
    """Whether the list of verbs is all that is asked for."""
    asks = (sys.argv[1:] if arguments is None else arguments) in (["--help"], ["-h"])
    return asks and not any(name.endswith("_COMPLETE") for name in os.environ)


@cache
def verbs(*, listed: bool = False) -> Any:
    """The verbs as typer builds them, which takes longer than most of them run: once a process.
    Only to be `listed`, they have no options."""
    if not listed:
        sign()
    return typer.main.get_command(app)


def _say(message: str, code: int) -> int:
    from gradiometer.cli.printing import visible

    print(visible(message), file=sys.stderr)
    return code


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gradiometer {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The options of the command itself."""
