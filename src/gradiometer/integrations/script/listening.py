"""Small listeners: to objects as they are made, to backward passes, to clips."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gradiometer.capture import hooks

__all__ = ["Backward", "Clips", "after_init"]


def after_init(kind: type, note: Callable[[Any], None]) -> Callable[[], None]:
    """Tell `note` of each object of this class, and of those derived from it, once it is made."""
    original: Any = kind.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def observed(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        note(self)

    kind.__init__ = observed  # type: ignore[misc]

    def remove() -> None:
        if kind.__init__ is observed:  # type: ignore[misc]
            kind.__init__ = original  # type: ignore[misc]

    return remove


class Backward:
    """A listener of backward passes."""

    def __init__(self, reached: Callable[[], None]) -> None:
        self._reached = reached

    def after_backward(self, reached: frozenset[int]) -> None:
        self._reached()


class Clips:
    """A listener of clips."""

    def __init__(self, note: Callable[[], None]) -> None:
        self._note = note

    def before_clip(self, call: hooks.ClipCall) -> None:
        self._note()

    def after_clip(self, call: hooks.ClipCall) -> None:
        """The meter's business."""
