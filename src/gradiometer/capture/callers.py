"""The user's lines above us: who called backward or step, and what they call a tensor.

Frames are read and never kept. Before Python 3.13 a look at the variables of a function leaves a
copy of them in its frame, with all their tensors: it is emptied again.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import gradiometer

__all__ = ["SourceLine", "line_of_call", "line_of_node", "namespaces"]

INSIDE = tuple(str(Path(package.__file__ or "").parent) for package in (torch, gradiometer))
"""Frames of these are nobody's line."""
MOST_FRAMES = 40
MOST_SPACES = 50
COPIES = sys.version_info < (3, 13)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """A line of somebody's program, and the variable that is made there."""

    file: str
    line: int
    name: str = ""

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"

    def detail(self) -> dict[str, Any]:
        """For an event."""
        named = {"name": self.name} if self.name else {}
        return {"file": self.file, "line": self.line, **named}


def line_of_call() -> SourceLine | None:
    """The nearest line above us that is not torch's or ours."""
    frame = next(_frames(), None)
    return None if frame is None else SourceLine(file=frame.f_code.co_filename, line=frame.f_lineno)


def line_of_node(nodes: Sequence[Any]) -> SourceLine | None:
    """Where the variable is set that holds the first of these nodes that a variable holds."""
    for frame in _frames():
        held = {id(x.grad_fn): name for name, x in _locals(frame).items() if _has_node(x)}
        for node in nodes:
            if name := held.get(id(node)):
                line = _line_of_store(frame, name) or frame.f_lineno
                return SourceLine(file=frame.f_code.co_filename, line=line, name=name)
    return None


def namespaces(*kinds: type) -> list[dict[str, Any]]:
    """The variables of these classes around us: of each calling function, of its globals, and of
    the objects it holds (`self`), each with its names."""
    found: list[dict[str, Any]] = []
    seen: set[int] = set()
    for frame in _frames():
        spaces: list[Any] = [_locals(frame)]
        if id(frame.f_globals) not in seen:
            spaces.append(dict(frame.f_globals))
        spaces += [vars(x) for x in spaces[0].values() if _has_attributes(x) and id(x) not in seen]
        seen |= {id(frame.f_globals), *map(id, spaces[0].values())}
        for space in spaces[:MOST_SPACES]:
            held = {name: x for name, x in list(space.items()) if issubclass(type(x), kinds)}
            if held:
                found.append(held)
    return found


def _has_attributes(thing: Any) -> bool:
    """An object of somebody's class: no module of Python, no class, no function, no network."""
    kind = type(thing)
    plain = not issubclass(kind, ModuleType | FunctionType | type | nn.Module | Tensor)
    return plain and isinstance(getattr(thing, "__dict__", None), dict)


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MOST_FRAMES):
        if frame is None:
            return
        if not frame.f_code.co_filename.startswith((*INSIDE, "<frozen")):
            yield frame
        frame = frame.f_back


def _locals(frame: FrameType) -> dict[str, Any]:
    held = frame.f_locals
    found = dict(held)
    if COPIES and frame.f_code.co_flags & CO_OPTIMIZED:  # else they are the variables themselves
        held.clear()
    return found


def _has_node(thing: Any) -> bool:
    return isinstance(thing, Tensor) and thing.grad_fn is not None


def _line_of_store(frame: FrameType, name: str) -> int | None:
    """The last line before the one in progress that sets the variable."""
    line, found = None, None
    for instruction in dis.get_instructions(frame.f_code):
        line = instruction.starts_line if isinstance(instruction.starts_line, int) else line
        if instruction.opname.startswith("STORE_") and instruction.argval == name:
            found = line if line is not None and line <= frame.f_lineno else found
    return found
