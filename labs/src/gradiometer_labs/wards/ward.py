"""What a ward is, as data: a trainer of other people, the tasks it learns, and what can be broken
in it.

A ward is one file of this folder with `WARD`. It declares its setups (an algorithm on a task, with
the ranges its settings are drawn from, where healthy training learns) and its faults: functions
under `@WARD.fault(...)` that change an argument or a method of the real trainer.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gradiometer.errors import UnknownName

__all__ = [
    "BUDGET",
    "WARDS",
    "Choices",
    "Patient",
    "Ranges",
    "Ward",
    "WardFault",
    "find_ward",
    "replaced",
]

WARDS = ("sb3", "torchrl", "trl", "skrl", "programs")
"""The files of this folder that are wards."""
HEALTHY = "none"
BUDGET = 1e-6
"""Measured are the steps that every training has guaranteed, as a user's script has them; a share
of the time would make a patient another one on another day."""

Breaks = TypeVar("Breaks", bound=Callable[..., Any])
Drawn = Mapping[str, Any]
Choices = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WardFault:
    """A changed argument or method of a trainer, and the findings that name it."""

    name: str
    algorithms: tuple[str, ...]
    accept: tuple[str, ...]
    """Written down before the doctor was run on it, and never changed to fit what it says."""
    summary: str
    breaks: Callable[..., Any]
    """Changes what the ward's `train` is about to make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """An algorithm on a task: what is fixed, and what each patient draws."""

    fixed: Drawn = field(default_factory=dict)
    drawn: Choices = field(default_factory=dict)
    """A list is drawn from; a pair of floats is a range, drawn uniformly in the logarithm."""

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        """One patient's settings."""
        found = {name: _one(rng, choices) for name, choices in self.drawn.items()}
        return {**self.fixed, **found, "seed": int(rng.integers(1, 2**31))}


def _one(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    if isinstance(choices, tuple):
        low, high = np.log(choices)
        return float(f"{np.exp(rng.uniform(low, high)):.3g}")
    return choices[int(rng.integers(len(choices)))]


Train = Callable[["Patient", Path], Sequence[float]]
"""Trains a patient into a folder; the true returns of its episodes, in their order."""


@dataclass(slots=True, kw_only=True)
class Ward:
    """A trainer."""

    name: str
    summary: str
    setups: dict[tuple[str, str], Ranges]
    """By algorithm and task."""
    faults: dict[str, WardFault] = field(default_factory=dict)
    train: Train = field(init=False)

    def trains(self, function: Train) -> Train:
        """Decorates the function that trains."""
        self.train = function
        return function

    def fault(self, *algorithms: str, accept: tuple[str, ...]) -> Callable[[Breaks], Breaks]:
        """Registers the decorated function; its docstring says what follows."""

        def register(breaks: Breaks) -> Breaks:
            name = breaks.__name__
            assert name not in self.faults, f"fault {name!r} of {self.name} comes twice"
            self.faults[name] = WardFault(
                name=name,
                algorithms=algorithms or tuple(dict.fromkeys(a for a, _ in self.setups)),
                accept=accept,
                summary=" ".join((breaks.__doc__ or "").split()),
                breaks=breaks,
            )
            return breaks

        return register

    def patients(self, *, each: int, controls: int) -> Iterator[Patient]:
        """`each` of every fault and algorithm, and `controls` healthy ones of every setup.

        In rounds: of every fault one before any twice, whatever part of the list is trained.
        """
        for index in range(max(each, controls)):
            if index < controls:
                for algorithm, task in self.setups:
                    yield Patient(ward=self.name, algorithm=algorithm, task=task, index=index)
            if index < each:
                most = max((len(fault.algorithms) for fault in self.faults.values()), default=0)
                for turn in range(most):
                    for fault in self.faults.values():
                        if turn < len(fault.algorithms):
                            yield self._broken(fault, turn, index)

    def _broken(self, fault: WardFault, turn: int, index: int) -> Patient:
        """The first algorithm and task are drawn, the others follow in turn."""
        first, at = _stream(self.name, fault.name).integers(2**16, size=2)
        algorithm = fault.algorithms[(int(first) + turn) % len(fault.algorithms)]
        tasks = [task for other, task in self.setups if other == algorithm]
        return Patient(
            ward=self.name,
            algorithm=algorithm,
            task=tasks[(int(at) + index) % len(tasks)],
            fault=fault.name,
            index=index,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """One training of a ward: its settings follow from its name, by a random stream of its own."""

    ward: str
    algorithm: str
    task: str
    fault: str = HEALTHY
    index: int
    kind: str = "fast"

    @property
    def setup(self) -> str:
        """What it is compared with: healthy trainings of this."""
        return f"{self.ward}/{self.algorithm}-{self.task}"

    @property
    def name(self) -> str:
        """Unique, and fit for a folder."""
        return f"{self.setup}/{self.fault}-{self.index}"

    @property
    def healthy(self) -> bool:
        """Whether nothing is broken."""
        return self.fault == HEALTHY

    @property
    def ward_fault(self) -> WardFault | None:
        """What is broken."""
        return None if self.healthy else find_ward(self.ward).faults[self.fault]

    @property
    def expected(self) -> list[tuple[str, ...]]:
        """Of each fault the ids that name it."""
        return [] if self.ward_fault is None else [self.ward_fault.accept]

    @property
    def catalogue(self) -> str:
        """Of a ward's fault its sentence stands for a number of the failure catalogue."""
        return ""

    @property
    def summary(self) -> str:
        """What is changed, and what follows."""
        return "" if self.ward_fault is None else self.ward_fault.summary

    @property
    def cluster(self) -> str:
        """Patients of one cluster are one case: a fault, whatever the algorithm, task and draw."""
        return self.setup if self.healthy else f"{self.ward}/{self.fault}"

    @property
    def settings(self) -> dict[str, Any]:
        """What it drew."""
        rng = _stream(self.ward, self.algorithm, self.task, self.fault, self.index)
        return find_ward(self.ward).setups[self.algorithm, self.task].draw(rng)

    @property
    def overrides(self) -> list[str]:
        """The settings as its record has them."""
        return [f"{name}={value}" for name, value in self.settings.items()]

    @property
    def held_out(self) -> bool:
        """Whether no threshold was chosen on patients of its ward."""
        from gradiometer_labs.clinic.grid import split

        return self.ward not in split()["wards_tuned_on"]

    def train(self, run: Path) -> Sequence[float]:
        """Train it into the folder `run`; the true returns of its episodes."""
        return find_ward(self.ward).train(self, run)


def _stream(*words: str | int) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32("/".join(map(str, words)).encode()))


@cache
def find_ward(name: str) -> Ward:
    """The ward of that name; its trainer is imported."""
    if name not in WARDS:
        raise UnknownName("ward", name, WARDS, hint=f"There is: {', '.join(WARDS)}.")
    found: Ward = import_module(f"gradiometer_labs.wards.{name}").WARD
    return found


def replaced(owner: Any, name: str, changed: Callable[..., Any]) -> None:
    """The method `name` of this object is `changed(own method, *arguments)` from now on."""
    own = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: changed(own, *args, **kwargs))
