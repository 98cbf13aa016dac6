"""The past of each block and tensor, as far back as a judgement needs it; saved and restored with the training."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradiometer.capture.sheet import Numbers

__all__ = ["Ring"]


class Ring:
    """The last rows of a table of numbers, oldest first; what was not measured is NaN."""

    def __init__(self, length: int, width: int) -> None:
        self._rows = np.full((length, width), np.nan)
        self._count = 0

    def __len__(self) -> int:
        return min(self._count, len(self._rows))

    def add(self, row: Numbers) -> None:
        """Take in a row; the oldest one goes."""
        self._rows[self._count % len(self._rows)] = row
        self._count += 1

    def amend(self, key: float, column: int, value: float) -> bool:
        """Fill in a number that came late, in the row whose first number is `key`; says whether there is one."""
        found = self._rows[:, 0] == key
        self._rows[found, column] = value
        return bool(found.any())

    def mean(self) -> float:
        """Over all that is held, in which order does not matter."""
        return float(self._rows[: self._count].mean())

    def rows(self) -> Numbers:
        """What is held, [length, width]."""
        held = len(self._rows)
        return self._rows[: self._count] if self._count <= held else np.roll(self._rows, -(self._count % held), axis=0)

    def state_dict(self) -> dict[str, Any]:
        """As plain lists; NaN and all."""
        return {"rows": self.rows().tolist(), "width": self._rows.shape[1]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the saved one ended; a table of another width is of another model and is left alone."""
        if state["width"] == self._rows.shape[1]:
            self._rows[:], self._count = np.nan, 0
            for row in state["rows"]:
                self.add(np.asarray(row, dtype=np.float64))
