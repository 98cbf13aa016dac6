"""The records that pass between rooms: frozen, typed, and free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

__all__ = ["Event", "Evidence", "Finding", "Row", "Summary", "Table", "Vector"]

Severity = Literal["info", "warn", "critical"]
Basis = Literal["proved", "statistical", "heuristic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Everything measured at one step: values by series name, and where in the training the step lies."""

    step: int
    wall_time: float
    """Seconds since the epoch."""
    values: Mapping[str, float]
    env_steps: int | None = None
    rollout: int | None = None
    epoch: int | None = None
    """The pass over the rollout: PPO's epoch 0 is not its epoch 9."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at a step: a NaN, a resume, a dropped batch."""

    step: int
    kind: str
    message: str
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A small JSON document that belongs to a step: the state of each layer, a cosine matrix."""

    step: int
    name: str
    content: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """An array that belongs to a step: a sketch, a histogram."""

    step: int
    name: str
    values: np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One series of a run in a line. `count` and `last` include NaNs; mean, min and max leave them out."""

    name: str
    count: int
    nan_count: int
    last_step: int
    last: float
    mean: float
    min: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One fact a finding rests on: a series, where to look, and what it reads."""

    series: str
    reading: str
    first_step: int | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong, why we think so, what to change, and how to make sure."""

    id: str
    title: str
    severity: Severity
    basis: Basis
    since_step: int | None = None
    block: str | None = None
    evidence: tuple[Evidence, ...] = ()
    cause: str = ""
    fix: tuple[str, ...] = ()
    confirm: str = ""
    suppressed: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
