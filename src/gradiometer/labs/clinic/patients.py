"""Who is treated: every fault of every lab, in its doses, two at once, and healthy controls; and which of them are held out."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from gradiometer.errors import UnknownName
from gradiometer.labs import LABS, faults
from gradiometer.labs.clinic.wards import WARDS, ward_of
from gradiometer.labs.lab import KINDS, Ward

__all__ = ["CONTROLS", "Patient", "grid", "quick_grid"]

CONTROLS = 4
"""Trainings of each ward and kind: few false alarms in few runs show nothing."""
DOSE_SEEDS = 1
"""Of a mild or severe dose: the headline counts usual ones, and the faults with doses are many."""
FIRST_SEED = 101
"""Far from the seeds anybody tries by hand, which the rules were looked at with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """One training: where, what is broken, and which seed."""

    ward: str
    fault: str
    """As fault= takes it; none for a control."""
    kind: str = "fast"
    """Of the training: fast, slow, noisy, converged, or brief."""
    seed: int

    @property
    def home(self) -> Ward:
        """Where it is treated."""
        return WARDS[self.ward]

    @property
    def name(self) -> str:
        """Unique, and fit for a folder."""
        what = self.kind if self.healthy else self.fault.replace(":", ".") + (".brief" if self.kind == "brief" else "")
        return f"{self.ward}/{what}-{self.seed}"

    @property
    def healthy(self) -> bool:
        """Whether nothing is broken."""
        return self.fault == "none"

    @property
    def faults(self) -> list[tuple[faults.Fault, str]]:
        """What is broken, with the dose of each."""
        return faults.chosen(self.fault, self.home.lab)

    @property
    def expected(self) -> list[tuple[str, ...]]:
        """Of each fault the ids that name it."""
        return [found.expected for found, _ in self.faults]

    @property
    def cluster(self) -> str:
        """Patients of one cluster are one case: a fault is the same line in whatever lab, dose and seed."""
        return "+".join(found.name for found, _ in self.faults) or f"{self.ward}/{self.kind}"

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
        split = _split()
        doses = [dose for found, dose in self.faults if found.doses]
        return (
            self.home.lab in split["labs"]
            or any(found.name in split["faults"] for found, _ in self.faults)
            or any(dose in split["doses"] for dose in doses)
        )

    @property
    def overrides(self) -> list[str]:
        """What its lab is told, without run= and start=."""
        needs = [need for found, _ in self.faults for need in found.needs]
        return [*self.home.overrides, *self.home.kinds[self.kind], *needs, f"fault={self.fault}", f"seed={self.seed}"]


@cache
def _split() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("split.toml").read_text(encoding="utf-8"))


def grid(
    *, labs: Sequence[str] = (), only: Sequence[str] = (), seeds: int = 3, controls: int = CONTROLS
) -> list[Patient]:
    """Everybody, or those of some labs or faults: faults × doses × seeds, pairs of faults, and controls.

    With `only` there are no controls, unless `none` is among them.
    """
    _check(labs, only)
    found: list[Patient] = []
    for lab in LABS:
        if not labs or lab in labs:
            found += [*_broken(lab, seeds), *_twice_broken(lab, seeds), *_controls(lab, controls)]
    if only:
        found = [each for each in found if set(only) & ({"none"} if each.healthy else {f.name for f, _ in each.faults})]
    return found


def quick_grid() -> list[Patient]:
    """A few of each kind, for a few minutes."""
    found = ((ward.name, fault) for ward in WARDS.values() for fault in ward.quick)
    return [Patient(ward=ward, fault=fault, kind="brief", seed=FIRST_SEED) for ward, fault in found]


def _broken(lab: str, seeds: int) -> Iterable[Patient]:
    for each in faults.faults_of(lab):
        yield from _seeded(ward_of(each).name, each.name, "fast", seeds)
        for dose in sorted(each.doses.keys() - {"usual"}):
            yield from _seeded(ward_of(each).name, f"{each.name}:{dose}", "fast", DOSE_SEEDS)


def _twice_broken(lab: str, seeds: int) -> Iterable[Patient]:
    for ward in LABS[lab].wards:
        for text in ward.doubles:
            yield from _seeded(ward.name, text, "fast", seeds)


def _controls(lab: str, count: int) -> Iterable[Patient]:
    for ward in LABS[lab].wards:
        for kind in KINDS:
            yield from _seeded(ward.name, "none", kind, count)


def _seeded(ward: str, fault: str, kind: str, seeds: int) -> Iterable[Patient]:
    return (Patient(ward=ward, fault=fault, kind=kind, seed=FIRST_SEED + k) for k in range(seeds))


def _check(labs: Sequence[str], only: Sequence[str]) -> None:
    for lab in labs:
        if lab not in LABS:
            raise UnknownName("lab of the clinic", lab, LABS, hint=f"There is: {', '.join(LABS)}.")
    known = dict.fromkeys(["none", *(each.name for each in faults.all_faults() if not labs or each.lab in labs)])
    for name in only:
        if name not in known:
            raise UnknownName("fault", name, known, hint="`gradiometer labs` lists them; none stands for the controls.")
