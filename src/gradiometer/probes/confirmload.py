"""`--probe module:function`: somebody's own experiment, whose mistakes are told in one line."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradiometer.errors import UnknownName, UsageError
from gradiometer.probes.confirm import Experiment, Probe

__all__ = ["load_probe"]

FORM = "write --probe module:function, a function that takes an Experiment and returns numbers"


def load_probe(name: str) -> Probe:
    """The function of that name, from a module that can be imported here; what it raises becomes a UsageError."""
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise UsageError(f"--probe {name}: {FORM}")
    module = _imported(module_name)
    function = getattr(module, function_name, None)
    if function is None:
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise UnknownName(f"function of {module_name}", function_name, known)
    if not callable(function):
        raise UsageError(f"--probe {name} is a {type(function).__name__}, which cannot be called: {FORM}")

    def probe(experiment: Experiment) -> Any:
        try:
            return function(experiment)
        except (NotImplementedError, UsageError):
            raise
        except (Exception, SystemExit) as problem:
            raise UsageError(f"--probe {name} failed on {experiment}: {_told(problem)}") from problem

    return probe


def _imported(name: str) -> Any:
    if name.endswith(".py") or "/" in name:
        raise UsageError(f"--probe {name}: name the module, not its file: {Path(name).stem}:function")
    with _from_here():
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as problem:
            if problem.name is not None and (name == problem.name or name.startswith(problem.name + ".")):
                raise UsageError(f"--probe: no module {name!r} in {Path.cwd()} or among what is installed") from problem
            raise UsageError(f"--probe: {name} cannot be imported: {_told(problem)}") from problem
        except (Exception, SystemExit) as problem:
            raise UsageError(f"--probe: {name} cannot be imported: {_told(problem)}") from problem


@contextmanager
def _from_here() -> Iterator[None]:
    """As `python -m` does: what lies in this folder can be imported."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _told(problem: BaseException) -> str:
    """What happened and where, without the frames that are ours."""
    frames = traceback.extract_tb(problem.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__ and "importlib" not in frame.filename]
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    lines = str(problem).strip().splitlines()
    return f"{type(problem).__name__}{f': {lines[0]}' if lines else ''}{where}"
