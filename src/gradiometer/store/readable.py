"""What a run of ours and a log of somebody else have in common for those who read them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from gradiometer.errors import UnknownName
from gradiometer.records import Table
from gradiometer.store.thinning import Floats, Ints, Thinned, bucket_edges, thin, whole

__all__ = ["Floats", "Ints", "Readable", "unknown_step"]


class Readable(ABC):
    """Something with series and tables by step. `Run` and `Log` have the same public names; a test compares them."""

    path: Path

    @abstractmethod
    def names(self) -> list[str]:
        """Every series, in order."""

    @abstractmethod
    def series(self, name: str) -> tuple[Ints, Floats]:
        """The steps and values of a series."""

    def part(self, name: str, first: int | None = None, last: int | None = None) -> tuple[Ints, Floats]:
        """The points of a series from step `first` to step `last`, both included."""
        steps, values = self.series(name)
        inside = slice(
            0 if first is None else int(np.searchsorted(steps, first)),
            len(steps) if last is None else int(np.searchsorted(steps, last, side="right")),
        )
        return steps[inside], values[inside]

    def thinned(self, name: str, most: int, first: int | None = None, last: int | None = None) -> Thinned:
        """The same in at most `most` points; what is longer comes in buckets with their extremes."""
        steps, values = self.part(name, first, last)
        if len(steps) <= most:
            return whole(steps, values)
        return thin(steps, values, bucket_edges(int(steps[0]), int(steps[-1]), most))

    def latest(self, name: str, steps: Ints) -> Floats:
        """The value of a series at each of the steps, or where it has none there its last before; NaN before its first."""
        own, values = self.series(name)
        places = np.searchsorted(own, steps, side="right") - 1
        return np.where(places >= 0, values[places], np.nan) if len(own) else np.full(len(steps), np.nan)

    def where(self, column: str, steps: Ints) -> Floats:
        """A column of `steps()` (wall_time, env_steps, rollout, epoch) at each of the steps; NaN where nobody said."""
        table = self.steps()
        places = np.clip(np.searchsorted(table["step"], steps), 0, max(len(table["step"]) - 1, 0))
        if not len(table["step"]):
            return np.full(len(steps), np.nan)
        found: Floats = np.where(table["step"][places] == steps, table[column][places], np.nan)
        return found

    @abstractmethod
    def steps(self) -> dict[str, Any]:
        """Where each step lies, as columns: step, wall_time, env_steps, rollout, epoch."""

    @abstractmethod
    def tables(self, name: str) -> list[Table]:
        """A table at every step it was recorded."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held open; twice is fine."""

    @contextmanager
    def still(self) -> Iterator[None]:
        """Within it every call sees the same moment, also of a run that is being written."""
        yield

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"


def unknown_step(kind: str, name: str, step: int, known: Iterable[int]) -> UnknownName:
    """That a table or vector is not there at a step, with the steps nearest to it."""
    near = sorted(known, key=lambda number: abs(number - step))[:3]
    return UnknownName(f"step of {kind} {name!r}", str(step), (), hint=f"(nearest: {', '.join(map(str, near))})")
