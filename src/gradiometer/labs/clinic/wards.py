"""The short forms of the labs that patients train in: long enough that a healthy training visibly learns, and no longer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradiometer.labs.faults import Fault

__all__ = ["DOUBLES", "KINDS", "QUICK", "WARDS", "Ward", "ward_of"]

KINDS = ("fast", "slow", "noisy", "converged")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ward:
    """A lab in the clinic's form."""

    name: str
    lab: str
    overrides: tuple[str, ...]
    kinds: Mapping[str, tuple[str, ...]]
    """What changes for each kind of control: fast, slow, noisy, converged."""
    trained: tuple[str, ...]
    """Overrides of the training whose weights the converged ones start from."""
    base: tuple[str, ...] | None = None
    """Overrides of the training whose weights everybody starts from, where learning from scratch takes too long."""


WARDS: dict[str, Ward] = {
    ward.name: ward
    for ward in (
        Ward(
            name="cartpole-ppo",
            lab="cartpole",
            overrides=("total_steps=40000", "every=4"),
            kinds={
                "fast": (),
                "slow": ("learning_rate=0.0003",),
                "noisy": ("num_envs=2",),
                "converged": ("total_steps=20000",),
            },
            trained=("total_steps=80000",),
        ),
    )
}

DOUBLES: tuple[tuple[str, str], ...] = ()
"""Patients with two faults, by ward."""

QUICK: tuple[tuple[str, str], ...] = ()
"""The patients of --quick, by ward; none is a control."""


def ward_of(fault: Fault) -> Ward:
    """Where a fault is treated: the ward of its lab whose settings it needs, otherwise the lab's first."""
    own = [ward for ward in WARDS.values() if ward.lab == fault.lab]
    return max(own, key=lambda ward: len(set(fault.needs) & set(ward.overrides)))  # the first of equals
