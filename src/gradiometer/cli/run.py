"""`gradiometer run`: a training script, unchanged, with a meter on its optimizers."""

from __future__ import annotations

import importlib.util
import os
import time
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from gradiometer.cli.commands import RunRequest
from gradiometer.errors import MissingExtra, RunExists, UnknownName, UsageError
from gradiometer.integrations.script.boundary import Boundary
from gradiometer.integrations.script.imports import on_import
from gradiometer.integrations.script.printed import Printed, overhear
from gradiometer.integrations.script.running import (
    INTERRUPTED,
    NothingToRun,
    Program,
    RunOptions,
    ScriptEnd,
    execute,
    is_first_rank,
)
from gradiometer.integrations.script.scalars import SOURCES, Loggers
from gradiometer.metrics import TIERS
from gradiometer.words import counted, say

if TYPE_CHECKING:
    from gradiometer.integrations.script.watching import Watcher

__all__ = ["run"]

ENVIRONMENTS = ("gymnasium", "gym", "stable_baselines3.common.vec_env")
"""Modules after whose import there are new classes of environments."""
NOT_WATCHED = "Processes that the script starts (multiprocessing, ray, a launcher) are not watched."


def run(request: RunRequest) -> int:
    """Run it, say where the run is and what the doctor thinks; the exit code is the script's."""
    script, tier = request.script, request.tier
    if script.startswith("-"):  # a parser that lets unknown options pass takes one for the script
        raise UsageError(
            f"No such option: {script}. `gradiometer run --help` lists them;"
            f" a file of that name is ./{script}"
        )
    arguments = tuple(request.arguments)
    program = Program(target=script, is_module=request.module, arguments=arguments)
    if tier not in TIERS:
        raise UnknownName("tier", tier, TIERS, hint=f"(there are {', '.join(TIERS)})")
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("torch", "torch", "gradiometer run")
    if request.folder and request.folder.lower() in ("none", "null"):
        raise UsageError(
            f"--run {request.folder} keeps nothing, and `gradiometer run` reads its run at the end:"
            " name a folder, or run the script by itself"
        )
    name = request.folder or str(Path("runs") / f"{program.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    options = RunOptions(
        folder=Path(os.path.abspath(name)),
        every=request.every,
        budget=_share(request.budget),
        tier=tier,
        doctor=request.doctor,
    )
    _check_free(options.folder, name)
    if os.environ.get("GRADIOMETER_DISABLED", "").lower() in ("1", "true", "yes"):
        say("GRADIOMETER_DISABLED is set: the script runs unwatched")
        return execute(program).code
    return _Watched(options, listen=request.stdout).run(program)


class _Watched:
    """From before the script's first line to after its last."""

    def __init__(self, options: RunOptions, *, listen: bool) -> None:
        self._options, self._listen = options, listen
        self._boundary = Boundary()
        self._loggers = Loggers(self._boundary)
        self._watcher: Watcher | None = None

    def run(self, program: Program) -> int:
        """The exit code of the script."""
        harmless = self._boundary
        with ExitStack() as stack:
            actions = dict.fromkeys(SOURCES, harmless(self._loggers.observe))
            actions |= dict.fromkeys(ENVIRONMENTS, harmless(self._environments_are_here))
            stack.callback(on_import({"torch": harmless(self._torch_is_here), **actions}))
            if self._listen:
                stack.callback(overhear(harmless(Printed(self._loggers.printed).hear)))
            try:
                outcome = execute(program)
            except NothingToRun:
                self._boundary.after()
                raise
            if not self._boundary.ours:  # a child that the script forked, and that came back here
                return outcome.code
        try:
            self._close(outcome)
        except KeyboardInterrupt:
            return INTERRUPTED
        return outcome.code

    def _torch_is_here(self, module: ModuleType) -> None:
        from gradiometer.integrations.script.watching import Watcher

        self._watcher = self._loggers.receiver = Watcher(self._options, self._boundary)
        self._boundary.after = self._watcher.retire
        self._watcher.install()

    def _environments_are_here(self, module: ModuleType) -> None:
        if self._watcher is not None:  # else it looks for them itself, when torch is there
            self._watcher.look_for_environments()

    def _close(self, outcome: ScriptEnd) -> None:
        def close() -> None:
            if self._watcher is not None:
                self._watcher.runs.close(outcome.error)
                self._watcher.retire()
            if is_first_rank():
                self._tell(self._watcher)

        self._boundary(close)()

    def _tell(self, watcher: Watcher | None) -> None:
        if watcher is None:
            say(
                "the script did not import torch:"
                f" nothing was measured, no run is kept. {NOT_WATCHED}"
            )
        elif not watcher.runs.kept and not watcher.stepped_back:
            made = f"{watcher.num_made} made" if watcher.num_made else "none was made"
            never = ""
            if watcher.num_made and not watcher.num_backwards:
                never = " never-trained: and no loss went backward."
            say(
                f"no optimizer stepped in this process ({made}): nothing was measured, no run is"
                f" kept.{never} {NOT_WATCHED}"
            )
        for folder, steps, measured in () if watcher is None else watcher.runs.kept:
            name = self._options.shown(folder)
            verdict = f" {_verdict(folder)}" if self._options.doctor else ""
            say(
                f"{counted(steps, 'optimizer step')} in {name}. {measured}.{verdict} next:"
                f" gradiometer doctor {name}"
            )


def _verdict(folder: Path) -> str:
    from gradiometer.doctor.diagnosis import diagnose
    from gradiometer.store.reader import load

    with load(folder) as kept:
        return diagnose(kept).verdict


def _share(budget: str) -> float | None:
    if budget == "none":
        return None
    try:
        share = float(budget)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise UsageError(
            f"--budget is a share of the wall time, above 0 and at most 1, or none; found {budget}"
        )
    return share


def _check_free(folder: Path, name: str) -> None:
    """Before the script starts, and not when it trains at last."""
    if (folder / "run.db").exists():
        from gradiometer.store.reader import load

        with load(folder) as kept:
            if (newest := kept.newest_step) is not None:
                raise RunExists(
                    f"{name} holds steps already, up to step {newest}:"
                    " choose another folder with --run"
                )
    elif folder.exists() and not folder.is_dir():
        raise UsageError(f"--run {name} is a file, and a run is a folder: choose another name")
    above = next(place for place in (folder, *folder.parents) if place.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise UsageError(
            f"--run {name} cannot be made: {above} cannot be written; choose another folder"
        )
