"""`gradiometer wiring`: a loss as a tree, from the loss to its terms to the blocks they train."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rich.text import Text
from rich.tree import Tree

from gradiometer.charts.drawing import as_svg_file
from gradiometer.charts.wiring import read_diagram
from gradiometer.charts.wiringsheets import draw_wiring
from gradiometer.cli.commands import WiringRequest
from gradiometer.cli.printing import console, print_json, warnings_in_a_line
from gradiometer.errors import UsageError
from gradiometer.store.importers import Log, open_log
from gradiometer.store.reader import Run
from gradiometer.store.wiring import LossTerm, Wiring, read_wiring
from gradiometer.words import fmt

__all__ = ["wiring"]

DEAD = "no gradient: its coefficient changes nothing"
OFF = "multiplied by zero"


def wiring(request: WiringRequest) -> None:
    """Print the tree, or one JSON object."""
    if request.run.endswith(".py"):
        raise UsageError(
            f"{request.run} is a script: record a run of it first, gradiometer run {request.run}"
        )
    with warnings_in_a_line(), open_log(request.run) as run:
        found = read_wiring(run, request.step)
        if request.svg:
            _write_svg(run, request)
        if request.json:
            print_json({"run": str(run.path), **dataclasses.asdict(found)})
        else:
            console().print(_tree(run.name, found))


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
    if term.coefficient == 0.0:
        return Text(f"{line}  {OFF}", style="dim")
    return Text(line)
