"""The step axis: rounds, which parameters each is about, and which are measured. A round is one
step of every optimizer; it opens with the first backward, clip, term or step.

With one optimizer a round is a step. With several, a round ends when each has stepped, or when one
of them steps again (a critic trained twice as often as its actor has rounds in which only the
critic moves). Where one loss trains optimizers of different cadences, the next round begins with
the backward, as soon as it has been seen whose turn such a backward is.
"""

from __future__ import annotations

import math
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradiometer.capture.blocks import Model, find_blocks, modules_of, named_parameters
from gradiometer.capture.experts import ExpertLayer
from gradiometer.capture.hooks import ClipCall
from gradiometer.capture.roles import Role, copies_among, roles_by_names
from gradiometer.capture.scalars import Where
from gradiometer.capture.settings import Settings
from gradiometer.capture.statistics import RAW, Fetched, Reading
from gradiometer.words import counted, fmt

__all__ = [
    "SHARDED",
    "USUAL",
    "Cadence",
    "Coverage",
    "LocalParts",
    "MeasuredStep",
    "Recorder",
    "Round",
    "SeenClip",
    "SeenExperts",
    "SeenPart",
    "SeenTerms",
    "Turns",
    "WatchedModel",
    "guaranteed_after",
    "micro_batch",
]

