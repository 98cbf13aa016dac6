"""`gradiometer run`: a training script, unchanged, with a meter on its optimizers."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gradiometer.cli.commands import RunRequest
from gradiometer.errors import MissingExtra, RunExists, UnknownName, UsageError
from gradiometer.integrations.script.running import Program, RunOptions, execute
from gradiometer.integrations.script.watched import WatchedScript
from gradiometer.metrics import TIERS
from gradiometer.words import counted, say

if TYPE_CHECKING:
    from gradiometer.integrations.script.watching import Watcher

__all__ = ["free_folder", "run"]

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
        folder=free_folder(name, option="--run"),
        every=request.every,
        budget=_share(request.budget),
        tier=tier,
        doctor=request.doctor,
        system=request.system,
    )
    if os.environ.get("GRADIOMETER_DISABLED", "").lower() in ("1", "true", "yes"):
        say("GRADIOMETER_DISABLED is set: the script runs unwatched")
        return execute(program).code
    watched = WatchedScript(options, listen=request.stdout)
    return watched.run(program, told=lambda watcher: _tell(options, watcher)).code


def _tell(options: RunOptions, watcher: Watcher | None) -> None:
    if watcher is None:
        say(f"the script did not import torch: nothing was measured, no run is kept. {NOT_WATCHED}")
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
        name = options.shown(folder)
        verdict = f" {_verdict(folder)}" if options.doctor else ""
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


def free_folder(name: str, *, option: str) -> Path:
    """Where a run can be made, absolute; told before the script starts, not when it trains."""
    folder = Path(os.path.abspath(name))
    if (folder / "run.db").exists():
        from gradiometer.store.reader import load

        with load(folder) as kept:
            if (newest := kept.newest_step) is not None:
                raise RunExists(
                    f"{name} holds steps already, up to step {newest}:"
                    f" choose another folder with {option}"
                )
    elif folder.exists() and not folder.is_dir():
        raise UsageError(f"{option} {name} is a file, and a run is a folder: choose another name")
    above = next(place for place in (folder, *folder.parents) if place.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise UsageError(
            f"{option} {name} cannot be made: {above} cannot be written; choose another folder"
        )
    return folder
