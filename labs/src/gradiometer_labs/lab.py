"""What a lab is, as data: its entry in the list, its setups in the clinic, its settings
for experiments. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gradiometer.errors import MissingExtra

if TYPE_CHECKING:
    from gradiometer_labs.config import LabConfig

__all__ = ["KINDS", "ClinicSetup", "ExperimentSettings", "Lab", "Wording", "kinds"]

KINDS = ("fast", "slow", "noisy", "converged")
"""Of trainings in the clinic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """What the numbers of a training are called on the terminal."""

    result: str = "mean return"
    """Of `Result.mean_return`."""
    live: str = "return"
    """Of `Progress.mean_return`."""
    decimals: int = 1
    """Of the live number."""
    counted: str = "episodes"
    """Of `Result.episodes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSettings:
    """What the experiments need to know of a lab."""

    terms: Mapping[str, str] = field(default_factory=dict)
    """From a loss term to the setting that is its coefficient."""
    batches: int
    """To train on: enough to see a difference, and seconds."""
    searched: int = 0
    """The same for a line search, which takes 20 trainings; 0 where that is no matter of a minute
    or two."""
    brief: tuple[str, ...] = ()
    """Settings that make it quick and leave no files; they do not change the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClinicSetup:
    """A lab in the clinic's form."""

    name: str
    lab: str
    overrides: tuple[str, ...]
    kinds: Mapping[str, tuple[str, ...]]
    """What changes for each kind of training: fast, slow, noisy, converged; and brief, for
    --quick."""
    trained: tuple[str, ...]
    """Overrides of the training whose weights the converged ones start from."""
    base: tuple[str, ...] | None = None
    """Overrides of the training whose weights all start from, where learning from scratch
    takes too long."""
    quick: tuple[str, ...] = ()
    """Faults of --quick: of the wiring, which show at once, in brief trainings; none is a
    control."""
    doubles: tuple[str, ...] = ()
    """Faults two at once, as fault= takes them."""


def kinds(
    *,
    slow: tuple[str, ...],
    noisy: tuple[str, ...],
    converged: tuple[str, ...],
    brief: tuple[str, ...],
) -> dict[str, tuple[str, ...]]:
    """What changes for each kind of training; the fast one is the setup itself."""
    return {"fast": (), "slow": slow, "noisy": noisy, "converged": converged, "brief": brief}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A training as data: what it is, and where to find it."""

    name: str
    """Also of its folder."""
    summary: str
    length_key: str
    """The override that sets how long it trains."""
    return_over: str
    """What the mean return of its `Result` is taken over."""
    wording: Wording = Wording()
    clinic_setups: tuple[ClinicSetup, ...]
    """Its forms in the clinic; the first is for faults that need no other."""
    experiments: ExperimentSettings | None = None
    """For `gradiometer doctor RUN --confirm`; without one its findings are not confirmed by
    experiments."""

    @property
    def module(self) -> str:
        """The folder's dotted path; `.config` and `.train` are below it."""
        return f"gradiometer_labs.{self.name}"

    def config(self) -> type[LabConfig]:
        """The lab's config dataclass; every field has a default."""
        config_class: type[LabConfig] = self._import("config").Config
        return config_class

    def train(self, config: LabConfig, progress: Callable[[Any], None] | None = None) -> Any:
        """Train, call `progress` now and then with the lab's `Progress`, return the lab's
        `Result`."""
        return self._import("train").train(config, progress)

    def _import(self, part: str) -> ModuleType:
        try:
            return import_module(f"{self.module}.{part}")
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in {"", "gradiometer", "gradiometer_labs"}:
                raise
            raise MissingExtra(package, "labs", f"the {self.name} lab") from error
