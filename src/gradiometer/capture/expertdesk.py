"""What is said of experts beside their numbers: what was found, what is missing, and a look on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradiometer import metrics
from gradiometer.capture.expertbook import ExpertBook
from gradiometer.capture.expertsheet import ExpertSheet
from gradiometer.capture.reading import Reading
from gradiometer.capture.rounds import Owner, Round
from gradiometer.records import Table

__all__ = ["ExpertDesk"]


class ExpertDesk:
    """Remembers what has been said, so that each thing is said once."""

    def __init__(self, owner: Owner, put: Callable[[Table], None]) -> None:
        self._owner, self._put = owner, put
        self._described: dict[str, Any] | None = None
        self._said_missing = False

    def note(self, book: ExpertBook, step: int) -> None:
        """The layers of experts, when they are first seen and when they change."""
        described = book.describe()
        if described == self._described:
            return
        self._described = described
        self._put(Table(step=step, name="experts", content=described))
        layers = described["layers"]
        counts = ", ".join(f"{layer['experts']} in {layer['layer']}" for layer in layers[:3])
        more = f" and {len(layers) - 3} more layers" if len(layers) > 3 else ""
        self._owner.event("experts", f"found experts: {counts}{more}", step)

    def look(self, book: ExpertBook, sheet: ExpertSheet, current: Round | None, step: int) -> dict[str, float] | None:
        """The values of this moment, by a sync of its own; none where no expert has a gradient, None without experts."""
        if not book.layers:
            return None
        book.asked_for = True
        reading = Reading(0)
        seen = book.read_now(reading, None if current is None else current.number)
        values: dict[str, float] = {}
        fetched = reading.fetch()
        sheet.write_now(values, fetched, seen)
        book.learn(fetched, seen)
        self.note(book, step)
        norms = (metrics.key("grad/expert/<expert>/norm", expert=str(e)) for e in range(book.largest))
        # A zero_grad that fills with zeros leaves gradients that nobody made.
        if any(values.get(name) for name in norms):
            return values
        if not self._said_missing:
            self._said_missing = True
            message = "no expert has a gradient: look after backward() and before optimizer.step() and zero_grad()"
            self._owner.event("experts-missing", message, step)
            self._owner.warn(f"step {step}: {message}")
        return {}
