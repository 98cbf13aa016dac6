"""`gradiometer wiring`: a loss as a tree, from the loss to its terms to the blocks they train."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from rich.text import Text
from rich.tree import Tree

from gradiometer.charts.drawing import as_svg_file
from gradiometer.charts.wiring import read_diagram
from gradiometer.charts.wiringsheets import draw_wiring
from gradiometer.cli.commands import WiringRequest
from gradiometer.cli.printing import console, print_json, warnings_in_a_line
from gradiometer.cli.run import free_folder
from gradiometer.errors import MissingExtra, UsageError
from gradiometer.integrations.script.running import Program, RunOptions
from gradiometer.integrations.script.watched import WatchedScript
from gradiometer.store.importers import Log, open_log
from gradiometer.store.reader import Run
from gradiometer.store.wiring import LossTerm, Wiring, read_wiring
from gradiometer.words import counted, fmt

__all__ = ["wiring"]

DEAD = "no gradient: its coefficient changes nothing"
OFF = "multiplied by zero"


STEPS = 5
"""Those that always split their loss: an actor that is trained every second time is among them."""


def wiring(request: WiringRequest) -> None:
    """Print the tree, or one JSON object."""
    if request.module or request.run.endswith(".py"):
        _of_script(request)
        return
    meant_for_scripts = {"--steps": request.steps, "--out": request.out, "": request.arguments}
    for option, given in meant_for_scripts.items():
        if given:
            what = option or f"the argument {request.arguments[0]}"
            raise UsageError(f"{what} is for a script, and {request.run} is a run: leave it out")
    _show(request.run, request)


def _show(path: str, request: WiringRequest, name: str = "") -> None:
    with warnings_in_a_line(), open_log(path) as run:
        found = read_wiring(run, request.step)
        if request.svg:
            _write_svg(run, request)
        if request.json:
            of = {"script": name} if name else {"run": str(run.path)}
            print_json({**of, **dataclasses.asdict(found)})
        else:
            console().print(_tree(name or run.name, found))


def _of_script(request: WiringRequest) -> None:
    """Run it for a few steps, what it prints goes to stderr, and show what its loss was."""
    if request.step is not None:
        raise UsageError(f"--step is for a run: {request.run} is stopped after --steps {STEPS}")
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("torch", "torch", "gradiometer wiring SCRIPT")
    program = Program(
        target=request.run, is_module=request.module, arguments=tuple(request.arguments)
    )
    with tempfile.TemporaryDirectory(prefix="gradiometer-") as scratch:
        name = request.out or str(Path(scratch) / program.name)
        options = RunOptions(
            folder=free_folder(name, option="--out"),
            budget=None,
            doctor=False,
            steps=request.steps or STEPS,
            quiet=True,
        )
        _show(str(_recorded(program, options)), request, name=program.name)


def _recorded(program: Program, options: RunOptions) -> Path:
    """The run of its first steps."""
    disabled = os.environ.pop("GRADIOMETER_DISABLED", None)
    watched = WatchedScript(options, listen=False)
    try:
        with redirect_stdout(sys.stderr):
            end = watched.run(program, told=lambda _: None)
    finally:
        if disabled is not None:
            os.environ["GRADIOMETER_DISABLED"] = disabled
    watcher = watched.watcher
    kept = [] if watcher is None else watcher.runs.kept
    if watcher is not None and watcher.own_meter:
        raise UsageError(f"{watcher.own_meter}: run it, and ask for the wiring of that run")
    if end.code:
        steps = f"after {counted(kept[0][1], 'optimizer step')}" if kept else "before any step"
        problem = type(end.error).__name__ if end.error is not None else "failed"
        raise UsageError(f"{program.target} left with code {end.code} {steps}: {problem}")
    if not kept:
        why = "it did not import torch" if watcher is None else "no optimizer stepped"
        raise UsageError(
            f"{program.target} ended without a step in this process ({why}): give arguments that"
            " make it train, and start the training itself rather than a launcher (torchrun, ray,"
            " multiprocessing)"
        )
    return kept[0][0]


def _write_svg(run: Run | Log, request: WiringRequest) -> None:
    """The diagram as a file; `read_wiring` has refused what is no run."""
    assert isinstance(run, Run)
    drawing = draw_wiring(read_diagram(run, run.name, request.step))
    text = as_svg_file(drawing, request.theme)
    try:
        Path(request.svg).write_text(text, encoding="utf-8")
    except OSError as problem:
        raise UsageError(f"cannot write --svg {request.svg}: {problem.strerror}") from None


def _tree(name: str, found: Wiring) -> Tree:
    value = "" if found.loss is None else f" {fmt(found.loss)}"
    error = found.additivity_error
    sums = "" if error is None else f"; the terms miss {error:.1g} of the gradient"
    tree = Tree(Text(f"loss{value}  {name}, step {found.step}{sums}"))
    for backward in range(1, found.backwards + 1):
        terms = [term for term in found.terms if term.backward == backward]
        above = tree if found.backwards == 1 or not terms else tree.add(f"backward {backward}")
        for term in terms:
            _add(above, term)
    return tree


def _add(above: Tree, term: LossTerm) -> None:
    branch = above.add(_line(term))
    for block, norm in term.reaches.items():
        size = "not measured" if norm is None else f"|g| {fmt(norm)}"
        branch.add(Text(f"{block}  {size}"))


def _line(term: LossTerm) -> Text:
    times = "" if term.coefficient in (None, 1.0) else f"{fmt(term.coefficient)} × "
    role = f"  ({term.role})" if term.role and term.role != term.name else ""
    value = "" if term.value is None else f"  adds {fmt(term.value)}"
    line = f"{times}{term.name}{role}{value}"
    if not term.alive:
        return Text(f"{line}  {DEAD}", style="bold red")
    if term.wrong:
        return Text(f"{line}  {term.wrong}", style="bold red")
    if term.coefficient == 0.0:
        return Text(f"{line}  {OFF}", style="dim")
    return Text(line)
