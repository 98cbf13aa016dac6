"""Discount and trace decay by the names that a program gives them, read once off the variables
around its first measured loss: of its functions, of what they hold (`args`, `self`), and globals.

They are no measurement: a variable may be set and not used. That is what they are read for: whether
the update has the decay that the program names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gradiometer.capture.rounds import Recorder

__all__ = ["note_settings", "seen_settings"]

TABLE = "settings-seen"
NAMES: Mapping[str, str] = {
    **dict.fromkeys(("gamma", "discount", "discount_factor"), "gamma"),
    **dict.fromkeys(("gae_lambda", "lam", "lmbda"), "gae_lambda"),
}
"""What variables are called, and what it is; `lambd` is a discount in some programs."""


def seen_settings(spaces: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """By what it is; what has two values around is left out."""
    found: dict[str, set[float]] = {}
    for space in spaces:
        for name, value in space.items():
            kind = NAMES.get(name.lower())
            if kind is not None and type(value) in (int, float) and 0.0 <= value <= 1.0:
                found.setdefault(kind, set()).add(float(value))
    return {kind: values.pop() for kind, values in found.items() if len(values) == 1}


def note_settings(spaces: Iterable[Mapping[str, Any]], recorder: Recorder) -> None:
    """Write them down, where there are any."""
    if found := seen_settings(spaces):
        recorder.record({}, tables={TABLE: found})
