"""A script or module, run in this process as `python train.py` or `python -m module` would."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING

from gradiometer.errors import UsageError

if TYPE_CHECKING:
    from gradiometer.metrics import Tier

__all__ = [
    "INTERRUPTED",
    "EnoughSteps",
    "NothingToRun",
    "Program",
    "RunOptions",
    "ScriptEnd",
    "execute",
    "is_first_rank",
]

INTERRUPTED = 130
OURS = str(Path(__file__).parent)
_kept: list[ModuleType] = []
"""The script's modules, kept alive: what it registered for the exit uses their globals."""


class NothingToRun(UsageError):
    """There is no such script or module."""


class EnoughSteps(SystemExit):
    """The script has taken as many steps as were asked for. It leaves as if by sys.exit(0): its
    `finally` blocks run, `except Exception` lets it pass, and a thread ends without a word."""

    def __init__(self) -> None:
        super().__init__(0)


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
        if self.is_module:
            return self.target.removesuffix(".__main__").rpartition(".")[2]
        return Path(self.target).stem


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the user asked of `gradiometer run`: how to watch, and where to keep it."""

    folder: Path
    """Absolute: the script may change its working directory."""
    every: int = 1
    budget: float | None = 0.01
    tier: Tier = "standard"
    doctor: bool = True
    system: bool = False
    steps: int | None = None
    """After how many measured steps the script is stopped; None: never."""
    quiet: bool = False
    start: Path = field(default_factory=Path.cwd)

    def run_folder(self, number: int) -> Path:
        """The folder of the first, second, ... training; what is there already is left alone."""
        if number == 1:
            return self.folder
        folder = self.folder.with_name(f"{self.folder.name}-{number}")
        return self.run_folder(number + 1) if folder.exists() else folder

    def shown(self, folder: Path) -> str:
        """As the user would type it."""
        return str(folder.relative_to(self.start) if folder.is_relative_to(self.start) else folder)


def is_first_rank() -> bool:
    """Whether a launcher (torchrun, accelerate, srun) calls this process the first of its group."""
    return os.environ.get("RANK", "0") in ("", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEnd:
    """How it ended: the exit code that python would give, and the exception that ended it."""

    code: int
    error: BaseException | None = None
    stopped: bool = False
    """Whether it was stopped by us."""


def execute(program: Program) -> ScriptEnd:
    """Run it to its end, threads included; sys.argv, sys.path and `__main__` stay the script's."""
    try:
        code, main = _module(program) if program.is_module else _script(program)
        sys.modules["__main__"] = main
        _kept.append(main)
        exec(code, vars(main))
        outcome = ScriptEnd(code=0)
    except NothingToRun:
        raise
    except EnoughSteps:
        outcome = ScriptEnd(code=0, stopped=True)
    except SystemExit as leaving:
        outcome = _left(leaving)
    except KeyboardInterrupt as problem:
        outcome = _failed(problem, INTERRUPTED)
    except BaseException as problem:
        outcome = _failed(problem, 1)
    with suppress(KeyboardInterrupt):
        for thread in threading.enumerate():  # a training may go on in one
            ours = (threading.current_thread(), threading.main_thread())
            if thread not in ours and not thread.daemon:
                thread.join()
    return outcome


def _script(program: Program) -> tuple[CodeType, ModuleType]:
    path = Path(program.target)
    if not path.is_file():
        raise NothingToRun(
            f"no script at {path}: give a Python file, or a module with -m, and then its arguments"
        )
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
        raise NothingToRun(
            f"no module {name}: -m takes what `python -m` takes, from this folder or sys.path"
        )
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


def _left(leaving: SystemExit) -> ScriptEnd:
    if leaving.code is None or isinstance(leaving.code, int):
        code = int(leaving.code or 0)
        return ScriptEnd(code=code, error=leaving if code else None)
    print(leaving.code, file=sys.stderr)
    return ScriptEnd(code=1, error=leaving)


def _failed(problem: BaseException, code: int) -> ScriptEnd:
    _tell(problem)
    return ScriptEnd(code=code, error=problem)


def _tell(problem: BaseException) -> None:
    """By sys.excepthook, which may be the script's own, and without frames of ours."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [problem]
    while chain:
        each = chain.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = _without_ours(each.__traceback__)
            chain += [each.__cause__, each.__context__]
    sys.excepthook(type(problem), problem, problem.__traceback__)


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        if os.path.dirname(trace.tb_frame.f_code.co_filename) != OURS:
            kept.append(trace)
        trace = trace.tb_next
    following: TracebackType | None = None
    for each in reversed(kept):
        following = TracebackType(following, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return following
