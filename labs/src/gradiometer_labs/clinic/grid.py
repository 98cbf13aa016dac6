"""The grid of trainings: faults in their doses, two at once, and controls; which are held out."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from gradiometer.errors import UnknownName
from gradiometer_labs import LABS, faults
from gradiometer_labs.lab import KINDS, ClinicSetup

__all__ = ["CONTROLS", "SETUPS", "ClinicTraining", "grid", "quick_grid", "setup_of", "split"]

CONTROLS = 4
"""Trainings of each setup and kind: few false alarms in few runs show nothing."""
DOSE_SEEDS = 1
"""Of a mild or severe dose: the headline counts usual ones, and the faults with doses are many."""
FIRST_SEED = 101
"""Far from the seeds anybody tries by hand, which the rules were looked at with."""
SETUPS: dict[str, ClinicSetup] = {
    setup.name: setup for lab in LABS.values() for setup in lab.clinic_setups
}
"""By name, those of every lab's `about.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClinicTraining:
    """One training of the grid: in which setup, what is broken, and which seed."""

    setup: str
    fault: str
    """As fault= takes it; none for a control."""
    kind: str = "fast"
    """Of the training: fast, slow, noisy, converged, or brief."""
    seed: int

    @property
    def clinic_setup(self) -> ClinicSetup:
        """Its lab's short form."""
        return SETUPS[self.setup]

    @property
    def name(self) -> str:
        """Unique, and fit for a folder."""
        what = (
            self.kind
            if self.healthy
            else self.fault.replace(":", ".") + (".brief" if self.kind == "brief" else "")
        )
        return f"{self.setup}/{what}-{self.seed}"

    @property
    def healthy(self) -> bool:
        """Whether nothing is broken."""
        return self.fault == "none"

    @property
    def faults(self) -> list[tuple[faults.Fault, str]]:
        """What is broken, with the dose of each."""
        return faults.chosen(self.fault, self.clinic_setup.lab)

    @property
    def expected(self) -> list[tuple[str, ...]]:
        """Of each fault the ids that name it."""
        return [found.expected for found, _ in self.faults]

    @property
    def cluster(self) -> str:
        """Trainings of one cluster are one case: a fault is one line in any lab, dose and seed."""
        return "+".join(found.name for found, _ in self.faults) or f"{self.setup}/{self.kind}"

    @property
    def catalogue(self) -> str:
        """The numbers of its faults in the failure catalogue."""
        return "+".join(found.catalogue for found, _ in self.faults)

    @property
    def summary(self) -> str:
        """What its lines say now, and what follows."""
        return " ".join(found.summary for found, _ in self.faults)

    @property
    def dose(self) -> str | None:
        """Of a single fault that has doses."""
        found = self.faults
        return found[0][1] if len(found) == 1 and found[0][0].doses else None

    @property
    def usual(self) -> bool:
        """A single fault in its usual dose: what the headline counts."""
        return len(self.faults) == 1 and self.dose in (None, "usual")

    @property
    def held_out(self) -> bool:
        """Whether no threshold may be chosen on it."""
        parts = split()
        doses = [dose for found, dose in self.faults if found.doses]
        return (
            self.clinic_setup.lab in parts["labs"]
            or any(found.name in parts["faults"] for found, _ in self.faults)
            or any(dose in parts["doses"] for dose in doses)
        )

    @property
    def overrides(self) -> list[str]:
        """What its lab is told, without run= and start=."""
        needs = [need for found, _ in self.faults for need in found.needs]
        return [
            *self.clinic_setup.overrides,
            *self.clinic_setup.kinds[self.kind],
            *needs,
            f"fault={self.fault}",
            f"seed={self.seed}",
        ]


@cache
def split() -> dict[str, Any]:
    """What no threshold may be chosen on, and what some were."""
    return tomllib.loads(files(__package__).joinpath("split.toml").read_text(encoding="utf-8"))


def grid(
    *, labs: Sequence[str] = (), only: Sequence[str] = (), seeds: int = 3, controls: int = CONTROLS
) -> list[ClinicTraining]:
    """All, or those of some labs or faults: faults × doses × seeds, pairs of faults, controls.

    With `only` there are no controls, unless `none` is among them.
    """
    _check(labs, only)
    found: list[ClinicTraining] = []
    for lab in LABS:
        if not labs or lab in labs:
            found += [*_broken(lab, seeds), *_twice_broken(lab, seeds), *_controls(lab, controls)]
    if only:
        found = [
            each
            for each in found
            if set(only) & ({"none"} if each.healthy else {f.name for f, _ in each.faults})
        ]
    return found


def quick_grid() -> list[ClinicTraining]:
    """A few of each kind, for a few minutes."""
    found = ((setup.name, fault) for setup in SETUPS.values() for fault in setup.quick)
    return [
        ClinicTraining(setup=setup, fault=fault, kind="brief", seed=FIRST_SEED)
        for setup, fault in found
    ]


def setup_of(fault: faults.Fault) -> ClinicSetup:
    """The setup of the fault's lab that has most of the settings it needs; else the first."""
    own = [setup for setup in SETUPS.values() if setup.lab == fault.lab]
    # Of equals, max takes the first.
    return max(own, key=lambda setup: len(set(fault.needs) & set(setup.overrides)))


def _broken(lab: str, seeds: int) -> Iterable[ClinicTraining]:
    for each in faults.faults_of(lab):
        yield from _seeded(setup_of(each).name, each.name, "fast", seeds)
        for dose in sorted(each.doses.keys() - {"usual"}):
            yield from _seeded(setup_of(each).name, f"{each.name}:{dose}", "fast", DOSE_SEEDS)


def _twice_broken(lab: str, seeds: int) -> Iterable[ClinicTraining]:
    for setup in LABS[lab].clinic_setups:
        for text in setup.doubles:
            yield from _seeded(setup.name, text, "fast", seeds)


def _controls(lab: str, count: int) -> Iterable[ClinicTraining]:
    for setup in LABS[lab].clinic_setups:
        for kind in KINDS:
            yield from _seeded(setup.name, "none", kind, count)


def _seeded(setup: str, fault: str, kind: str, seeds: int) -> Iterable[ClinicTraining]:
    return (
        ClinicTraining(setup=setup, fault=fault, kind=kind, seed=FIRST_SEED + k)
        for k in range(seeds)
    )


def _check(labs: Sequence[str], only: Sequence[str]) -> None:
    for lab in labs:
        if lab not in LABS:
            raise UnknownName("lab of the clinic", lab, LABS, hint=f"There is: {', '.join(LABS)}.")
    known = dict.fromkeys(
        ["none", *(each.name for each in faults.all_faults() if not labs or each.lab in labs)]
    )
    for name in only:
        if name not in known:
            raise UnknownName(
                "fault",
                name,
                known,
                hint="`gradiometer labs` lists them; none stands for the controls.",
            )
