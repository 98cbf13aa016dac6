"""The records that pass between rooms: frozen, typed, and free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

__all__ = [
    "Cosine",
    "Event",
    "Evidence",
    "Finding",
    "Flow",
    "FlowLayer",
    "GradientHealth",
    "Row",
    "State",
    "StateChange",
    "Summary",
    "Table",
    "Vector",
]

Severity = Literal["info", "warn", "critical"]
Basis = Literal["proved", "statistical", "heuristic"]
State = Literal["finite", "nonfinite", "missing", "frozen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Everything measured at one step: values by series name, and where the step lies."""

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
    """One series of a run. `count` and `last` include NaNs; mean, min and max leave them out."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """What the live doctor now says has become of the run: healthy, concern, not-learning, ..."""

    state: str
    before: str | None
    """What it said until then; None the first time."""
    verdict: str
    step: int
    """Up to where it had read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine:
    """A cosine read off two sketches, with its standard error."""

    value: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientHealth:
    """One block at its last measured step, under earlier collectors' names. [Healthy ranges.]"""

    block: str
    step: int | None
    """None before the first measured step."""
    state: State
    """[finite] missing: could have a gradient and has none; frozen: nothing in it is trained."""
    gradient_norm: float | None
    """Raw L2 norm. [within a decade of its own history]"""
    gradient_health: float | None
    """0 to 1; None, never 1, when there is no gradient. [above 0.8]"""
    has_vanishing: bool | None
    """Any tensor below its own band: vanishing_severity above 0, health below 1. [False]"""
    has_exploding: bool | None
    """Any tensor above its own band: exploding_severity above 0, health below 1. [False]"""
    vanishing_severity: float | None
    """Mean over tensors of how far each is below its own band, 0 to 1 over six decades. [0]"""
    exploding_severity: float | None
    """Mean over tensors of how far each is above its own band, 0 to 1 over six decades. [0]"""
    zero_grad_fraction: float | None
    """Share of exact zeros in a sample. [below 0.7 with ReLU, near 0 without; tier standard]"""
    min_layer_norm: float | None
    max_layer_norm: float | None
    norm_ratio: float | None
    """max_layer_norm / max(min_layer_norm, 1e-10). [below 1e3]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLayer:
    """One layer on the way of the gradient."""

    name: str
    state: State
    rms: float | None
    """Norm per element: ‖g‖/√n."""
    feeds: tuple[str, ...] = ()
    """The layers that take its output, and that its gradient comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The gradient from the last layer back to the first, and where it is lost."""

    step: int | None
    layers: tuple[FlowLayer, ...]
    """From the input to the loss."""
    lost_at: str | None
    """The layer nearest to the loss below which nothing worth the name arrives."""
    reason: str
    order: Literal["graph", "registration"] = "registration"
    """How it is known: from the graph of the loss, or (of a compiled or sharded model, of gradients
    set by hand) only as the parameters are registered, which says nothing of branches."""
