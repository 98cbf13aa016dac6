"""The step axis. A round is one step of every optimizer; it opens with the first backward, clip, term or step.

With one optimizer a round is a step. With several, a round ends when each has stepped, or when one of them steps again
(a critic trained twice as often as its actor has rounds in which only the critic moves).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from gradiometer.capture.experts import ExpertLayer
from gradiometer.capture.hooks import ClipCall
from gradiometer.capture.reading import Fetched, Reading

__all__ = ["Owner", "Round", "SeenClip", "SeenExperts", "SeenTerms"]

CLIP_EPSILON = 1e-6  # torch divides by total_norm + 1e-6; the factor is the one it used


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenClip:
    """A clip call on watched parameters; its norm waits in the reading under `name`."""

    name: str
    call: ClipCall
    indices: tuple[int, ...]

    def factor(self, fetched: Fetched) -> float:
        """What the call multiplied its gradients by: min(1, t/(r + 1e-6)); NaN when the norm was."""
        norm = fetched.scalars[self.name]
        return float("nan") if np.isnan(norm) else min(1.0, self.call.threshold / (norm + CLIP_EPSILON))

    def settle(self, fetched: Fetched) -> None:
        """Where the norm lay spread over ranks (kept as −1), it is that of the gradients it was of."""
        if fetched.scalars.get(self.name) == -1.0:
            fetched.scalars[self.name] = float(np.sqrt(np.square(fetched.values["raw"][list(self.indices)]).sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTerms:
    """What the products in the reading are of: `gram/term` [parameters, terms, terms], `gram/reward` and `gram/raw`."""

    terms: tuple[str, ...]
    """Those with a gradient, in the order of `gram/term`."""
    rewards: tuple[str, ...]
    entered: tuple[str, ...]
    """The terms that the advantages enter; `gram/reward` is of the rewards and then of these."""
    reached: Mapping[str, frozenset[int]]
    """Which parameters `term/<term>` and `reward/<reward>` have a path to; none for a dead one."""
    cosine_error: float | None
    """Standard error of a cosine between sketches; None when the vectors were kept in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenExperts:
    """One layer of experts at one step; its numbers wait in the reading under `name`."""

    name: str
    layer: ExpertLayer
    present: tuple[bool, ...]
    """Which experts have a gradient."""
    rows: int
    """Tokens or samples that the router was seen to route; 0 when it was not seen."""


class Owner(Protocol):
    """What the rig reports to."""

    def round_ended(self, current: Round) -> None: ...
    def boundary(self) -> None: ...
    def rescanned(self) -> None: ...
    def event(self, kind: str, message: str, step: int | None = None, **detail: Any) -> None: ...
    def warn(self, message: str) -> None: ...


