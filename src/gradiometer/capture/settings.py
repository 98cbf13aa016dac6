"""What `watch` was told, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from gradiometer.capture.blocks import Selector
from gradiometer.capture.experts import Experts
from gradiometer.errors import UsageError
from gradiometer.maths.sketch import MAX_K
from gradiometer.metrics import Tier

__all__ = ["Direction", "OnNonfinite", "Pairs", "Settings", "TermSource", "Tier"]

LEFT_OUT = ("blocks", "pairs", "experts", "quiet")  # may hold modules, or measure nothing

OnNonfinite = Literal["record", "warn", "raise"]
Direction = Literal["exact", "sketch"]
TermSource = Literal["auto", "manual"]
Pairs: TypeAlias = Mapping[str, tuple[Selector, Selector]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much is measured, how often, and what happens at a NaN."""

    tier: Tier
    every: int
    budget: float | None
    blocks: Mapping[str, Selector] | None
    pairs: Pairs
    direction: Direction
    sketch_size: int
    on_nonfinite: OnNonfinite
    terms: TermSource
    """Whether a loss is split by its graph where `meter.terms` is not called."""
    terms_every: int
    terms_memory: int
    """Bytes for the gradients of the terms in a measured step; beyond, they are sketched."""
    micro_batch_size: int | None
    experts: Experts | bool | None = None
    experts_every: int | None = 10
    """Steps from one look at the experts to the next; None for none but those asked for by hand."""
    system: bool = False
    """Whether processor and memory are part of the run."""
    quiet: bool = False
    """No line at the end."""

    def __post_init__(self) -> None:
        for name in ("every", "terms_every", "sketch_size", "micro_batch_size", "experts_every"):
            number = getattr(self, name)
            if number is not None and (not isinstance(number, int) or number < 1):
                raise UsageError(f"{name} is a whole number of 1 or more; found {number!r}")
        for name, choices in (
            ("tier", Tier),
            ("on_nonfinite", OnNonfinite),
            ("direction", Direction),
            ("terms", TermSource),
        ):
            if getattr(self, name) not in get_args(choices):
                allowed = ", ".join(map(repr, get_args(choices)))
                raise UsageError(f"{name} is one of {allowed}; found {getattr(self, name)!r}")
        if not isinstance(self.terms_memory, int) or self.terms_memory < 0:
            raise UsageError(
                f"terms_memory is a whole number of bytes, 0 or more; found {self.terms_memory!r}"
            )
        if self.sketch_size > MAX_K:
            raise UsageError(f"sketch_size is at most {MAX_K}; found {self.sketch_size}")
        if self.budget is not None and not 0 < self.budget <= 1:
            raise UsageError(
                "budget is the share of wall time to spend, above 0 and at most 1; found"
                f" {self.budget!r}"
            )
        for name, pair in self.pairs.items():
            if "/" in name or len(pair) != 2:
                raise UsageError(
                    f"pair {name!r} needs a name without slashes and two parts, (seed, host); found"
                    f" {pair!r}"
                )

    @property
    def standard(self) -> bool:
        """Whether what the weights did, direction, sparsity and history are measured."""
        return self.tier != "light"

    def plain(self) -> dict[str, Any]:
        """What is kept among the facts of the run: all but what may hold modules."""
        names = [name for name in self.__dataclass_fields__ if name not in LEFT_OUT]
        return {name: getattr(self, name) for name in names}
