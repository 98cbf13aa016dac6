"""What can go wrong, as a tree.

GradiometerError
├── UsageError (also a ValueError)   the caller's mistake; the command line exits with 2
│   ├── RunNotFound                  nothing at that path
│   ├── NotARun                      something is there, but not a run
│   ├── RunDamaged                   a run that SQLite cannot read any more
│   ├── SchemaTooNew                 written by a later version of Gradiometer
│   ├── RunExists                    the run holds steps, and nobody said what to do with them
│   ├── RunLocked                    another process is writing to the run
│   ├── UnknownName                  a name of anything that nobody knows; says what is close
│   ├── NothingToWatch               no parameter that could ever get a gradient
│   └── MissingExtra (also an ImportError)   a package is not installed; says the pip line
├── WorkersLost                      worker processes died again and again
├── NonFiniteGradient                raised only when asked for, with on_nonfinite="raise"
└── StopTraining                     you raise it in what the live doctor calls; the training ends

GradiometerWarning (a UserWarning)   the instrument is in trouble; the training goes on
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = [
    "GradiometerError",
    "GradiometerWarning",
    "MissingExtra",
    "NonFiniteGradient",
    "NotARun",
    "NothingToWatch",
    "RunDamaged",
    "RunExists",
    "RunLocked",
    "RunNotFound",
    "SchemaTooNew",
    "StopTraining",
    "UnknownName",
    "UsageError",
    "WorkersLost",
    "check_known",
    "close_names",
]


class GradiometerError(Exception):
    """The root: everything Gradiometer raises on purpose."""


class UsageError(GradiometerError, ValueError):
    """The caller's mistake: the message says what was found and what to do."""


class RunNotFound(UsageError):
    """Nothing is at that path."""


class NotARun(UsageError):
    """The file or folder is there, but it is not a run."""


class RunDamaged(UsageError):
    """It was a run, but SQLite cannot read it any more."""


class SchemaTooNew(UsageError):
    """A later version of Gradiometer wrote the run."""


class RunExists(UsageError):
    """The run already holds steps; resume it, replace it or choose another name."""


class RunLocked(UsageError):
    """Another process is writing to the run."""


class UnknownName(UsageError):
    """A name nobody knows, with the known ones closest to it."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str = "") -> None:
        known = tuple(known)
        self.kind, self.name = kind, name
        self.close = close_names(name, known)
        message = f"unknown {kind} {name!r}"
        if self.close:
            message += f"; did you mean {' or '.join(repr(other) for other in self.close)}?"
        elif hint and not hint.startswith("("):
            message += "."
        super().__init__(f"{message} {hint}".rstrip())
        self._hint, self._known = hint, known

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it comes back whole from a worker process."""
        return _unknown_name, (self.kind, self.name, self._known, self._hint)


class NothingToWatch(UsageError):
    """No parameter that could ever get a gradient."""


class MissingExtra(UsageError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f'{purpose} needs {package}, which is not installed: pip install "gradiometer[{extra}]"'
        )
        self._told = (package, extra, purpose)

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it comes back whole from a worker process."""
        return type(self), self._told


class WorkersLost(GradiometerError):
    """Worker processes died again and again, with work left to do."""


class NonFiniteGradient(GradiometerError):
    """A NaN or an Inf in a gradient, raised because the user asked for it."""


class StopTraining(GradiometerError):
    """Raise it in `on_finding=` or `on_state_change=`: `optimizer.step()` raises it, and the
    training stops there."""


class GradiometerWarning(UserWarning):
    """The instrument is in trouble; the training goes on."""


def _unknown_name(kind: str, name: str, known: tuple[str, ...], hint: str) -> UnknownName:
    return UnknownName(kind, name, known, hint=hint)


def check_known(kind: str, name: str, known: Iterable[str]) -> None:
    """One error for a name that is not in a short list, with the whole list."""
    known = tuple(known)
    if name not in known:
        raise UnknownName(kind, name, known, hint=f"The known ones are {', '.join(known)}.")


def close_names(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The known names closest to `name`, best first, ignoring case; then those that contain it."""
    by_lower = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=limit, cutoff=0.6)
    close += [other for other in by_lower if name.lower() in other and other not in close]
    return [by_lower[other] for other in close[:limit]]
