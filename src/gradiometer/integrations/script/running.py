"""A script or module, run in this process as `python train.py ARGS` or `python -m package.module ARGS` would."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from gradiometer.errors import UsageError
from gradiometer.integrations.script import failures

__all__ = ["INTERRUPTED", "NothingToRun", "Outcome", "Program", "execute"]

INTERRUPTED = 130
_kept: list[ModuleType] = []
"""The script's module lives as long as the process: what it left for the end of it still uses its globals."""


class NothingToRun(UsageError):
    """There is no such script or module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run."""

    target: str
    """A file, or with `is_module` the name of a module."""
    is_module: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A word for it."""
        return self.target.removesuffix(".__main__").rpartition(".")[2] if self.is_module else Path(self.target).stem


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it ended: the exit code that python would give, and the exception that ended it."""

    code: int
    error: BaseException | None = None


def execute(program: Program) -> Outcome:
    """Run it to its end, threads included. It keeps sys.argv, sys.path and `__main__`: what runs at exit is the script's."""
    try:
        code, main = _module(program) if program.is_module else _script(program)
        sys.modules["__main__"] = main
        _kept.append(main)
        exec(code, vars(main))
        outcome = Outcome(code=0)
    except NothingToRun:
        raise
    except SystemExit as leaving:
        outcome = _left(leaving)
    except KeyboardInterrupt as problem:
        outcome = _failed(problem, INTERRUPTED)
    except BaseException as problem:
        outcome = _failed(problem, 1)
    with suppress(KeyboardInterrupt):
        for thread in threading.enumerate():  # a training may go on in one
            if thread is not threading.current_thread() and thread is not threading.main_thread() and not thread.daemon:
                thread.join()
    return outcome


def _script(program: Program) -> tuple[CodeType, ModuleType]:
    path = Path(program.target)
    if not path.is_file():
        raise NothingToRun(f"no script at {path}: give a Python file, or a module with -m, and then its arguments")
    file = os.path.abspath(path)
    _set_up(program.target, program, str(Path(file).resolve().parent))
    with io.open_code(file) as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    main = _main(file)
    main.__loader__ = SourceFileLoader("__main__", file)
    return code, main


def _module(program: Program) -> tuple[CodeType, ModuleType]:
    _set_up("-m", program, str(Path.cwd()))
    name = program.target
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(name := f"{name}.__main__")
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{name}.".startswith(f"{problem.name}."):
            raise  # a module that the package itself lacks
        spec = None
    get_code = getattr(None if spec is None else spec.loader, "get_code", None)
    code = None if get_code is None else get_code(name)
    if spec is None or code is None:
        raise NothingToRun(f"no module {name}: -m takes what `python -m` takes, from this folder or sys.path")
    sys.argv[0] = spec.origin or name
    main = _main(spec.origin)
    main.__loader__, main.__package__, main.__spec__ = spec.loader, spec.parent, spec
    main.__cached__ = spec.cached  # type: ignore[attr-defined]
    return code, main


def _set_up(first: str, program: Program, folder: str) -> None:
    sys.argv = [first, *program.arguments]
    if not sys.flags.safe_path:  # else python puts no folder there
        sys.path[0] = folder


def _main(file: str | None) -> ModuleType:
    main = ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __file__=file, __cached__=None, __annotations__={})
    return main


def _left(leaving: SystemExit) -> Outcome:
    if leaving.code is None or isinstance(leaving.code, int):
        code = int(leaving.code or 0)
        return Outcome(code=code, error=leaving if code else None)
    print(leaving.code, file=sys.stderr)
    return Outcome(code=1, error=leaving)


def _failed(problem: BaseException, code: int) -> Outcome:
    failures.tell(problem)
    return Outcome(code=code, error=problem)
