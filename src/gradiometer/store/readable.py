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

__all__ = ["Floats", "Ints", "Readable", "unknown_step"]

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


class Readable(ABC):
    """Something with series and tables by step. `Run` and `Log` have the same public names; a test compares them."""

    path: Path

    @abstractmethod
    def names(self) -> list[str]:
        """Every series, in order."""

    @abstractmethod
    def series(self, name: str) -> tuple[Ints, Floats]:
        """The steps and values of a series."""

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
