"""The faults a lab can train with: each one changes a line of a real training, as someone once did by mistake.

A lab gathers the lines that may break in a frozen dataclass of pieces, plain functions each, and calls them from there.
A fault takes one healthy piece and returns the broken one, so the training itself reads as if no fault existed.
Labs give the same piece the same name, so one fault can serve several. This module is torch-free until a fault is used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gradiometer.errors import UnknownName

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FAULTS", "Fault", "apply", "fault", "faults_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A changed line, what it should look like to the doctor, and how to change it."""

    name: str
    labs: tuple[str, ...]
    piece: str
    """The field of the lab's pieces that changes; `config` for a wrong setting."""
    summary: str
    """What the line says now, and what follows."""
    expected: tuple[str, ...]
    """The finding ids any of which names this fault; empty if the doctor should stay silent."""
    catalogue: str
    """Its number in the failure catalogue."""
    breaks: Callable[[Any], Any]
    """Healthy piece in, broken piece out."""


FAULTS: dict[str, Fault] = {}

Break = TypeVar("Break", bound=Callable[[Any], Any])
PiecesT = TypeVar("PiecesT")


def fault(
    name: str, *, labs: tuple[str, ...], piece: str, summary: str, expected: tuple[str, ...], catalogue: str
) -> Callable[[Break], Break]:
    """Register the decorated function as a fault."""

    def register(breaks: Break) -> Break:
        assert name not in {"none", *FAULTS}, f"fault {name!r} is registered twice"
        FAULTS[name] = Fault(
            name=name, labs=labs, piece=piece, summary=summary, expected=expected, catalogue=catalogue, breaks=breaks
        )
        return breaks

    return register


def faults_of(lab: str) -> list[Fault]:
    """The faults that lab can train with."""
    return [each for each in FAULTS.values() if lab in each.labs]


def apply(name: str, lab: str, pieces: PiecesT) -> PiecesT:
    """The lab's pieces with that fault's line changed; `none` changes nothing."""
    if name == "none":
        return pieces
    known = {each.name: each for each in faults_of(lab)}
    if name not in known:
        elsewhere = FAULTS[name].labs if name in FAULTS else ()
        has = f"has: {', '.join(known)}" if known else "has no faults yet"
        hint = f"It is a fault of: {', '.join(elsewhere)}." if elsewhere else f"The {lab} lab {has}."
        raise UnknownName("fault", name, ["none", *known], hint=hint)
    chosen = known[name]
    broken = chosen.breaks(getattr(pieces, chosen.piece))
    return dataclasses.replace(pieces, **{chosen.piece: broken})  # type: ignore[type-var]


@fault(
    "entropy_no_grad",
    labs=("cartpole", "sokoban"),
    piece="entropy_of",
    summary="the entropy is computed under torch.no_grad(): the loss shows the bonus, no weight ever feels it",
    expected=("dead-term",),
    catalogue="F19",
)
def entropy_no_grad(entropy_of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """As TRL once had it (pull requests 5595 and 5596)."""
    import torch

    def broken(logits: Tensor) -> Tensor:
        with torch.no_grad():
            return entropy_of(logits)

    return broken
