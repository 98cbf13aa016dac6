"""Where we meet the script: trouble of ours is told once, and from then on nothing of ours runs."""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable
from typing import ParamSpec

from gradiometer.errors import UsageError
from gradiometer.words import say

__all__ = ["Boundary"]

P = ParamSpec("P")


class Boundary:
    """Guards calls of ours: none runs in a forked child, or after a fault of ours."""

    def __init__(self) -> None:
        self.broken = False
        self.after: Callable[[], None] = lambda: None
        """What is left to do when something broke."""
        self._pid = os.getpid()

    @property
    def ours(self) -> bool:
        """Whether this is the process that was started."""
        return os.getpid() == self._pid

    def __call__(self, function: Callable[P, None]) -> Callable[P, None]:
        """The same function, whose exceptions do not reach the script."""

        @functools.wraps(function)
        def harmless(*args: P.args, **kwargs: P.kwargs) -> None:
            if self.broken or not self.ours:
                return
            try:
                function(*args, **kwargs)
            except Exception as problem:
                self._break(problem)

        return harmless

    def _break(self, problem: Exception) -> None:
        self.broken = True
        if isinstance(problem, UsageError):
            say(f"the script goes on unwatched: {problem}")
        else:
            told = "".join(traceback.format_exception(problem))
            say(
                "had a fault; the script goes on unwatched. Please report this with the versions"
                f" that `gradiometer env` prints:\n{told}"
            )
        try:
            self.after()
        except Exception as another:
            say(f"and could not tidy up: {another!r}")
