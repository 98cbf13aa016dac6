"""Texts that a training made, with what they were paid and how an update weighs them: a bounded
choice, to be read by people."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradiometer.records import Table

__all__ = ["SampleLog"]

TABLE = "samples"
MOST_OF_STEP = 32
"""Samples of one call: the highest and the lowest, then some between them."""
EXTREMES = 12
MOST_CHARACTERS = 2_000
MOST_IN_RUN = 8 * 2**20
"""Characters of a whole run; after that nothing is kept, and an event says so."""


class SampleLog:
    """Chooses, cuts and writes the table `samples`, as long as there is room."""

    def __init__(self, put: Callable[[Table], None], full: Callable[[str], None]) -> None:
        self._put, self._full = put, full
        self._room = MOST_IN_RUN

    def take(
        self,
        step: int,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        rewards: Any = None,
        credit: Any = None,
    ) -> None:
        """Keep some of the samples of a step."""
        if self._room <= 0:
            return
        num = len(completions)
        paid, weighed = _numbers("rewards", rewards, num), _numbers("credit", credit, num)
        if len(prompts) != num:
            raise ValueError(f"{len(prompts)} prompts and {num} completions: give one for each")
        rows: list[dict[str, Any]] = [
            {
                "prompt": _text(prompts[place]),
                "completion": _text(completions[place]),
                "reward": paid[place],
                "credit": weighed[place],
            }
            for place in chosen(weighed if credit is not None else paid)
        ]
        self._room -= sum(len(row["prompt"]) + len(row["completion"]) for row in rows)
        self._put(Table(step=step, name=TABLE, content={"of": num, "rows": rows}))
        if self._room <= 0:
            self._full(f"no more samples are kept: {MOST_IN_RUN:,} characters of them are")


def chosen(values: Sequence[float | None]) -> list[int]:
    """Places of those to keep: all of a few; else the highest, the lowest and some between."""
    if len(values) <= MOST_OF_STEP:
        return list(range(len(values)))
    known = [(0.0 if value is None else value, place) for place, value in enumerate(values)]
    ordered = [place for _, place in sorted(known)]
    ends = [*ordered[:EXTREMES], *ordered[-EXTREMES:]]
    between = ordered[EXTREMES:-EXTREMES]
    room = MOST_OF_STEP - len(ends)
    spread = [between[place * len(between) // room] for place in range(min(room, len(between)))]
    return sorted({*ends, *spread})


def _numbers(what: str, values: Any, num: int) -> list[float | None]:
    """One for each sample; None for what is missing or not finite."""
    if values is None:
        return [None] * num
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    if len(listed) != num:
        raise ValueError(f"{len(listed)} {what} and {num} completions: give one for each")
    numbers = [None if value is None else float(value) for value in listed]
    return [value if value is not None and math.isfinite(value) else None for value in numbers]


def _text(value: Any) -> str:
    """A text, or the messages of a conversation below each other; cut where it is long."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, Sequence) and all(isinstance(each, Mapping) for each in value):
        text = "\n".join(f"{each.get('role', '')}: {each.get('content', '')}" for each in value)
    else:
        text = str(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
