"""The faults a lab can train with: each one changes a line of a real training, as someone once did
by mistake.

A lab gathers the lines that may break in a frozen dataclass of pieces, plain functions each, and
calls them from there. A fault takes one healthy piece and returns the broken one, so the training
itself reads as if no fault existed. The faults of a lab are in its `faults.py`, those that several
labs share in `sharedfaults.py`; none imports torch until it is used.

    fault=lr_high           one fault, in its usual dose
    fault=lr_high:mild      a smaller dose
    fault=lr_high+nan_layer two at once, the first applied first
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from gradiometer.errors import UnknownName, UsageError
from gradiometer_labs import LABS

__all__ = [
    "DOSES",
    "FAULTS",
    "Fault",
    "FaultsOf",
    "all_faults",
    "apply",
    "chosen",
    "faults_of",
]

DOSES = ("mild", "usual", "severe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A changed line of one lab, what it should look like to the doctor, and how to change it."""

    name: str
    lab: str
    piece: str
    """The field of the lab's pieces that changes; `config` for a wrong setting."""
    summary: str
    """What the line says now, and what follows."""
    expected: tuple[str, ...]
    """The finding that names this fault, and at most one other that is as good; empty if the doctor
    should stay silent."""
    catalogue: str
    """Its number in the failure catalogue."""
    needs: tuple[str, ...]
    """Overrides without which the lab does not have the line."""
    doses: Mapping[str, float] = field(default_factory=dict)
    """How much of it, where that is a number: mild, usual, severe."""
    breaks: Callable[..., Any]
    """Healthy piece in, broken piece out; takes `dose=` where there are doses."""

    def broken(self, piece: Any, dose: str) -> Any:
        """The piece with this fault."""
        return self.breaks(piece, dose=self.doses[dose]) if self.doses else self.breaks(piece)


FAULTS: dict[tuple[str, str], Fault] = {}
"""By lab and name, those whose modules were loaded; `faults_of` loads them."""

Break = TypeVar("Break", bound=Callable[..., Any])
PiecesT = TypeVar("PiecesT")


@dataclass(frozen=True, slots=True)
class FaultsOf:
    """Registers the faults of a lab, by decorating the function that breaks a line.

    `@fault(piece=..., ...)` where `fault = FaultsOf("pendulum")`; the fault is called like the
    function. `needs` are overrides that all of them need.
    """

    lab: str
    needs: tuple[str, ...] = ()

    def __call__(
        self,
        *,
        piece: str,
        summary: str,
        expected: tuple[str, ...],
        catalogue: str,
        needs: tuple[str, ...] = (),
        doses: tuple[float, float, float] | None = None,
    ) -> Callable[[Break], Break]:
        """Register the decorated function; `doses` are mild, usual and severe."""

        def register(breaks: Break) -> Break:
            name = breaks.__name__
            assert len(expected) <= 2, f"fault {name!r}: one expected finding, and at most one more"
            assert (self.lab, name) not in FAULTS, f"fault {name!r} of {self.lab} comes twice"
            assert name != "none"
            FAULTS[self.lab, name] = Fault(
                name=name,
                lab=self.lab,
                piece=piece,
                summary=summary,
                expected=expected,
                catalogue=catalogue,
                needs=(*self.needs, *needs),
                doses={} if doses is None else dict(zip(DOSES, doses, strict=True)),
                breaks=breaks,
            )
            return breaks

        return register

    def wrong_setting(
        self,
        name: str,
        *,
        doses: tuple[float, float, float],
        times: str | None = None,
        to: str | None = None,
        **words: Any,
    ) -> None:
        """Register a wrong number of the config: a setting `times` the dose, or set `to` it."""
        path = times or to
        assert path is not None
        assert times is None or to is None, f"fault {name!r}: a setting is multiplied or replaced"

        def breaks(config: Any, *, dose: float) -> Any:
            return _changed(config, path.split("."), lambda value: value * dose if times else dose)

        breaks.__name__ = name
        self(piece="config", doses=doses, **words)(breaks)


def _changed(config: Any, path: list[str], change: Callable[[Any], Any]) -> Any:
    """The config with the setting at that dotted path changed."""
    name, *rest = path
    value = getattr(config, name)
    return dataclasses.replace(
        config, **{name: _changed(value, rest, change) if rest else change(value)}
    )


@cache
def _load(lab: str) -> None:
    import_module("gradiometer_labs.sharedfaults")
    module = f"{LABS[lab].module}.faults"
    if find_spec(module) is not None:
        import_module(module)


def faults_of(lab: str) -> list[Fault]:
    """The faults that lab can train with."""
    if lab in LABS:
        _load(lab)
    return [each for each in FAULTS.values() if each.lab == lab]


def all_faults() -> list[Fault]:
    """Of every lab."""
    return [each for lab in LABS for each in faults_of(lab)]


def chosen(text: str, lab: str) -> list[tuple[Fault, str]]:
    """What `fault=` says: faults with their doses, in the order they are applied."""
    return [_one(part.strip(), lab) for part in text.split("+")] if text != "none" else []


def _one(text: str, lab: str) -> tuple[Fault, str]:
    name, _, dose = text.partition(":")
    known = {each.name: each for each in faults_of(lab)}
    if name not in known:
        all_faults()  # loads them
        elsewhere = sorted({each.lab for each in FAULTS.values() if each.name == name})
        has = f"has: {', '.join(known)}" if known else "has no faults yet"
        hint = (
            f"It is a fault of: {', '.join(elsewhere)}." if elsewhere else f"The {lab} lab {has}."
        )
        raise UnknownName("fault", name, ["none", *known], hint=hint)
    found = known[name]
    if dose and not found.doses:
        raise UsageError(
            f"fault={text}: {name} has no doses, it is there or not; write fault={name}"
        )
    if dose and dose not in DOSES:
        raise UnknownName("dose", dose, DOSES, hint=f"There is: {', '.join(DOSES)}.")
    return found, dose or "usual"


def apply(text: str, lab: str, pieces: PiecesT) -> PiecesT:
    """The lab's pieces with the lines changed that `fault=` names; `none` changes nothing."""
    for found, dose in chosen(text, lab):
        broken = found.broken(getattr(pieces, found.piece), dose)
        pieces = dataclasses.replace(pieces, **{found.piece: broken})  # type: ignore[type-var]
    return pieces
