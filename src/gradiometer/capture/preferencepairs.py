"""Pairs that a preference training (DPO) trains on, each a chosen and a rejected answer.

Two facts need no statistics of the loss. A pair that comes back with both exchanged was labelled
both ways. And where the mask of what counts leaves out every token in which the answers of a pair
differ, there is nothing that the loss could tell them apart by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

__all__ = ["PreferencePairs"]

UNRELIABLE, RECIPE = "reward-unreliable", "recipe-mismatch"
IDS, MASK = "input_ids", "completion_mask"
MOST, LEAST_AGAIN, LEAST = 8192, 24, 32
"""Pairs that are remembered; pairs that came again, and pairs, before it is judged."""
EXCHANGED = 0.2
"""Share of those that came again; a data set that has a pair both ways by mistake has fewer."""


class PreferencePairs:
    """Looks at the batches of a training until it knows."""

    def __init__(self, event: Callable[..., None]) -> None:
        self._event = event
        self._first: dict[tuple[bytes, bytes], bool] = {}
        """By both answers in the order of their tokens: whether the first one was chosen."""
        self._again = self._exchanged = self._pairs = self._alike = 0
        self._told: set[str] = set()

    def look(self, inputs: Mapping[str, Any], filler: int | None) -> None:
        """A batch, the chosen answers first, as the loss has seen it."""
        ids, mask = inputs.get(IDS), inputs.get(MASK)
        if not isinstance(ids, Tensor) or not isinstance(mask, Tensor) or ids.shape != mask.shape:
            return
        if ids.ndim != 2 or len(ids) % 2 or len(self._told) == 2 or len(self._first) >= MOST:
            return
        tokens, counts = ids.cpu().numpy(), mask.cpu().numpy() > 0
        half = len(tokens) // 2
        for n in range(half):
            chosen, rejected = (_bare(tokens[k], filler) for k in (n, n + half))
            if chosen != rejected:
                self._note(chosen, rejected)
                differ = tokens[n] != tokens[n + half]
                self._pairs += 1
                self._alike += not (differ & (counts[n] | counts[n + half])).any()
        self._judge()

    def _note(self, chosen: bytes, rejected: bytes) -> None:
        is_first = chosen < rejected
        key = (chosen, rejected) if is_first else (rejected, chosen)
        before = self._first.setdefault(key, is_first)
        self._again += 1
        self._exchanged += before != is_first

    def _judge(self) -> None:
        again = self._again - len(self._first)
        if again >= LEAST_AGAIN and self._exchanged >= EXCHANGED * again:
            self._tell(
                UNRELIABLE,
                f"of {again} pairs that came again, {self._exchanged} had chosen and rejected"
                " exchanged",
                subject="pairs",
                samples=again,
            )
        if self._pairs >= LEAST and self._alike == self._pairs:
            self._tell(
                RECIPE,
                f"in {self._pairs} pairs the mask of what counts has no token in which the chosen"
                " answer differs from the rejected one",
                subject="pairs",
                recipe="pairs-alike",
                samples=self._pairs,
            )

    def _tell(self, id: str, message: str, **detail: Any) -> None:
        if id not in self._told:
            self._told.add(id)
            self._event(id, message, **detail)


def _bare(row: np.ndarray[Any, Any], filler: int | None) -> bytes:
    """Without what fills it up."""
    return (row if filler is None else row[row != filler]).tobytes()