@dataclass(slots=True, kw_only=True)
class Round:
    """What is known of the step in progress."""

    step: int
    number: int
    """Rounds since the start; `step` is what the user calls it."""
    reading: Reading | None
    """None on a step that is not measured."""
    captured: set[int] = field(default_factory=set)
    """Parameters whose raw gradient has been read."""
    clips: list[SeenClip] = field(default_factory=list)
    versions: dict[int, int] = field(default_factory=dict)
    """The change counter of each gradient right after it was clipped by norm."""
    clipped: set[int] = field(default_factory=set)
    remeasure: set[int] = field(default_factory=set)
    """Clipped by value: by no one factor, so the norm the optimizer sees is read again."""
    stepped: set[int] = field(default_factory=set)
    """Optimizers that have stepped."""
    in_step: bool = False
    """Inside `optimizer.step(closure)`, where gradients may be made several times."""
    mark: tuple[int, int, int] | None = None
    """Parameter, address and change counter of one clipped gradient: when they differ, backward ran again."""
    accumulated: list[Tensor] = field(default_factory=list)
    """The sketches of the gradient after each backward, [atoms, k]: their differences are the micro-batches."""
    reaches: list[frozenset[int]] = field(default_factory=list)
    """Which sentinels each backward reached: micro-batches of one loss reach the same."""
    sketched: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The change counters the last of those sketches was taken at."""
    scaled: list[tuple[tuple[int, ...], str]] = field(default_factory=list)
    """Parameters read while a fused optimizer still held them scaled, and the name of the scale."""
    local_norms: dict[int, Tensor] = field(default_factory=dict)
    """Norms of this rank's own gradients, before they were averaged with the other ranks'."""
    learning_rates: dict[int, float] = field(default_factory=dict)
    terms: SeenTerms | None = None
    """Set when the round ends, if its loss was split."""
    own_terms: Any = None
    """This rank's (termshare.OwnTerms), where several ranks put theirs together."""
    experts: list[SeenExperts] = field(default_factory=list)
    """Set when the round ends: the layers of experts that were read in it."""

    def forget(self, reading: Reading | None) -> None:
        """Gradients were made anew within the step (a closure evaluated again): what was read is of the past."""
        self.reading = reading
        for held in (
            self.captured,
            self.clips,
            self.versions,
            self.clipped,
            self.accumulated,
            self.reaches,
            self.sketched,
            self.local_norms,
        ):
            held.clear()

    def note_learning_rate(self, number: int, optimizer: Optimizer) -> None:
        """The rate of the first parameter group; a capturable optimizer keeps it on the device, where a look is a sync."""
        rate = optimizer.param_groups[0].get("lr", float("nan"))
        self.learning_rates[number] = float("nan") if isinstance(rate, Tensor) else float(rate)

    def note_scale(self, optimizer: Optimizer, indices: Sequence[int]) -> None:
        """GradScaler leaves unscaling to a fused optimizer: until its step, gradients are larger by grad_scale."""
        assert self.reading is not None
        scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        fresh = tuple(i for i in indices if i not in self.captured)
        if isinstance(scale, Tensor) and fresh:
            name = f"grad_scale/{len(self.scaled)}"
            self.reading.add_scalar(name, scale)
            self.scaled.append((fresh, name))
        if isinstance(found_inf, Tensor):
            self.reading.add_scalar(f"found_inf/{len(self.scaled)}", found_inf)

    def clip_factors(self, fetched: Fetched, num_parameters: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The product of the clip factors of each parameter, and which parameters were clipped at all."""
        factors, clipped = np.ones(num_parameters), np.zeros(num_parameters, dtype=np.bool_)
        for clip in self.clips:
            at = list(clip.indices)
            clipped[at] = True
            if clip.call.kind == "norm":
                factors[at] *= clip.factor(fetched)
        return factors, clipped

    def clip_values(self, fetched: Fetched, values: dict[str, float], blocks: dict[str, frozenset[int]]) -> list[str]:
        """Threshold, active, ratio and intensity of each clip call: under `all`, or else under the blocks it covered whole."""
        written: list[str] = []
        for number, clip in enumerate(self.clips):
            covered = [name for name, members in blocks.items() if members and members <= set(clip.indices)]
            wanted = ["all"] if "all" in covered else covered
            # A second call over the same block, or one over parts of several, stands under its own number.
            for block in [name for name in wanted if name not in written] or [f"clip.{number}"]:
                self._clip_value(clip, block, fetched, values)
                written.append(block)
        return written

    def _clip_value(self, clip: SeenClip, block: str, fetched: Fetched, values: dict[str, float]) -> None:
        threshold = clip.call.threshold
        if clip.call.kind == "norm":
            size = fetched.scalars[clip.name]
            ratio = min(1.0, threshold / size) if size > 0 else 1.0 if size == 0 else float("nan")
        else:
            size = values.get(f"grad/{block}/max_abs", float("nan"))
            raw, seen = values.get(f"grad/{block}/norm/raw"), values.get(f"grad/{block}/norm/clipped")
            ratio = seen / raw if raw and seen is not None else float("nan")
        values[f"grad/{block}/clip/threshold"] = threshold
        values[f"grad/{block}/clip/active"] = float("nan") if np.isnan(size) else float(size > threshold)
        values[f"grad/{block}/clip/ratio"] = ratio
        values[f"grad/{block}/clip/intensity"] = 1.0 - ratio