SHARDED = "sharded/"
"""How the names of sharded experts' numbers begin: every rank has a part of them."""
CLIP_EPSILON = 1e-6  # torch divides by total_norm + 1e-6; the factor is the one it used


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenClip:
    """A clip call on watched parameters; its norm waits in the reading under `name`."""

    name: str
    call: ClipCall
    indices: tuple[int, ...]

    def factor(self, fetched: Fetched) -> float:
        """The factor of the call: min(1, t/(r + 1e-6)); NaN when the norm was."""
        factor = self.call.threshold / (fetched.scalars[self.name] + CLIP_EPSILON)
        return factor if np.isnan(factor) else min(1.0, factor)

    def factor_of(self, norm: Tensor) -> Tensor:
        """The same, on the device."""
        return (self.call.threshold / (norm + CLIP_EPSILON)).clamp(max=1.0)

    def settle(self, fetched: Fetched) -> None:
        """A norm that lay spread over ranks (kept as −1) is that of its gradients."""
        if fetched.scalars.get(self.name) == -1.0:
            norms = fetched.values[RAW][list(self.indices)]
            fetched.scalars[self.name] = float(np.sqrt(np.square(norms).sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTerms:
    """What `gram/term`, `gram/reward` and `gram/raw` [parameters, n, n] are of."""

    terms: tuple[str, ...]
    """Those with a gradient, in the order of `gram/term`."""
    rewards: tuple[str, ...]
    entered: tuple[str, ...]
    """The terms that the advantages enter; `gram/reward` is of the rewards and then of these."""
    reached: Mapping[str, frozenset[int]]
    """Which parameters `term/<term>` and `reward/<reward>` have a path to; none for a dead one."""
    cosine_error: float | None
    """Standard error of a cosine between sketches; None when the vectors were kept in full."""
    tolerance: float | None = None
    """Of terms found in the graph: how far their sum may be from the gradient that was made."""
    apart: bool = True
    """Whether a NaN of one is no NaN of the others; not so of a sharded model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPart:
    """A part of a loss as its graph has it; its value waits in the reading."""

    name: str
    role: str | None
    coefficient: float | None
    named_by: str
    alive: bool
    """Whether it has a gradient."""
    backward: int
    """Which backward of the step it was first seen in, from 1."""
    reached: frozenset[int] = frozenset()
    """The watched parameters below it, where that is known without its gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenExperts:
    """One layer of experts at one step; its numbers wait in the reading under `name`."""

    name: str
    layer: ExpertLayer
    present: tuple[bool, ...]
    """Which experts have a gradient."""
    rows: int
    """Tokens or samples that the router was seen to route; 0 when it was not seen."""


class Recorder(Protocol):
    """What the observer reports to."""

    def step_measured(self, step: MeasuredStep) -> None: ...
    def boundary(self) -> None: ...
    def rescanned(self) -> None: ...
    def reblocked(self) -> None: ...
    def event(self, kind: str, message: str, step: int | None = None, **detail: Any) -> None: ...
    def record(
        self,
        values: Mapping[str, float],
        *,
        tables: Mapping[str, Any] | None = None,
        step: int | None = None,
    ) -> None: ...
    def warn(self, message: str) -> None: ...


class LocalParts(NamedTuple):
    """A rank's own gradient of one parameter, as its newest backward left it."""

    parts: int = 0
    """Backward passes of the step up to here."""
    averaged: int = 0
    """How many of them the ranks had averaged before the newest one was added."""
    averages: bool = True
    """Whether the ranks average once the newest is there: not inside no_sync()."""

    def then(self, *, averages: bool) -> LocalParts:
        """With one more backward."""
        averaged = self.parts if self.parts and self.averages else self.averaged
        return LocalParts(self.parts + 1, averaged, averages)


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
    num_backwards: int = 0
    """Backwards so far: micro-batches, or losses with a backward each."""
    finite: list[Tensor] = field(default_factory=list)
    """Whether the gradients were finite after each backward; with on_nonfinite="raise"."""
    carried: bool = False
    """Gradients of the round before are in those of an optimizer that did not step in it."""
    unclear_from: int | None = None
    """The backward from which on it was not known whether it is still this round."""
    clipped_after: int = -1
    """After which backward the last clip came."""
    clip_passes: dict[int, list[int]] = field(default_factory=dict)
    """After which backwards a clip came, by the optimizer whose gradients it was of."""
    mark: tuple[int, int, int] | None = None
    """Parameter, address and change counter of one clipped gradient."""
    added: list[Tensor] = field(default_factory=list)
    """Sketches of what each backward added, [atoms, k]: the micro-batches."""
    base: Tensor | None = None
    """The sketch of what the next backward will add to."""
    base_known: bool = True
    """Nobody has changed it since in a way that is not known."""
    parts_known: bool = True
    """It was known before every backward."""
    reaches: list[frozenset[int]] = field(default_factory=list)
    """Which sentinels each backward reached: micro-batches of one loss reach the same."""
    sketched: dict[int, int] = field(default_factory=dict)
    """The change counters the last of those sketches was taken at."""
    scaled: list[tuple[tuple[int, ...], str]] = field(default_factory=list)
    """Parameters read while a fused optimizer still held them scaled, and the name of the scale."""
    local_gradients: dict[int, list[Any]] = field(default_factory=dict)
    """What was read of this rank's own gradients, before they were averaged."""
    local_parts: dict[int, LocalParts] = field(default_factory=dict)
    """What each of those is made of."""
    learning_rates: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """By optimizer, of its parameter groups."""
    terms: SeenTerms | None = None
    """Set when the round ends, if its loss was split."""
    own_terms: Any = None
    """This rank's (termshare.OwnTerms), where several ranks put theirs together."""
    wiring: tuple[SeenPart, ...] = ()
    """Set when the round ends: the parts of its losses, if their graphs were read."""
    experts: list[SeenExperts] = field(default_factory=list)
    """Set when the round ends: the layers of experts that were read in it."""
    credit: Any = None
    """Set when the round ends: what its samples were given (credit.CreditBatch)."""

    def forget(self, reading: Reading | None) -> None:
        """Gradients were made anew within the step: what was read is of the past."""
        self.forget_raw(reading)
        self.base, self.num_backwards = None, 0
        self.base_known = self.parts_known = True
        for held in (self.clip_passes, self.finite, self.added, self.reaches, self.sketched):
            held.clear()
        self.local_gradients.clear()
        self.local_parts.clear()

    def forget_raw(self, reading: Reading | None) -> None:
        """A backward added to gradients that had been read at a clip."""
        self.reading = reading
        for held in (self.captured, self.clips, self.versions, self.clipped, self.remeasure):
            held.clear()

    @property
    def is_sum_of_backwards(self) -> bool:
        """Whether the raw gradients are what the backwards of this round made, and all of it."""
        return not self.carried and all(len(after) == 1 for after in self.clip_passes.values())

    def first_nonfinite(self) -> str:
        """Which backward made the gradients non-finite, in words. A sync, for the way out only."""
        finite: list[bool] = torch.stack(self.finite).tolist() if self.finite else [True]
        if finite[-1]:
            return "set after the last backward"
        first = max((n for n, good in enumerate(finite, 1) if good), default=0) + 1
        return micro_batch(first)

    def note_learning_rates(self, number: int, optimizer: Optimizer) -> None:
        """The rate of each group; on a device (capturable) a look would be a sync."""
        rates = [group.get("lr", math.nan) for group in optimizer.param_groups]
        self.learning_rates[number] = tuple(
            math.nan if isinstance(rate, Tensor) and rate.device.type != "cpu" else float(rate)
            for rate in rates
        )

    def learning_rate(self, owner: tuple[int, int]) -> float:
        """Of a group of an optimizer; NaN where it did not step."""
        number, group = owner
        rates = self.learning_rates.get(number, ())
        return rates[group] if group < len(rates) else math.nan

    def note_scale(self, optimizer: Optimizer, indices: Sequence[int]) -> None:
        """GradScaler leaves unscaling to a fused optimizer: until its step gradients are scaled."""
        assert self.reading is not None
        scale = getattr(optimizer, "grad_scale", None)
        found_inf = getattr(optimizer, "found_inf", None)
        fresh = tuple(i for i in indices if i not in self.captured)
        if isinstance(scale, Tensor) and fresh:
            name = f"grad_scale/{len(self.scaled)}"
            self.reading.add_scalar(name, scale)
            self.scaled.append((fresh, name))
        if isinstance(found_inf, Tensor):
            self.reading.add_scalar(f"found_inf/{len(self.scaled)}", found_inf)


def micro_batch(number: int) -> str:
    """How a message names it."""
    return f"in micro-batch {number}, counted from 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A round that is over, with its numbers on the host."""

    round: Round
    fetched: Fetched | None
    """None when the ranks together have no numbers for it."""
    logged: list[tuple[Where, dict[str, float]]]
    """What the user logged in tensors up to here."""
    first: bool


# Whose turn it is.

USUAL = 3  # times in a row that make a habit
LONGEST_CYCLE = 64  # rounds of a pattern of optimizers that is told apart


@dataclass(slots=True)
class _Turn:
    """A backward that reached optimizers that had stepped in the round and others that had not."""

    stepped: frozenset[int]
    reached: frozenset[int]
    idle: tuple[int, ...]
    since: set[int] = field(default_factory=set)
    """Who stepped after it."""

    @property
    def keys(self) -> list[object]:
        """How it is known again, the closest first."""
        return [(self.stepped, self.reached, self.idle), (self.stepped, self.reached), self.reached]


class Turns:
    """Whether such a backward begins the next round. The backward itself does not tell: the actor's
    loss of SAC runs through a critic that has stepped, and so does one loss of optimizers with
    different cadences. Who steps after it tells, so it is as it was the last time."""

    def __init__(self, num_optimizers: int) -> None:
        self._idle = [0] * num_optimizers
        """Rounds since each has stepped."""
        self._in_a_row = [0] * num_optimizers
        """Rounds up to here in which each has."""
        self._turn: _Turn | None = None
        self._unclear = False
        self._all_at_once = False
        """There were rounds of all, after a backward that was of all."""
        self._seen: dict[object, bool] = {}

    def begins_next(self, stepped: Iterable[int], reached: Iterable[int]) -> bool:
        """Whether a backward, or a clip, that reaches these optimizers is of the next round."""
        self.backward_began()
        turn = _Turn(frozenset(stepped), frozenset(reached), tuple(self._idle))
        if not turn.reached & turn.stepped:
            return False
        if turn.reached <= turn.stepped:
            return True
        if self._turn is None:
            self._turn, self._unclear = turn, True
        return next((self._seen[key] for key in turn.keys if key in self._seen), self._all_at_once)

    def stepped(self, number: int) -> None:
        """This optimizer steps."""
        if self._turn is not None:
            self._turn.since.add(number)

    def backward_began(self) -> None:
        """The last turn is over, if anybody has stepped in it."""
        turn = self._turn
        if turn is not None and turn.since:
            self._seen.update(dict.fromkeys(turn.keys, bool(turn.since & turn.stepped)))
            self._turn = None

    def missing(self, stepped: Iterable[int], reached: Iterable[int]) -> list[int]:
        """Who did not step now, and did in every round before."""
        waiting = set(reached) - set(stepped)
        return sorted(number for number in waiting if self._in_a_row[number] >= USUAL)

    def round_ended(self, stepped: Iterable[int]) -> None:
        """These have stepped in it."""
        if len(self._idle) == 1:  # whose turn it is, is known
            return
        done = set(stepped)
        if len(done) == len(self._idle) and not self._unclear:
            self._all_at_once = True
        self._unclear = False
        self._idle = [
            0 if number in done else min(idle + 1, LONGEST_CYCLE)
            for number, idle in enumerate(self._idle)
        ]
        self._in_a_row = [
            count + 1 if number in done else 0 for number, count in enumerate(self._in_a_row)
        ]


# Which rounds are measured.

GUARANTEED = 100
"""Measured steps that every training has, or all of its steps where these are fewer."""
WISHED = 3
"""Steps that are measured where somebody wishes for them, his first one among them."""
WORTH_SAYING = 0.5
"""Seconds beyond the budget that are told at the end."""
GOLDEN = (math.sqrt(5) - 1) / 2
FORGET = 0.8  # weight of the past in the running cost of a measurement


def guaranteed_after(place: int) -> int:
    """The next step after `place` that is measured whatever the budget says.

    The first 100 are, and then one in each cell of 2^k steps from step 50 · 2^k on: 50 more each
    time the training doubles its length, so that at least 100 are spread over it at any time. The
    place within a cell moves by the golden ratio, as a fixed one would always meet the same part of
    an epoch.
    """
    at = place + 1
    while True:
        stride = 1 << max(0, (2 * at // GUARANTEED).bit_length() - 1)
        cell = at // stride
        chosen = cell * stride + int(cell * GOLDEN % 1 * stride)
        if chosen > place:
            return chosen
        at = (cell + 1) * stride


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of a training was measured, what that took, and why it was not all."""

    measured: int
    steps: int
    every: int
    budget: float | None
    seconds: float
    """Spent measuring."""
    share: float
    """Of the wall time since `watch`."""
    beyond_budget: float
    """Seconds above the budget: what the guaranteed steps took more than it allows."""

    def words(self) -> str:
        """For the last line of a training."""
        reasons = [f"every={self.every}"] if self.every > 1 else []
        reasons += [] if self.budget is None else [f"budget={self.budget:g}"]
        why = f" ({', '.join(reasons)})" if reasons and self.measured < self.steps else ""
        said = f"measured {self.measured} of {counted(self.steps, 'step')}{why}"
        if self.beyond_budget < WORTH_SAYING:
            return said
        over = f"{fmt(self.beyond_budget)} s more than the budget allows"
        return f"{said}; the first {GUARANTEED} are always measured, which took {over}"


class Cadence:
    """Says which steps are due: those that are guaranteed, and beyond them as many as keep the
    share of wall time."""

    def __init__(self, every: int, budget: float | None) -> None:
        self.every, self.budget = every, budget
        self.interval = every
        self.spent = self._total = 0.0
        self._cost = 0.0
        self._next_due = self._last = 0
        self._before = 0
        """Steps of the training before it was resumed: its guaranteed ones need not be dense."""
        self.wishes: Callable[[], bool] = lambda: False
        """Whether this step begins what is worth being measured from its first step on; asked of
        one rank alone, for the environments of several differ."""
        self._wished_until = 0
        self._started = self._made = time.perf_counter()
        self._first_step: int | None = None

    def due(self, step: int) -> bool:
        """Whether this step is measured."""
        if step % self.every:
            return False
        if step < self._wished_until:
            return True
        if self.wishes():
            self._wished_until = step + WISHED
            return True
        return step >= self._next_due

    def measured(self, step: int, seconds: float) -> None:
        """Take in what a measured step cost, and choose the next one."""
        self._total += seconds
        self._last = step
        if self._first_step is None:
            # The first measurement makes tables and warms up; it says nothing about what the next
            # will cost.
            self._first_step, self._started = step, time.perf_counter()
            seconds = 0.0
        self.spent += seconds
        self._cost = seconds if self._cost == 0.0 else FORGET * self._cost + (1 - FORGET) * seconds
        self.interval = self._interval(step)
        self._next_due = step + self.interval

    def follow(self, step: int, interval: int) -> None:
        """Take rank 0's choice: clocks differ, and all must measure the same steps."""
        self.interval, self._next_due = interval, step + interval

    def share(self) -> float:
        """Seconds measuring over seconds gone by, the first measurement's warm-up included."""
        return self._total / max(time.perf_counter() - self._made, 1e-9)

    def coverage(self, *, measured: int, steps: int) -> Coverage:
        """What came of it, at the end."""
        gone = time.perf_counter() - self._made
        allowed = math.inf if self.budget is None else self.budget * gone
        return Coverage(
            measured=measured,
            steps=steps,
            every=self.every,
            budget=self.budget,
            seconds=self._total,
            share=self.share(),
            beyond_budget=max(0.0, self._total - allowed),
        )

    def _interval(self, step: int) -> int:
        place = self._before + step // self.every
        guaranteed = (guaranteed_after(place) - place) * self.every
        return min(guaranteed, self._affordable(step))

    def _affordable(self, step: int) -> int:
        assert self._first_step is not None
        elapsed = time.perf_counter() - self._started
        if self.budget is None or self.spent + self._cost <= self.budget * elapsed:
            return self.every
        # Training alone takes (elapsed − spent)/steps a step; after n more steps the budget has
        # grown to pay the next one.
        per_step = max((elapsed - self.spent) / (step - self._first_step + 1), 1e-9)
        needed = (self.spent + self._cost) / self.budget - elapsed
        return max(1, math.ceil(needed / per_step / self.every)) * self.every

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training goes on with; the clock starts anew."""
        place = self._before + self._last // self.every
        return {"interval": self.interval, "cost": self._cost, "place": place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the cost and the interval of before."""
        self.interval, self._cost = int(state["interval"]), float(state["cost"])
        self._before = int(state.get("place", 0))


# Whose round it is.


class WatchedModel:
    """The watched parameters, their blocks and their optimizers, as they are now."""

    def __init__(
        self,
        model: Model,
        optimizers: Sequence[Optimizer],
        settings: Settings,
        roles: Mapping[str, Role] | None = None,
    ) -> None:
        named = named_parameters(model)
        self.named = named
        self.names = list(named)
        self.parameters = list(named.values())
        self.copies = copies_among(named, {id(p) for o in optimizers for p in _parameters(o)})
        """Parameters that nobody trains, of twins of trained modules."""
        by_name = roles_by_names(self.names, self.copies)
        self.blocks = find_blocks(named, settings.blocks, {**by_name, **(roles or {})})
        self._data_parallel = [
            module
            for module in modules_of(model).values()
            if isinstance(module, nn.parallel.DistributedDataParallel)
        ]
        self.data_parallel = bool(self._data_parallel)
        self._held = _held_by(optimizers)
        self._shapes = [p.shape for p in self._held]
        index = {id(p): i for i, p in enumerate(self.parameters)}
        held = [{id(p) for p in _parameters(optimizer)} for optimizer in optimizers]
        self._stepping = [sorted(index[key] for key in part if key in index) for part in held]
        counts = Counter(i for part in self._stepping for i in part)
        self.held_twice = sorted(i for i, count in counts.items() if count > 1)
        """Parameters that more than one optimizer steps."""
        self.owner = {i: number for number, part in enumerate(self._stepping) for i in part}
        self.groups = {
            index[id(p)]: (number, place)
            for number, optimizer in enumerate(optimizers)
            for place, group in enumerate(optimizer.param_groups)
            for p in group["params"]
            if id(p) in index
        }
        """The optimizer that steps a parameter, and which of its groups holds it."""
        # A parameter in no optimizer is read with the first one: its gradient exists, and nobody
        # uses it.
        orphans = set(range(len(self.names))) - self.owner.keys()
        self.owned = [sorted({*self._stepping[0], *orphans}), *self._stepping[1:]]
        self.owned_sets = [frozenset(part) for part in self.owned]
        self.trained = frozenset(self.owner)
        self.sentinels = self._sentinels()

    def still_holds(self, optimizers: Sequence[Optimizer]) -> bool:
        """Whether the optimizers hold the very parameters they held."""
        now = _held_by(optimizers)
        return (
            len(now) == len(self._held)
            and all(map(operator.is_, now, self._held))
            and [p.shape for p in now] == self._shapes
        )

    def averages(self) -> bool:
        """Whether DistributedDataParallel averages the backward in progress: not in no_sync()."""
        return all(module.require_backward_grad_sync for module in self._data_parallel)

    def stepping(self, number: int) -> list[int]:
        """What an optimizer moves: its parameters that are not frozen."""
        return [i for i in self._stepping[number] if self.parameters[i].requires_grad]

    def owners(self, indices: Iterable[int]) -> set[int]:
        """The optimizers that step these parameters."""
        return {self.owner[i] for i in indices if i in self.owner}

    def sentinels_of(self, numbers: Iterable[int]) -> list[int]:
        """Their parameters."""
        return [self.sentinels[number] for number in numbers]

    def _sentinels(self) -> list[int]:
        """A few of each block, whose gradients tell when a backward has ended."""
        chosen: set[int] = set()
        for part in self.blocks.named.values():
            trained = [i for i in part if self.parameters[i].requires_grad]
            if trained:
                chosen.update((trained[0], trained[len(trained) // 2], trained[-1]))
        return sorted(chosen)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _held_by(optimizers: Sequence[Optimizer]) -> list[Tensor]:
    return [p for optimizer in optimizers for p in _parameters(optimizer)]
