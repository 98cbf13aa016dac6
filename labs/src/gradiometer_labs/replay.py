"""What happened, kept to learn from: a ring of the newest transitions."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

__all__ = ["Replay"]

Columns = TypeVar("Columns", bound=Any)
"""A dataclass of tensors whose first dimension counts rows."""


class Replay(Generic[Columns]):
    """The latest `capacity` rows of the columns of a dataclass."""

    def __init__(self, capacity: int, columns: type[Columns]) -> None:
        self.capacity = capacity
        self._class = columns
        self._columns: list[Tensor] = []
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, self.capacity)

    def add(self, rows: Columns) -> None:
        """Rows [n, ...]; the oldest make room."""
        columns: list[Tensor] = [getattr(rows, field.name) for field in fields(rows)]
        if not self._columns:
            self._columns = [each.new_empty(self.capacity, *each.shape[1:]) for each in columns]
        last = self._added + len(columns[0])
        places = torch.arange(self._added, last, device=columns[0].device) % self.capacity
        for kept, new in zip(self._columns, columns, strict=True):
            kept[places] = new
        self._added = last

    def add_row(self, row: Columns) -> None:
        """One row, [...]."""
        self.add(self._class(*(getattr(row, field.name).unsqueeze(0) for field in fields(row))))

    def at(self, *index: Tensor) -> Columns:
        """The rows at these places; a second index chooses inside a row."""
        rows: Columns = self._class(*(each[index] for each in self._columns))
        return rows

    def newest(self, number: int) -> Columns:
        """The last rows in their order, at most that many."""
        first = max(self._added - self.capacity, self._added - number, 0)
        return self.at(torch.arange(first, self._added) % self.capacity)

    def spread(self, number: int) -> Columns:
        """Rows at even distances over all that is kept, at most that many."""
        return self.at(torch.arange(0, len(self), -(-len(self) // number)))
