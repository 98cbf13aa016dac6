"""What the running program calls its tensors: read off the frames that led to a call, never kept.

Local variables, attributes of objects among them, and entries of dicts, lists and tuples. Frames of
torch and of this package are walked through; those of other libraries count, for a trainer's loss
is a local variable of the library's.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, FunctionType, ModuleType
from typing import Any, Literal, TypeAlias

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

__all__ = ["NamedBy", "NamedTensor", "Names", "names_around"]

NamedBy: TypeAlias = Literal["variable", "attribute", "entry", "list"]

MOST_FRAMES = 40
MOST_VALUES = 20_000
"""Values that are looked at in all; a replay buffer in a list is not walked to its end."""
LONGEST = 4_096
"""A longer list or dict is data, not losses."""
SHORT, GLANCES = 64, 16
"""A list up to here is read whole; of a longer one so many places tell whether it holds tensors at
all. A script's history of losses and returns is in every one of its frames."""
THROUGH = ("torch", "gradiometer", "contextlib", "functools", "importlib", "runpy", "threading")
"""Packages whose own variables say nothing of a loss."""
MODULE = ("_parameters", "_buffers", "_modules")
"""What every module has."""
PLAIN = (str, bytes, int, float, complex, bool, type(None), type, FunctionType, ModuleType, range)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTensor:
    """One tensor under one of its names."""

    name: str
    by: NamedBy
    tensor: Tensor
    distance: int
    """Frames between the call and the one that holds it."""
    container: str | None = None
    """The name of the list it is an item of, and how many it has."""
    siblings: int = 1


@dataclass(slots=True)
class Names:
    """The names by place in the graph, and what else the frames hold."""

    by_place: dict[tuple[Any, int], list[NamedTensor]] = field(default_factory=dict)
    tensors: list[NamedTensor] = field(default_factory=list)
    """All of them, with and without a gradient."""
    numbers: list[float] = field(default_factory=list)
    """Numbers that variables hold and that stand in the code: coefficients, perhaps."""
    scalers: list[GradScaler] = field(default_factory=list)

    def of(self, node: Any, number: int) -> list[NamedTensor]:
        """Those of a place in the graph."""
        return self.by_place.get((node, number), [])


def names_around(frame: FrameType | None) -> Names:
    """Read the frames from this one outwards. No frame, and no snapshot of one, is kept."""
    names, seen, distance = Names(), _Seen(), 0
    while frame is not None and distance < MOST_FRAMES and seen.left > 0:
        if not _is_plumbing(frame):
            _read(frame, distance, names, seen)
            distance += 1
        frame = frame.f_back
    return names


@dataclass(slots=True)
class _Seen:
    objects: set[int] = field(default_factory=set)
    left: int = MOST_VALUES


def _is_plumbing(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__")
    return isinstance(module, str) and module.partition(".")[0] in THROUGH


def _read(frame: FrameType, distance: int, names: Names, seen: _Seen) -> None:
    held: dict[str, Any] = frame.f_locals
    try:
        names.numbers += [x for x in frame.f_code.co_consts if type(x) is float]
        for name, value in list(held.items()):
            if not name.startswith("__"):
                _take(name, value, distance, names, seen)
    finally:
        _release(frame, held)


def _release(frame: FrameType, held: dict[str, Any]) -> None:
    """Before Python 3.13 a frame keeps the snapshot of its locals, and all tensors in it.

    It is emptied, unless somebody else holds it (the program called `locals()`) or a debugger is
    about to write it back.
    """
    is_snapshot = frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(held) is dict
    holders = 4  # the frame, `_read`, this function, the count itself
    if is_snapshot and sys.gettrace() is None and sys.getrefcount(held) <= holders:
        held.clear()


def _take(name: str, value: Any, distance: int, names: Names, seen: _Seen) -> None:
    """A local variable: a tensor, a container of some, or an object with some."""
    if isinstance(value, PLAIN):
        if type(value) is float:
            names.numbers.append(value)
        return
    for found in _named_in(name, value, seen):
        seen.left -= 1
        if isinstance(found.value, Tensor):
            _note(found, distance, names)
        elif isinstance(found.value, GradScaler):
            names.scalers.append(found.value)
        elif type(found.value) is float:
            names.numbers.append(found.value)


def _note(found: _Found, distance: int, names: Names) -> None:
    tensor = found.value
    named = NamedTensor(
        name=found.name.replace("/", "-").replace("~", "-"),
        by=found.by,
        tensor=tensor,
        distance=distance,
        container=found.container,
        siblings=found.siblings,
    )
    names.tensors.append(named)
    if tensor.grad_fn is not None:
        names.by_place.setdefault((tensor.grad_fn, tensor.output_nr), []).append(named)


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    value: Any
    by: NamedBy
    container: str | None = None
    siblings: int = 1


def _named_in(name: str, value: Any, seen: _Seen) -> Iterator[_Found]:
    if isinstance(value, (Tensor, GradScaler)):
        if not isinstance(value, nn.Parameter):
            yield _Found(name, value, "variable")
        return
    if id(value) in seen.objects or seen.left <= 0 or _is_ours(type(value)):
        return
    seen.objects.add(id(value))
    if isinstance(value, (list, tuple, dict)):
        yield from _entries(name, value)
        return
    for attribute, held in _attributes(value):
        if isinstance(held, (Tensor, GradScaler, float)):
            if not isinstance(held, nn.Parameter):
                yield _Found(attribute, held, "attribute")
        elif isinstance(held, (list, tuple, dict)):
            yield from _entries(attribute, held)


def _is_ours(kind: type) -> bool:
    """A meter, whose variables say nothing of a loss."""
    module = kind.__module__
    return isinstance(module, str) and module.startswith("gradiometer.")


def _entries(name: str, value: Any) -> Iterator[_Found]:
    """Tensors in a container, and one level further down in dicts of dicts and named tuples."""
    if not 0 < len(value) <= LONGEST:
        return
    if isinstance(value, dict):
        for key, held in list(dict.items(value)):
            if isinstance(held, (Tensor, float)):
                yield _Found(str(key), held, "entry")
            elif isinstance(held, (list, tuple)) and len(held) <= LONGEST:
                yield from _items(str(key), held)
        return
    fields = getattr(value, "_fields", None)
    if isinstance(value, tuple) and isinstance(fields, tuple) and len(fields) == len(value):
        for key, held in zip(fields, value, strict=True):
            if isinstance(held, (Tensor, float)):
                yield _Found(str(key), held, "entry")
        return
    yield from _items(name, value)


def _may_hold_tensors(values: Sequence[Any]) -> bool:
    """Whether a look here and there finds one; short lists are read anyhow."""
    if len(values) <= SHORT:
        return True
    places = range(0, len(values), -(-len(values) // GLANCES))
    return any(isinstance(values[at], Tensor) for at in (*places, -1))


def _items(name: str, value: Sequence[Any]) -> Iterator[_Found]:
    if not _may_hold_tensors(value):
        return
    tensors = [(at, held) for at, held in enumerate(value) if isinstance(held, Tensor)]
    for at, held in tensors:
        yield _Found(f"{name}-{at}", held, "list", container=name, siblings=len(tensors))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds itself: no property is called."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return
    if not isinstance(held, Mapping) or len(held) > LONGEST:
        return
    for name, inner in list(held.items()):
        if isinstance(name, str) and name not in MODULE and not name.startswith("__"):
            yield name.lstrip("_"), inner
