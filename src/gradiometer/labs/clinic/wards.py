"""The short forms of the labs that patients train in, from each lab's `about.py`: long enough that a healthy training visibly
learns, and no longer."""

from __future__ import annotations

from gradiometer.labs import LABS
from gradiometer.labs.faults import Fault
from gradiometer.labs.lab import Ward

__all__ = ["WARDS", "ward_of"]

WARDS: dict[str, Ward] = {ward.name: ward for lab in LABS.values() for ward in lab.wards}


def ward_of(fault: Fault) -> Ward:
    """Where a fault is treated: the ward of its lab whose settings it needs, otherwise the lab's first."""
    own = [ward for ward in WARDS.values() if ward.lab == fault.lab]
    return max(own, key=lambda ward: len(set(fault.needs) & set(ward.overrides)))  # the first of equals
