"""Cells of a file that anybody may have made, as what they are taken for: the one place where their
types are looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from gradiometer.records import Evidence, Finding
from gradiometer.store.strictjson import from_json

__all__ = ["BadCell", "array_of", "fact", "finding_of", "mapping", "parsed", "typed"]

NOTHING = type(None)
KINDS: dict[str, frozenset[type]] = {
    "i": frozenset({int}),
    "n": frozenset({int, NOTHING}),
    "f": frozenset({float, int, NOTHING}),
    "t": frozenset({str}),
    "b": frozenset({bytes}),
}
FACTS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("config", "imported", "versions", "git", "hardware", "journal"), dict),
    **dict.fromkeys(("script", "cwd", "python", "platform", "started"), str),
    "argv": list,
    "seed": int,
    "schema_version": int,
}
"""Facts that are relied on, with their types."""


class BadCell(Exception):
    """A cell that is not what its column holds; says which."""


def typed(kinds: str, rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """The columns of rows: i integer, n that or nothing, f number or nothing, t text, b bytes."""
    if not rows:
        return [()] * len(kinds)
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    for kind, column in zip(kinds, columns, strict=True):
        found = set(map(type, column)) - KINDS[kind]
        if found:
            raise BadCell(f"a cell holds {found.pop().__name__} where it should not")
    return columns


def parsed(text: str) -> Any:
    """What a JSON text says."""
    try:
        return from_json(text)
    except (ValueError, RecursionError) as problem:
        raise BadCell(f"a cell is not JSON ({problem!s:.100})") from problem


def mapping(text: str) -> Mapping[str, Any]:
    """The object that a JSON text says."""
    content = parsed(text)
    if not isinstance(content, dict):
        raise BadCell(f"a cell is a JSON {type(content).__name__} where an object belongs")
    return content


def fact(key: str, value: Any) -> bool:
    """Whether a fact has the type that everybody relies on."""
    return value is None or isinstance(value, FACTS.get(key, object))


def array_of(dtype: str, shape: str, blob: bytes) -> Any:
    """The array that was kept: of numbers, and of the size that is there."""
    sides = parsed(shape)
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as problem:
        raise BadCell(f"a vector has the type {dtype!r:.40}") from problem
    if kind.kind not in "biufc" or kind.shape or not _sides(sides):
        raise BadCell(f"a vector has the type {dtype!r:.40} and the shape {shape!r:.40}")
    if prod(sides) * kind.itemsize != len(blob):
        raise BadCell(f"a vector of shape {shape!r:.40} has {len(blob)} bytes")
    return np.frombuffer(blob, dtype=kind).reshape(sides).copy()


def finding_of(content: Any) -> Finding:
    """A finding from its JSON."""
    try:
        lists = {name: tuple(content[name]) for name in ("fix", "suppressed", "references")}
        evidence = tuple(Evidence(**item) for item in content["evidence"])
        return Finding(**{**content, **lists, "evidence": evidence})
    except (KeyError, TypeError, AttributeError) as problem:
        raise BadCell(f"a finding lacks something ({problem!s:.100})") from problem


def _sides(shape: Any) -> bool:
    return isinstance(shape, list) and all(isinstance(side, int) and side >= 0 for side in shape)
